"""Calls of a model in one step with the same inputs and the same weights, of which one would do.

A tensor is the same if it is the same object, or the same view of one, and nothing has written into it since:
torch counts that in its version. Inference mode keeps no such count: whether something was written there is
asked of the step's ops later.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Hashable
from types import FrameType
from typing import Any

from kinetoscope.capture import torch_private

MOST = 1024  # calls of a step that are compared …
DEPTH = 2  # … of modules and of their parts
ITEMS, DEEPEST = 256, 4  # of what a call gets: more in a list, or lists in lists, are not compared
PLAIN = (type(None), bool, int, float, complex, str, bytes)


class SameCalls:
    """The calls of one step that get what an earlier one got, by their numbers among all calls of modules."""

    def __init__(self) -> None:
        self.calls = self.compared = 0
        self.found: list[tuple[int, int]] = []
        self.uncounted: list[int] = []  # of the later ones: before them writes may not have been counted
        self.inference = False  # calls were made in inference mode
        self.known: dict[Hashable, tuple[int, list[weakref.ref[Any]]]] = {}

    def called(self, frame: FrameType, depth: int) -> None:
        """A module begins its ``forward``, within so many others."""
        number, self.calls = self.calls, self.calls + 1
        if depth >= DEPTH or self.compared >= MOST:
            return
        import torch

        self.compared += 1
        self.inference |= torch.is_inference_mode_enabled()
        with contextlib.suppress(Exception), torch_private.asked_in_silence():
            code, given, alive = frame.f_code, frame.f_locals, list[weakref.ref[Any]]()
            several = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
            own, *others = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + several]
            module = given[own]
            inputs = [_same(given[name], alive) for name in others]
            key = code, _object(module, alive), _weights(module), *inputs
            first, before = self.known.get(key, (number, alive))
            # The number of an object that is gone may be another one's by now.
            if first < number and all(one() is not None for one in before):
                self.found.append((first, number))
                if self.inference:
                    self.uncounted.append(number)
            else:
                self.known[key] = number, alive

    def forget(self) -> None:
        """An optimizer steps, and fused ones count no version of what they write; or the step is over, after
        which no reference may stay: ``torch.utils.swap_tensors`` takes no tensor that has one."""
        self.known.clear()


def _object(one: Any, alive: list[weakref.ref[Any]]) -> int:
    alive.append(weakref.ref(one))
    return id(one)


def _weights(module: Any) -> tuple[Hashable, ...]:
    """A key that is equal only while a module's weights are as they were, and it trains or does not."""
    found, left = list[Hashable](), [module]
    for one in left:  # grows as it goes
        own = vars(one)
        left += [part for part in own["_modules"].values() if part is not None]
        weights = [weight for weight in own["_parameters"].values() if weight is not None]
        found += own["training"], *map(id, weights), sum(map(_version, weights))
    return tuple(found)


def _version(tensor: Any) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _same(value: Any, alive: list[weakref.ref[Any]], depth: int = 0) -> Hashable:
    """A key that is equal only while a value is as it was; raises where that is not known."""
    import torch

    if type(value) in PLAIN or isinstance(value, (torch.device, torch.dtype)):
        return type(value), value
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        whole = value if value._base is None else value._base
        # A parameter lives as long as its module, and may be swapped in the step.
        number = id(whole) if type(whole) is torch.nn.Parameter else _object(whole, alive)
        return (
            number,
            value.dtype,
            _version(value),
            value.storage_offset(),
            tuple(value.shape),
            value.stride(),
        )
    parts = value if type(value) in (list, tuple, dict) else vars(value)
    if depth >= DEEPEST or len(parts) > ITEMS:
        raise ValueError
    names, ones = (parts.keys(), parts.values()) if isinstance(parts, dict) else ((), parts)
    return type(value), *names, *(_same(one, alive, depth + 1) for one in ones)
