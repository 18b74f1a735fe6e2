"""Programs of a host and a device, run event by event: what replays are compared with.

One host program on two threads that hand over to each other, two streams of one device, of which the first
computes and the second copies, so that neither takes anything of the other. A launch arrives
``LATENCY`` after its call began; a call costs ``CALL``; a wait returns ``TAIL`` after what it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import traces

LATENCY, CALL, TAIL = 1_000, 500, 700
Event = traces.Event


@dataclass(frozen=True)
class Run:
    """Host time on one of two threads."""

    thread: int
    ns: int


@dataclass(frozen=True)
class Launch:
    """A kernel, on the second stream a copy; ``after``: its stream first waits for what the other was given
    last."""

    stream: int
    ns: int
    after: bool = False


@dataclass(frozen=True)
class Copy:
    """A blocking copy on stream 0."""

    ns: int


@dataclass(frozen=True)
class Sync:
    """A wait for the device, or for the stream that was launched on last."""

    device: bool


Instruction = Run | Launch | Copy | Sync
Program = Sequence[Instruction]


@dataclass(frozen=True)
class Changes:
    """By place in the program: nanoseconds off device work, shares off host time, waits that are none."""

    saved: Mapping[int, float] = field(default_factory=dict)
    shares: Mapping[int, float] = field(default_factory=dict)
    free: Set[int] = frozenset()


NONE = Changes()


class Machine:
    """Runs programs; ``events`` is what a profiler would have recorded, ``end_ns`` when all was done."""

    def __init__(self, changes: Changes = NONE) -> None:
        self.events: list[Event] = []
        self.calls: list[int] = []  # the instruction behind each host event
        self.now = 0.0
        self.streams = [0.0, 0.0]
        self._changes = changes
        self._newest = 0
        self._thread = 1

    @property
    def end_ns(self) -> float:
        return max(self.now, *self.streams)

    def run(self, program: Program, step: int | None = None) -> None:
        began = self.now
        for place, one in enumerate(program):
            self._do(place, one)
        if step is not None:
            self.events.append(traces.step(step, began / 1000, (self.now - began) / 1000))

    def _do(self, place: int, one: Instruction) -> None:
        free = place in self._changes.free
        if isinstance(one, Run):
            self._thread = one.thread
            took = one.ns * (1 - self._changes.shares.get(place, 0.0))
            self.events.append(traces.host(f"op {place}", self.now / 1000, took / 1000, tid=one.thread))
            self.now += took
        elif isinstance(one, Launch):
            self._newest = one.stream
            if one.after:
                self._call("cudaStreamWaitEvent", 0)
                self.streams[one.stream] = max(self.streams)
            self._work(place, "kernel", one.stream, one.ns)
            self._call("cudaLaunchKernel", CALL)
        elif isinstance(one, Copy):
            self._newest = 0
            self._work(place, "copy", 0, one.ns)
            done = self.now if free else max(self.now, self.streams[0])
            self._call("cudaMemcpy", done + TAIL - self.now)
        else:
            own = max(self.streams) if one.device else self.streams[self._newest]
            done = self.now if free else max(self.now, own)
            name = "cudaDeviceSynchronize" if one.device else "cudaStreamSynchronize"
            self._call(f"{name}", done + TAIL - self.now)

    def _call(self, name: str, ns: float) -> None:
        correlation = len(self.events) if name in ("cudaLaunchKernel", "cudaMemcpy") else 0
        self.events.append(traces.call(name, self.now / 1000, ns / 1000, correlation, self._thread))
        self.now += ns

    def _work(self, place: int, name: str, stream: int, ns: int) -> None:
        left = max(0.0, ns - self._changes.saved.get(place, 0.0))
        start = max(self.now + LATENCY, self.streams[stream]) if left else self.streams[stream]
        # Its launch is the next event.
        correlation = len(self.events) + 1
        event = traces.kernel(f"{name} {place}", start / 1000, left / 1000, correlation, stream=7 + stream)
        self.events.append(event if stream == 0 else event | {"cat": "gpu_memcpy"})
        self.streams[stream] = start + left
