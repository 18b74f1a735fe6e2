"""Noticing calls of methods of torch's: by standing where they are looked up, or by wrapping them."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

from kinetoscope.capture import torch_private

# Sees a call: the object, the arguments and the named arguments, whatever the program gives.
Seeing = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None]


class MethodStandIn:
    """An object in the place of a class's method; what the program has put there since stays.

    Several may stand there, each over the one that came before, and leave in any order. Who takes it out of
    the class's ``__dict__``, as mocks and cloudpickle do, can call it and pickle it as the method itself.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self._find_method()

    def _find_method(self) -> None:
        """Find the method as the program has it now, or who stands in for it already."""
        there = vars(self.owner).get(self.name)
        self.inherited = self.name not in vars(self.owner)
        self.method: Any = there if isinstance(there, MethodStandIn) else getattr(self.owner, self.name)

    def standing(self) -> list[Any]:
        """All that stand in for the method, the last one first."""
        there, standing = vars(self.owner).get(self.name), list[Any]()
        while isinstance(there, MethodStandIn):
            standing.append(there)
            there = there.method
        return standing

    @property
    def installed(self) -> bool:
        return self in self.standing()

    @property
    def original(self) -> Any:
        """The method itself, whoever stands in for it."""
        return self.method.original if isinstance(self.method, MethodStandIn) else self.method

    __call__ = original

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return copy.copy, (self.original,)  # of a function that is the function itself

    def install(self) -> None:
        if not self.installed:
            self._find_method()
            setattr(self.owner, self.name, self)

    def remove(self) -> None:
        standing = self.standing()
        if self not in standing:
            return
        if place := standing.index(self):
            over = standing[place - 1]
            over.method, over.inherited = self.method, self.inherited
        elif self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.method)


class BoundMethod(functools.partial[Any]):
    """A bound method, as a partial object that may do something when it is dropped. It has the method's name
    and other attributes, and is pickled as the method."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)

    def __reduce__(self) -> Any:
        return copy.copy, (self.func,)


class CallWatch(MethodStandIn):
    """Stands in for a class's method: calls ``seen(instance)`` whenever an instance looks it up to call it.

    No frame of ours is on the user's stack while the method runs. What the program itself puts in the
    method's place, before or meanwhile, stays there; whatever ``seen`` raises is swallowed.
    """

    def __init__(self, owner: type, name: str, seen: Callable[[Any], None]) -> None:
        super().__init__(owner, name)
        self.seen, self.switch = seen, torch_private.dynamo_switch()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.original
        prior = self.switch(None)
        try:
            self.seen(instance)
        except Exception:  # the program's own call is not ours to break
            pass
        finally:
            self.switch(prior)
        return self.bound(instance)

    def bound(self, instance: Any) -> Any:
        """The method as the program has it: of a class above, perhaps put there since."""
        if self.inherited:
            return getattr(super(self.owner, instance), self.name)
        return self.method.__get__(instance, type(instance))


class EveryCallWatch(CallWatch):
    """Calls ``seen(instance)`` at each call, also of what the program has looked up once and keeps
    (``step = graph.replay``). All that stand in for one method have to be of this class.

    What is looked up takes no arguments.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.original
        return functools.partial(_CALLED_NOW, _Called(self, instance))


# Python looks the method up within C code, so that no frame of ours is on the stack while it runs.
_CALLED_NOW = operator.methodcaller("method")


class _Called:
    __slots__ = ("instance", "watch")

    def __init__(self, watch: EveryCallWatch, instance: Any) -> None:
        self.watch, self.instance = watch, instance

    def now(self) -> Any:
        """The method as the program has it; all that stand in for it now see the call."""
        bound = None
        for watch in self.watch.standing():
            bound = CallWatch.__get__(watch, self.instance)
        return bound or self.watch.bound(self.instance)

    method = property(now)


class ReturnWatch(CallWatch):
    """Calls ``seen(instance)`` when the method has returned or raised.

    What is looked up is a partial object, which the interpreter drops once the call is over.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.original
        return _WatchedCall(self.bound(instance), _Over(self.seen, instance))


# What a program's own calls run of ours.
CALLED_BY_PROGRAMS = (CallWatch.__get__, EveryCallWatch.__get__, ReturnWatch.__get__, _Called.now)


class _Over:
    """Calls ``seen(instance)`` when it is dropped."""

    __slots__ = ("instance", "seen")

    def __init__(self, seen: Callable[[Any], None], instance: Any) -> None:
        self.seen, self.instance = seen, instance

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.seen(self.instance)


class _WatchedCall(BoundMethod):
    """A bound method that keeps something for as long as its call lasts."""

    over: _Over

    def __new__(cls, bound: Callable[..., Any], over: _Over) -> _WatchedCall:
        self = super().__new__(cls, bound)
        self.over = over
        return self


def hook(
    owner: Any,
    method: str,
    *,
    before: Seeing | None = None,
    after: Callable[[Any], None] | None = None,
) -> Callable[[], None]:
    """Have calls of ``owner.method`` call ``before`` with the object and its arguments, and ``after`` with
    the object; returns a function that ends that. What they raise is swallowed: the program's call stays."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        if before is not None:
            with contextlib.suppress(Exception):
                before(self, arguments, named)
        result = original(self, *arguments, **named)
        if after is not None:
            with contextlib.suppress(Exception):
                after(self)
        return result

    def remove() -> None:
        if getattr(owner, method) is wrapped:
            setattr(owner, method, original)

    setattr(owner, method, wrapped)
    return remove
