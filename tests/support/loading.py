"""A training loop whose data loader has workers and whose device runs behind its host, run event by event.

As torch's loader does it: ``prefetch`` batches a worker are under way, worker by worker in turn; taking one
requests the next. A step takes a batch over, computes on the host, launches one kernel, waits for the device
where it ``syncs``, and ends with more host work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import traces
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord, StepTimings, TimedSteps
from kinetoscope.sources.run import LoadedRun

NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True)
class Loop:
    """Times in µs.

    Args:
        batch_us: what one worker takes for batch number n.
        copies: the device work copies from pageable memory.
        slower: by how much the profiler makes the host's own work longer.
    """

    workers: int
    batch_us: Callable[[int], float]
    handover_us: float = 0.0
    before_us: float = 100.0
    kernel_us: float = 0.0
    syncs: bool = False
    after_us: float = 100.0
    prefetch: int = 2
    copies: bool = False
    slower: float = 1.0


class Machine:
    """Runs a loop step by step; ``step_us``, ``data_us`` are of each step, ``events`` a profiler's."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.now = self.device = 0.0
        self.step_us: list[float] = []
        self.data_us: list[float] = []
        self.events: list[traces.Event] = []
        self._made: list[float] = []  # when each batch is ready
        self._asked = 0
        self._free = [0.0] * loop.workers  # when each worker is
        for _ in range(loop.workers * loop.prefetch):
            self._ask()

    def _ask(self) -> None:
        worker = self._asked % self.loop.workers
        self._free[worker] = max(self._free[worker], self.now) + self.loop.batch_us(self._asked)
        self._made.append(self._free[worker])
        self._asked += 1

    def run(self, steps: int) -> None:
        loop, slower = self.loop, self.loop.slower
        for _ in range(steps):
            number, began = len(self.step_us), self.now
            self.now = max(self.now, self._made[number]) + loop.handover_us * slower
            self.events.append(traces.host(NEXT, began, self.now - began, "user_annotation"))
            self.data_us.append(self.now - began)
            self._ask()
            self._op("before", loop.before_us * slower)
            if loop.kernel_us:
                self.events.append(traces.call("cudaLaunchKernel", self.now, 1, 1 + number))
                start = max(self.now, self.device)
                name = "Memcpy HtoD (Pageable -> Device)" if loop.copies else "k"
                self.events.append(traces.kernel(name, start, loop.kernel_us, 1 + number))
                self.device = start + loop.kernel_us
                self.now += 1
            if loop.syncs:
                waited = max(0.0, self.device - self.now)
                self.events.append(traces.call("cudaDeviceSynchronize", self.now, waited, 0))
                self.now += waited
            self._op("after", loop.after_us * slower)
            self.events.append(traces.step(number, began, self.now - began))
            self.step_us.append(self.now - began)

    def _op(self, name: str, us: float) -> None:
        self.events.append(traces.host(f"aten::{name}", self.now, us))
        self.now += us


def in_the_long_run(loop: Loop, rounds: int = 40) -> float:
    """A step's time once the loop is steady, over whole rounds of the workers, µs."""
    machine, steps = Machine(loop), rounds * loop.workers
    machine.run(steps)
    half = machine.now
    machine.run(steps)
    return (machine.now - half) / steps


def timed(loop: Loop, rounds: int = 12, skipped: int = 200) -> TimedSteps:
    """Steps as the recorder times them, once their time has settled."""
    machine, steps = Machine(loop), rounds * loop.workers
    machine.run(skipped + steps)
    seconds, data_s = (
        tuple(us / 1e6 for us in times[skipped:]) for times in (machine.step_us, machine.data_us)
    )
    return TimedSteps(step_s=seconds, host_s=seconds, data_s=data_s)


def recording(loop: Loop, recorded: Loop, cores: int = 64) -> LoadedRun:
    """A recording of ``recorded`` (the loop with its profiler), and steps of the loop timed without one."""
    machine = Machine(recorded)
    machine.run(200)
    machine.events.clear()
    machine.run(2 * loop.workers)
    timings = StepTimings(before=timed(loop), loader_workers=loop.workers, settled=True, warmup_s=(1.0,))
    manifest = Manifest(ranks=(RankRecord(rank=0, steps=timings),), environment=Environment(cpu_count=cores))
    return LoadedRun((traces.trace(*machine.events),), manifest)
