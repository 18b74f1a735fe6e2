"""Ending a session of torch's profiler, and writing its trace, without Python's lock.

torch's own calls keep that lock while C++ works: for ten seconds of 400,000 events on two busy CPU cores, in
which a server answers no request. The functions behind them are part of torch's C++ interface and touch
nothing of Python's where no stacks were recorded; called through ctypes they leave the lock to the program.
They are called where their names, which hold the types of their arguments, are those that were tried;
elsewhere torch's own calls are.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from kinetoscope.capture import torch_private


class _Returned(ctypes.Structure):
    """A ``std::unique_ptr`` as a function returns it: at an address that the caller gives."""

    _fields_ = (("result", ctypes.c_void_p), ("unused", ctypes.c_void_p * 3))


class _String(ctypes.Structure):
    """A ``std::string`` of libstdc++ that is only read."""

    _fields_ = (("text", ctypes.c_char_p), ("length", ctypes.c_size_t), ("rest", ctypes.c_size_t * 2))


class Unlocked:
    """The functions of one library; ``save`` and ``free`` take what ``disable`` returned."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.state_, self.remove_ = (
            library[torch_private.PROFILER_STATE],
            library[torch_private.REMOVE_CALLBACK],
        )
        self.state_.argtypes, self.state_.restype = [ctypes.c_bool], ctypes.c_void_p
        self.remove_.argtypes, self.remove_.restype = [ctypes.c_void_p], None
        self.disable_ = library[torch_private.DISABLE_PROFILER]
        self.disable_.argtypes, self.disable_.restype = [], _Returned
        self.save_ = library[torch_private.SAVE_RESULT]
        self.destroy_ = library[torch_private.DESTROY_RESULT]
        self.delete_ = library["_ZdlPv"]
        self.save_.argtypes, self.save_.restype = [ctypes.c_void_p, ctypes.c_void_p], None
        for function in (self.destroy_, self.delete_):
            function.argtypes, function.restype = [ctypes.c_void_p], None

    def begin_no_more(self) -> None:
        """Have the session that records all threads hear of no operator that begins from now on; those that
        are open are heard of when they end."""
        if state := self.state_(True):
            self.remove_(state)

    def disable(self) -> int | None:
        """End the session that records all threads."""
        return self.disable_().result

    def save(self, result: int, path: bytes) -> None:
        self.save_(result, ctypes.byref(_String(path, len(path), (0, 0))))

    def free(self, result: int) -> None:
        self.destroy_(result)
        self.delete_(result)


@cache
def unlocked() -> Unlocked | None:
    """The functions of the torch of this process; None where they are not those that were tried."""
    import torch

    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        return None
    try:
        return Unlocked(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")))
    except (OSError, AttributeError):
        return None


# Where Kineto keeps the thread that it was registered in: bytes from the start of its one object.
_THREAD_AT = 24


@contextmanager
def first_used_here(registered_in: int) -> Generator[None]:
    """Let this thread use Kineto for the first time in a process, without a message on the program's stderr.

    Kineto would say there that another thread has registered it, and then do the same. ``registered_in``: the
    thread that imported torch. Where Kineto has another one, nothing is changed.
    """
    place = _registration()
    ours = place is not None and place.value == registered_in & 0xFFFFFFFF
    if place is not None and ours:
        place.value = threading.get_ident() & 0xFFFFFFFF
    try:
        yield
    finally:
        if place is not None and ours:
            place.value = registered_in & 0xFFFFFFFF


def _registration() -> ctypes.c_uint32 | None:
    functions = unlocked()
    if functions is None:
        return None
    try:
        kineto = functions.library[torch_private.KINETO]
    except AttributeError:
        return None
    kineto.argtypes, kineto.restype = [], ctypes.c_void_p
    return ctypes.c_uint32.from_address(kineto() + _THREAD_AT)
