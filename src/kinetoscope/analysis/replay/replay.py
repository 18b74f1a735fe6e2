"""The time of a step as recorded, replayed, and after a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from weakref import WeakValueDictionary

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.passes.as_it_runs import StepAsItRuns, as_it_runs, loaders_of
from kinetoscope.analysis.passes.loader import Loader
from kinetoscope.analysis.replay.change import NOTHING, ReplayChange
from kinetoscope.analysis.replay.device_work import launched, of_several_streams
from kinetoscope.analysis.replay.engine import Numbers, growth, matrix, once
from kinetoscope.analysis.replay.graph import RankSpans, ReplayGraph, build
from kinetoscope.analysis.replay.numbers import State, changed, recorded
from kinetoscope.analysis.replay.path import (
    LATE_BATCHES,
    NOT_REPLAYED,
    OTHER_STREAMS,
    PathPart,
    path_parts,
    repeated,
    single,
)
from kinetoscope.analysis.replay.ranks import pace_ns, together
from kinetoscope.analysis.replay.spans import Spans, spans
from kinetoscope.analysis.time import intervals
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

NO_KERNELS = pl.DataFrame()
# Bisection of the host's pace: to a thousandth.
HALVINGS = 10
SAME = 1e-3
# A step that takes hardly longer than its device work does not tell how fast its host is. A profiler slows
# hosts 1.4 to 2.8 times (docs/evidence/everyday.md).
DEVICE_BOUND, USUAL_PACE = 1.1, 0.45


class StepReplay:
    """The recorded steps of one rank, ready to be replayed.

    ``step_us`` is the step replayed without a change, of the program as it runs where that was timed;
    ``recorded_us`` the recorded step (the whole window without steps), ``error`` by how much of it the
    recorded step's replay is longer; ``unexplained`` the share of the step that stands in delays without a
    known cause; ``pace`` what host time was multiplied by to get from the recorded step to the one without
    the profiler.

    A data loader whose workers make a batch too seldom is one more clock, which nothing else holds up: the
    step takes what it takes without waiting for batches, and no less than the workers take for one. Waits in
    the recording say nothing of the program, whose steps are shorter or found the queue less full.

    Nor does a step take less than the union of what the device computes in it, in whichever streams.
    """

    def __init__(
        self,
        rank: int,
        graph: ReplayGraph,
        within: Spans,
        traces: Sequence[Trace],
        runs_us: float | None = None,
        repeats: bool | None = None,
        loaders: Mapping[int, Loader] | None = None,
    ) -> None:
        """Args:
        within: what of this rank is replayed.
        traces: of all ranks in the graph.
        runs_us: the step as it was timed without the profiler, where it was.
        repeats: whether a step is what a round takes if rounds go on for ever, and not from the recording's
            begin to its end. One step of several ranks begins when each rank's recording did.
        loaders: by rank, the data loader whose workers' batches it waits for, in the steps timed without the
            profiler."""
        self.rank = rank
        self.steps = within.steps
        self.recorded_us = within.recorded_us
        self._graph = graph
        # Weak: what is remembered of a trace must not keep it.
        self._traces = WeakValueDictionary({trace.rank: trace for trace in traces})
        own = within.steps > 1 or (within.steps == 1 and len(traces) == 1)
        self._repeats = own if repeats is None else repeats
        # The steps that are replayed take their mean; the step is the median.
        self._typical = within.recorded_us / within.mean_us if within.mean_us else 1.0
        self._idle_us = 0.0  # of a step as it runs, beyond its replay
        own_trace = self._traces.get(rank)
        self._computing = of_several_streams(own_trace, within.bounds) if own_trace else NO_KERNELS
        self._base: State = recorded(graph)
        self.step_us = self._us(self._base.numbers)
        self.error = self.step_us / self.recorded_us - 1 if self.recorded_us else 0.0
        whole = self.step_us * max(1, self.steps)
        self.unexplained = min(1.0, graph.lost_ns / 1000 / whole) if whole else 0.0
        self._loaders = {rank: own for rank, own in (loaders or {}).items() if own.binds}
        self._free = graph.late_batches
        if self._free:
            # Steps differ by their waits, which the device's clock counts to other steps than the host's.
            bounds_us = sum(end - start for start, end in within.bounds) / 1000 / max(1, within.steps)
            self.error = self.step_us / self._typical / bounds_us - 1 if bounds_us else 0.0
            self._typical = 1.0
        if runs_us is not None and self.steps and self.step_us:
            self._run_as(runs_us)

    @property
    def pace(self) -> float:
        return self._base.pace

    @property
    def waits_for_batches(self) -> bool:
        """Whether a data loader sets the pace."""
        return self._batch_us({}) >= self.step_us > 0

    def after(
        self, change: ReplayChange = NOTHING, others: Mapping[int, ReplayChange] | None = None
    ) -> float:
        """The step's time once ``change`` is made, and ``others`` elsewhere, µs: 0 to ``step_us``."""
        changes = {**(others or {}), self.rank: change}
        us = max(
            self._us(changed(self._base, changes).numbers), self._batch_us(changes), self._device_us(change)
        )
        return min(self.step_us, max(0.0, us))

    def critical_path(
        self, change: ReplayChange = NOTHING, others: Mapping[int, ReplayChange] | None = None
    ) -> list[PathPart]:
        """The parts of the step's time, longest first; sums to ``step_us``, or what is left of it."""
        changes = {**(others or {}), self.rank: change}
        state = changed(self._base, changes)
        pieces, rounds = repeated(state) if self._repeats else (single(state, self.rank), 1)
        scale = self._typical / 1000 / rounds / max(1, self.steps)
        parts = path_parts(state, pieces, dict(self._traces), self.rank, scale)
        for text, least_us in (
            (NOT_REPLAYED, sum(part.us for part in parts) + self._idle_us),
            (OTHER_STREAMS, min(self.step_us, self._device_us(change))),
            (LATE_BATCHES, self._batch_us(changes)),
        ):
            if (more_us := least_us - sum(part.us for part in parts)) > 0:
                parts.append(PathPart(text, more_us, self.rank, "host_events", (), 0))
        return sorted(parts, key=lambda part: -part.us)

    @cached_property
    def recorded_path(self) -> list[PathPart]:
        """The critical path as recorded, or as the program runs."""
        return self.critical_path()

    @cached_property
    def _computing_ns(self) -> int:
        return _busy_ns(self._computing)

    def _device_us(self, change: ReplayChange) -> float:
        """The union of what the device computes in a step, where several streams do."""
        if self._computing.is_empty():
            return 0.0
        busy_ns = self._computing_ns
        if len(change.device):
            saved = change.device.group_by("id").agg(pl.max("saved_ns"))
            left = self._computing.join(saved, on="id", how="left").select(
                "device", "start_ns", end_ns=pl.col("end_ns") - pl.col("saved_ns").fill_null(0).cast(pl.Int64)
            )
            busy_ns = _busy_ns(left)
        return busy_ns / 1000 / max(1, self.steps) * self._typical

    def _batch_us(self, changes: Mapping[int, ReplayChange]) -> float:
        """The time that the workers of the slowest loader take for a batch; 0 where none binds."""
        return max(
            (own.pace_us * changes.get(rank, NOTHING).batch_share for rank, own in self._loaders.items()),
            default=0.0,
        )

    def _us(self, numbers: Numbers) -> float:
        """A step's time; without steps that of all there is."""
        if self._repeats:
            joined = len(set(self._graph.ranks)) > 1
            round_ns = pace_ns(self._graph, numbers) if joined else growth(matrix(self._graph, numbers))
            return round_ns / 1000 / self.steps * self._typical + self._idle_us
        clocks = once(self._graph, numbers, self._graph.origin).clocks
        began = min(self._own(self._graph.origin), default=0.0)
        own_ns = max(0.0, max(self._own(clocks), default=0.0) - began)
        return own_ns / 1000 * self._typical + self._idle_us

    def _own(self, clocks: Sequence[float]) -> list[float]:
        return [clock for clock, rank in zip(clocks, self._graph.ranks, strict=True) if rank == self.rank]

    def _run_as(self, runs_us: float) -> None:
        """Take the greatest pace of the host at which the step is not longer than timed. What is left is the
        whole step's: the program was slower when it was timed; but where the device sets the pace, idle time
        that no change takes away. Of a program that waits for batches, the step without these waits."""
        runs_us = max((own.compute_us for own in self._loaders.values()), default=runs_us)
        self._base = recorded(self._graph, free=self._free)
        self.step_us = self._us(self._base.numbers)
        device_us = max(self._us(recorded(self._graph, 0.0, self._free).numbers), self._device_us(NOTHING))
        slowest = max(runs_us, device_us) * (1 + SAME)
        bound = runs_us < DEVICE_BOUND * device_us
        if bound or self.step_us > slowest:
            slow, fast = 1.0, 0.0
            for _ in range(HALVINGS):
                middle = (slow + fast) / 2
                if self._us(recorded(self._graph, middle, self._free).numbers) > slowest:
                    slow = middle
                else:
                    fast = middle
            if bound:  # then the host's pace is only known not to be slower
                fast = min(USUAL_PACE, fast)
            self._base = recorded(self._graph, fast, self._free)
        replayed_us = self._us(self._base.numbers)
        if bound and runs_us > replayed_us:
            self._idle_us = runs_us - replayed_us
        else:
            self._typical *= runs_us / replayed_us
        self.step_us = max(self._us(self._base.numbers), self._batch_us({}))


def _busy_ns(kernels: pl.DataFrame) -> int:
    return whole(intervals.length(intervals.union(kernels, ["device"]), ["device"])["length_ns"].max())


def replay(trace: Trace, runs: StepAsItRuns | None = None, *, only: bool = False) -> StepReplay:
    """One rank by itself, as recorded or as the program runs: its collectives take as long as they did.
    ``only``: no graph will join it with other ranks."""
    within, loader = spans(trace), None if runs is None else runs.loader
    handover_ns = None if loader is None else 1000 * loader.handover_us
    graph = build([RankSpans(trace, within, handover_ns=handover_ns, only=only)])
    loaders = None if loader is None else {trace.rank: loader}
    runs_us = None if runs is None else runs.step_us
    found = StepReplay(trace.rank, graph, within, [trace], runs_us, loaders=loaders)
    if only:
        launched.forget(trace)
    return found


@remembered
def job(run: LoadedRun) -> StepReplay | None:
    """All ranks as one program, of the rank whose step takes longest; None where they meet nowhere."""
    if (joined := together(run)) is None:
        return None
    graph, within = joined
    timed = {rank: runs.step_us for rank, runs in as_it_runs(run).items()}
    rank = max(within, key=lambda rank: timed.get(rank, within[rank].recorded_us))
    own = within[rank]
    return StepReplay(rank, graph, own, run.traces, timed.get(rank), own.steps > 0, loaders_of(run))


@remembered
def alone(run: LoadedRun) -> dict[int, StepReplay]:
    """Each rank's by itself, as the program runs: collectives take as long as they did, waiting and all."""
    timed = as_it_runs(run)
    only = len(run.traces) == 1
    return {trace.rank: replay(trace, timed.get(trace.rank), only=only) for trace in run.traces}
