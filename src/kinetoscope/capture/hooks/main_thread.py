"""Doing something in the program's main thread, between two of its own instructions."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from kinetoscope.capture import torch_private

# Code of torch's in the middle of which nothing else is to be done: while it is on the stack, graphs are
# warmed up or captured, gradients computed, programs compiled.
DELICATE = (
    "torch/_dynamo/",
    "torch/_functorch/",
    "torch/_inductor/",
    "torch/autograd/",
    "torch/cuda/",
    "torch/fx/",
    "torch/jit/",
    "torch/utils/checkpoint.py",
    "/triton/",
)


class MainThread:
    """Calls ``act`` in the main thread as soon as that runs Python again; never in the middle of a C call.

    Attributes:
        waiting: a call was requested and has not come yet.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.waiting = act, False
        self.switch = torch_private.dynamo_switch()
        # The interpreter is handed a pointer to it, so that it must outlive each call.
        self.callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)

    def soon(self) -> None:
        if not self.waiting:
            self.waiting = True
            ctypes.pythonapi.Py_AddPendingCall(self.callback, None)

    def _call(self, _: Any) -> int:
        prior = self.switch(None)
        try:
            self.waiting = False
            main = threading.main_thread().ident == threading.get_ident()
            if main and not is_delicate(sys._getframe(1) if hasattr(sys, "_getframe") else None):  # pyright: ignore[reportPrivateUsage]
                with suppress(Exception):
                    self.act()
        finally:
            self.switch(prior)
        return 0


def is_delicate(frame: FrameType | None) -> bool:
    """Whether one of the functions on the stack from ``frame`` outwards must not be disturbed."""
    while frame is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        if any(part in path for part in DELICATE):
            return True
        frame = frame.f_back
    return False
