"""At most so many ranks of a host write their traces at once: each takes a core, and all the same disk."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE_S = 5.0  # other ranks may wait for this one in a collective: longer than that nobody holds it up
AT_ONCE = max(1, (os.cpu_count() or 1) // 2)


@contextmanager
def turn(folder: Path, at_once: int = AT_ONCE, patience_s: float = PATIENCE_S) -> Generator[bool]:
    """Whether this is one of the processes that write now; after ``patience_s`` it goes ahead all the same.

    Args:
        folder: where the ranks of a recording meet. Where files cannot be locked there are no turns.
    """
    taken = _taken(folder, at_once, time.monotonic() + patience_s)
    try:
        yield taken is not None
    finally:
        if taken is not None:
            os.close(taken)


def _taken(folder: Path, at_once: int, deadline: float) -> int | None:
    """The locked file of a place; the lock ends with it."""
    try:
        import fcntl
    except ImportError:
        return None
    names = [folder / f"writes-{platform.node()}-{place}" for place in range(at_once)]
    while True:
        for name in names:
            try:
                place = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError:
                return None
            with suppress(OSError):
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return place
            os.close(place)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)
