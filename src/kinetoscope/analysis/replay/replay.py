"""What a step takes as recorded, replayed, and after a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.change import NOTHING, Change
from kinetoscope.analysis.replay.engine import NEVER, Numbers, growth, matrix, once
from kinetoscope.analysis.replay.graph import Graph, Part, build
from kinetoscope.analysis.replay.numbers import Recorded, changed, recorded
from kinetoscope.analysis.replay.ranks import together
from kinetoscope.analysis.replay.spans import Spans, spans
from kinetoscope.analysis.run import Run
from kinetoscope.trace.model import Trace


@dataclass(frozen=True)
class Segment:
    """A part of the critical path: what took ``us`` of the step, and the events (rows of ``table``,
    ``host_events`` or ``device_events``) that it is made of."""

    text: str
    us: float
    table: str
    ids: tuple[int, ...]


class Replay:
    """The recorded steps of one rank, ready to be replayed.

    ``step_us`` is the step replayed without a change, of the program as it runs where that was timed;
    ``recorded_us`` the recorded step (the whole window without steps), ``error`` by how much of it the
    recorded step's replay is longer; ``unexplained`` the share of the step that stands in delays without a
    known cause.
    """

    def __init__(self, rank: int, graph: Graph, within: Spans) -> None:
        self.rank = rank
        self.graph = graph
        self.steps = within.steps
        self.recorded_us = within.recorded_us
        self._base = recorded(graph)
        # One step of several ranks begins when each rank's recording did: that is not how they would go on.
        self._repeats = within.steps > 1 or (within.steps == 1 and len(set(graph.ranks)) == 1)
        # The steps that are replayed take their mean; the step is the median.
        self._typical = within.recorded_us / within.mean_us if within.mean_us else 1.0
        self.step_us = self._us(self._base.numbers)
        self.error = self.step_us / self.recorded_us - 1 if self.recorded_us else 0.0
        whole = self.step_us * max(1, self.steps)
        self.unexplained = min(1.0, graph.lost_ns / 1000 / whole) if whole else 0.0

    def after(self, change: Change = NOTHING, others: Mapping[int, Change] | None = None) -> float:
        """The step's time once ``change`` is made, in µs: never below 0 nor above ``step_us``.

        Args:
            others: what changes on the other ranks.
        """
        changes = {**(others or {}), self.rank: change}
        return min(self.step_us, max(0.0, self._us(changed(self._base, changes))))

    def _us(self, numbers: Numbers) -> float:
        """A step's time; without steps that of all there is."""
        if self._repeats:
            return growth(matrix(self.graph, numbers)) / 1000 / self.steps * self._typical
        clocks = once(self.graph, numbers, [*self.graph.origin, *([NEVER] * self.graph.streams)]).clocks
        began = min(self._own(self.graph.origin), default=0.0)
        return max(0.0, max(self._own(clocks), default=0.0) - began) / 1000 * self._typical

    def _own(self, clocks: Sequence[float]) -> list[float]:
        """Of all ranks' clocks this one's."""
        return [clock for clock, rank in zip(clocks, self.graph.ranks, strict=False) if rank == self.rank]

    def critical_path(self) -> list[Segment]:
        """What the step's time consists of, longest first; sums to ``step_us``."""
        return []


@remembered
def replay(trace: Trace) -> Replay:
    """One rank by itself: its collectives take as long as they were recorded."""
    within = spans(trace)
    return Replay(trace.rank, build([Part(trace, within)]), within)


@remembered
def replays(run: Run) -> dict[int, Replay]:
    """Each rank's replay; of ranks that meet in collectives, with the others'."""
    joined = together(run)
    if joined is None:
        return {trace.rank: replay(trace) for trace in run.traces}
    graph, within = joined
    return {rank: Replay(rank, graph, spans) for rank, spans in within.items()}
