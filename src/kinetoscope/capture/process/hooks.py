"""Being told when a method of torch's is called, without being noticed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any


def hook(
    owner: Any,
    method: str,
    *,
    before: Callable[[Any], None] | None = None,
    after: Callable[[Any], None] | None = None,
    seeing: Callable[[Any, tuple[Any, ...], dict[str, Any]], None] | None = None,
) -> Callable[[], None]:
    """Have every call of ``owner.method`` call ``before`` and ``after`` with the object; what comes back ends that.

    ``seeing`` is called before with the object, the arguments and the named arguments.
    Whatever they raise is swallowed: the program's own call is not ours to break.
    """
    original = getattr(owner, method)

    @functools.wraps(original)
    def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        if before is not None:
            with contextlib.suppress(Exception):
                before(self)
        if seeing is not None:
            with contextlib.suppress(Exception):
                seeing(self, arguments, named)
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
