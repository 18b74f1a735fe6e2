"""Where the device must be left alone: a CUDA graph is being captured, or a backward pass is running.

While a stream captures, a call that synchronizes, or that starts or stops a profiler, makes the capture
invalid, in the default mode (``global``) from any thread. CUDA tells only whether the *current* stream
captures, so that captures of other threads are noticed where torch begins and ends them. What captures
without torch's classes, from C++ for instance, is seen in its own thread alone.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, Literal

from kinetoscope.capture import torch_private
from kinetoscope.capture.hooks.calls import CallWatch, ReturnWatch

Occupied = Literal["here", "elsewhere"]


# Who has begun to touch the device has done so by then, unless it waits for what the capture is to do.
PATIENCE_S = 5.0


class Captures:
    """Watches the graph classes of torch; installed until the recording is over.

    Attributes:
        lock: whoever touches the device has it, and keeps other threads from beginning a capture meanwhile.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.threads: Counter[int] = Counter()  # captures that each thread has begun and not ended
        self.watches: list[CallWatch] = []

    def install(self) -> None:
        for graph in torch_private.graph_classes():
            self.watches += [
                CallWatch(graph, "capture_begin", self._began),
                ReturnWatch(graph, "capture_end", self._ended),
            ]
        for watch in self.watches:
            watch.install()

    def remove(self) -> None:
        for watch in self.watches:
            watch.remove()
        self.watches.clear()

    def occupied(self) -> Occupied | None:
        """Whether this thread captures or runs a backward pass (``here``), or another one captures."""
        if (
            self.threads.get(threading.get_ident())
            or torch_private.captures_now()
            or torch_private.in_backward()
        ):
            return "here"
        return "elsewhere" if self.threads else None

    def _began(self, graph: Any) -> None:
        locked = self.lock.acquire(timeout=PATIENCE_S)
        self.threads[threading.get_ident()] += 1
        if locked:
            self.lock.release()

    def _ended(self, graph: Any) -> None:
        thread = threading.get_ident()
        self.threads[thread] -= 1
        if self.threads[thread] <= 0:
            del self.threads[thread]
