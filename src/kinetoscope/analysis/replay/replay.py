"""The time of a step as recorded, replayed, and after a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

from kinetoscope.analysis.collectives.recorded import PAIR
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.passes.as_it_runs import as_it_runs
from kinetoscope.analysis.ranks.comparison import comparison
from kinetoscope.analysis.ranks.without_stragglers import IdealRow
from kinetoscope.analysis.replay.change import NOTHING, ReplayChange
from kinetoscope.analysis.replay.engine import Numbers, growth, matrix, once
from kinetoscope.analysis.replay.graph import RankSpans, ReplayGraph, build
from kinetoscope.analysis.replay.numbers import State, changed, recorded
from kinetoscope.analysis.replay.path import PathPart, path_parts, repeated, single
from kinetoscope.analysis.replay.ranks import MOST, pace_ns, together, without_lateness
from kinetoscope.analysis.replay.spans import Spans, spans
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

# Bisection of the host's pace: to a thousandth.
HALVINGS = 10
SAME = 1e-3
# A step that takes hardly longer than its device work does not tell how fast its host is. A profiler slows
# hosts 1.4 to 2.8 times (docs/everyday.md).
DEVICE_BOUND, USUAL_PACE = 1.1, 0.45


class StepReplay:
    """The recorded steps of one rank, ready to be replayed.

    ``step_us`` is the step replayed without a change, of the program as it runs where that was timed;
    ``recorded_us`` the recorded step (the whole window without steps), ``error`` by how much of it the
    recorded step's replay is longer; ``unexplained`` the share of the step that stands in delays without a
    known cause; ``pace`` what host time was multiplied by to get from the recorded step to the one without
    the profiler.
    """

    def __init__(
        self,
        rank: int,
        graph: ReplayGraph,
        within: Spans,
        traces: Sequence[Trace],
        runs_us: float | None = None,
        repeats: bool | None = None,
    ) -> None:
        """Args:
        within: what of this rank is replayed.
        traces: of all ranks in the graph.
        runs_us: the step as it was timed without the profiler, where it was.
        repeats: whether a step is what a round takes if rounds go on for ever, and not from the recording's
            begin to its end. One step of several ranks begins when each rank's recording did."""
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
        self._base = recorded(graph)
        self.step_us = self._us(self._base.numbers)
        self.error = self.step_us / self.recorded_us - 1 if self.recorded_us else 0.0
        whole = self.step_us * max(1, self.steps)
        self.unexplained = min(1.0, graph.lost_ns / 1000 / whole) if whole else 0.0
        if runs_us is not None and self.steps and self.step_us:
            self._run_as(runs_us)

    @property
    def pace(self) -> float:
        return self._base.pace

    def after(
        self, change: ReplayChange = NOTHING, others: Mapping[int, ReplayChange] | None = None
    ) -> float:
        """The step's time once ``change`` is made, in µs: never below 0 nor above ``step_us``.

        Args:
            others: what changes on the other ranks.
        """
        changes = {**(others or {}), self.rank: change}
        return min(self.step_us, max(0.0, self._us(changed(self._base, changes).numbers)))

    def critical_path(
        self, change: ReplayChange = NOTHING, others: Mapping[int, ReplayChange] | None = None
    ) -> list[PathPart]:
        """The parts of the step's time, longest first; sums to ``step_us``, or what is left of it."""
        state = changed(self._base, {**(others or {}), self.rank: change})
        pieces, rounds = repeated(state) if self._repeats else (single(state, self.rank), 1)
        scale = self._typical / 1000 / rounds / max(1, self.steps)
        return path_parts(state, pieces, dict(self._traces), self.rank, scale)

    def _us(self, numbers: Numbers) -> float:
        """A step's time; without steps that of all there is."""
        if self._repeats:
            joined = len(set(self._graph.ranks)) > 1
            round_ns = pace_ns(self._graph, numbers) if joined else growth(matrix(self._graph, numbers))
            return round_ns / 1000 / self.steps * self._typical
        clocks = once(self._graph, numbers, self._graph.origin).clocks
        began = min(self._own(self._graph.origin), default=0.0)
        return max(0.0, max(self._own(clocks), default=0.0) - began) / 1000 * self._typical

    def _own(self, clocks: Sequence[float]) -> list[float]:
        """This rank's clocks."""
        return [clock for clock, rank in zip(clocks, self._graph.ranks, strict=True) if rank == self.rank]

    def _run_as(self, runs_us: float) -> None:
        """Take the greatest pace of the host at which the step is not longer than timed; what is left (the
        device's own time differs, or the program was slower when it was timed) is the whole step's."""
        device_us = self._us(recorded(self._graph, 0.0).numbers)
        slowest = max(runs_us, device_us) * (1 + SAME)
        bound = runs_us < DEVICE_BOUND * device_us
        if bound or self.step_us > slowest:
            slow, fast = 1.0, 0.0
            for _ in range(HALVINGS):
                middle = (slow + fast) / 2
                if self._us(recorded(self._graph, middle).numbers) > slowest:
                    slow = middle
                else:
                    fast = middle
            if bound:  # then the host's pace is only known not to be slower
                fast = min(USUAL_PACE, fast)
            self._base: State = recorded(self._graph, fast)
        self._typical *= runs_us / self._us(self._base.numbers)
        self.step_us = self._us(self._base.numbers)


@remembered
def replay(trace: Trace) -> StepReplay:
    """One rank by itself, as recorded: its collectives take as long as they did."""
    within = spans(trace)
    return StepReplay(trace.rank, build([RankSpans(trace, within)]), within, [trace])


@remembered
def replays(run: LoadedRun) -> dict[int, StepReplay]:
    """Each rank's replay, as the program runs; of ranks that meet in collectives, with the others'."""
    joined = together(run)
    timed = {rank: runs.step_us for rank, runs in as_it_runs(run).items()}
    if joined is not None:
        graph, within = joined
        return {
            rank: StepReplay(rank, graph, own, run.traces, timed.get(rank)) for rank, own in within.items()
        }
    return alone(run)


@remembered
def job(run: LoadedRun) -> StepReplay | None:
    """All ranks as one program whose steps go on, of the rank whose step takes longest; None where they meet
    nowhere."""
    if (joined := together(run)) is None:
        return None
    graph, within = joined
    timed = {rank: runs.step_us for rank, runs in as_it_runs(run).items()}
    rank = max(within, key=lambda rank: timed.get(rank, within[rank].recorded_us))
    own = within[rank]
    return StepReplay(rank, graph, own, run.traces, timed.get(rank), repeats=own.steps > 0)


@remembered
def without_stragglers(run: LoadedRun) -> IdealRow | None:
    """How long a step would take if no rank were late (see ``ranks.without_lateness``); None where ranks meet
    nowhere, are too many to be replayed at once, or are a pipeline's stages, which wait whoever is late."""
    joined, compared = job(run), comparison(run)
    is_pipeline = bool((compared.table["semantics"] == PAIR).any())
    if joined is None or is_pipeline or len(run.traces) > MOST or not joined.step_us:
        return None
    changes = without_lateness(run)
    recorded_us = joined.recorded_us
    scale = recorded_us * (1 + joined.error) / joined.step_us

    def after(changed: Mapping[int, ReplayChange]) -> float:
        return joined.after(changed.get(joined.rank, NOTHING), changed) * scale

    replayed_us, ideal_us = joined.step_us * scale, after(changes)
    return IdealRow(
        recorded_us=recorded_us,
        replayed_us=replayed_us,
        error=replayed_us / recorded_us - 1,
        ideal_us=ideal_us,
        slowdown=replayed_us / ideal_us,
        without={rank: after({rank: change}) for rank, change in changes.items()},
        grain="events",
    )


@remembered
def alone(run: LoadedRun) -> dict[int, StepReplay]:
    """Each rank's by itself, as the program runs: collectives take as long as they did, waiting and all."""
    timed = {rank: runs.step_us for rank, runs in as_it_runs(run).items()}
    return {trace.rank: _alone(trace, timed.get(trace.rank)) for trace in run.traces}


def _alone(trace: Trace, runs_us: float | None) -> StepReplay:
    if runs_us is None:
        return replay(trace)
    within = spans(trace)
    return StepReplay(trace.rank, build([RankSpans(trace, within)]), within, [trace], runs_us)
