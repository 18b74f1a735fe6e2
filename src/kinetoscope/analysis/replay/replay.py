"""What a step takes as recorded, replayed, and after a change."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kinetoscope.analysis.idle import timeline
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.replay.change import NOTHING, Change
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time.phases import leading_of
from kinetoscope.analysis.time.window import window
from kinetoscope.bench.measure.statistics import median
from kinetoscope.trace.model import Trace


@dataclass(frozen=True)
class Segment:
    """A part of the critical path: what took ``us`` of the step, and the events (``host`` or ``device``, with
    their rows) that it is made of."""

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

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        lengths = leading_of(trace)["duration_ns"].to_list() if len(trace.steps) else []
        self.recorded_us = (median(lengths) if lengths else window(trace).length_ns) / 1000
        self.step_us = self.recorded_us
        self.error = 0.0
        self.unexplained = 0.0
        self._steps = max(1, len(lengths))

    def after(self, change: Change = NOTHING) -> float:
        """The step's time once ``change`` is made, in µs: never below 0 nor above ``step_us``."""
        saved = timeline.sooner(self._trace, change.device) / 1000 / self._steps
        return min(self.step_us, max(0.0, self.step_us - saved))

    def critical_path(self) -> list[Segment]:
        """What the step's time consists of, longest first; sums to ``step_us``."""
        return []


@remembered
def replays(run: Run) -> dict[int, Replay]:
    """Each rank's replay."""
    return {trace.rank: Replay(trace) for trace in run.traces}
