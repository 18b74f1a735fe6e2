"""An eager program by hand: ops in each other, a kernel each, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

import traces
from kinetoscope.findings.rank_view import RankView
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties

GIB = 1 << 30
H200 = DeviceProperties(0, "NVIDIA H200", 140 * GIB, (9, 0), 132)
NODE = "autograd::engine::evaluate_function: "


class Eager:
    """``run`` takes the ops around a launch, outermost first; the host takes 20 µs for each launch, and the
    device is behind it where kernels are longer."""

    def __init__(self) -> None:
        self.at, self.free, self.began = 10.0, 0.0, 0.0
        self.number = self.steps = 0
        self.events: list[traces.Event] = []

    def run(
        self, *ops: str, kernel: str = "elementwise_kernel", us: float = 5.0, grid: int = 132, tid: int = 1,
        sequence: int | None = None, forward_thread: int = 0, bytes: int | None = None,
        dims: list[Any] | None = None, types: list[Any] | None = None, values: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.number += 1
        numbered = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": forward_thread}
        numbered |= _arguments(dims, types, values)
        for depth, op in enumerate(ops):
            self.events.append(traces.host(op, self.at + depth, 18 - 2 * depth, tid=tid, **numbered))
        self.events.append(traces.call("cudaLaunchKernel", self.at + 7, 2, self.number, tid))
        start = max(self.free, self.at + 12)
        work = traces.kernel(kernel, start, us, self.number, grid=[grid, 1, 1], block=[128, 1, 1])
        if bytes is not None:
            work["cat"] = "gpu_memcpy"
            work["args"] |= {"bytes": bytes}
        self.events.append(work)
        self.free = start + us
        self.at += 20

    def note(
        self, op: str, us: float = 1.0, *,
        dims: list[Any] | None = None, types: list[Any] | None = None, values: list[str] | None = None,
    ) -> None:  # fmt: skip
        """An op that launches nothing, such as a view."""
        self.events.append(traces.host(op, self.at, us, **_arguments(dims, types, values)))
        self.at += us + 1

    @contextmanager
    def around(self, *ops: str, tid: int = 1) -> Iterator[None]:
        """Ops, outermost first, that launch more than once."""
        began = self.at
        yield
        for depth, op in enumerate(reversed(ops), start=1):
            start = began - depth / 10
            self.events.append(traces.host(op, start, self.at - 1 + depth / 10 - start, tid=tid))

    def backward(
        self, node: str, *ops: str, sequence: int, kernel: str = "elementwise_kernel", us: float = 5.0
    ) -> None:
        self.run(NODE + node, node, *ops, kernel=kernel, us=us, tid=2, sequence=sequence, forward_thread=1)

    def optimizer(self) -> None:
        self.events.append(traces.host("Optimizer.step#SGD.step", self.at, 20, "user_annotation"))
        self.run("aten::_foreach_add_", kernel="multi_tensor_apply_kernel")

    def step(self) -> None:
        """The end of a step, which began where the one before ended: the host waits for the device."""
        self.number += 1
        waits = max(5.0, self.free - self.at + 5)
        self.events.append(traces.call("cudaDeviceSynchronize", self.at, waits, self.number))
        self.at += waits + 5
        self.events.append(traces.step(self.steps, self.began, self.at - self.began))
        self.began, self.steps = self.at, self.steps + 1
        self.at += 2

    def view(self, found_by: str = "optimizer", peak: int | None = GIB) -> RankView:
        trace = replace(traces.trace(*self.events), devices=(H200,))
        record = RankRecord(rank=0, steps=StepTimings(found_by=found_by), peak_memory_bytes=peak)
        return RankView(LoadedRun((trace,), manifest=Manifest(ranks=(record,))), trace)


def _arguments(dims: list[Any] | None, types: list[Any] | None, values: list[str] | None) -> dict[str, Any]:
    """The recorded arguments of an op, as Kineto names them."""
    known = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values}
    return {name: of for name, of in known.items() if of is not None}
