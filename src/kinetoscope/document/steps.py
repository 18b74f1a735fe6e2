"""Steps: their times, their phases, and what the slow ones did."""

from __future__ import annotations

import msgspec

from kinetoscope.analysis.passes.long_steps import LongSteps as LongSteps
from kinetoscope.analysis.passes.unprofiled import RareSteps as RareSteps
from kinetoscope.analysis.passes.unprofiled import Spread as Spread
from kinetoscope.analysis.passes.unprofiled import StepRound as StepRound
from kinetoscope.analysis.passes.unprofiled import Waiting as Waiting
from kinetoscope.analysis.passes.whole_run import RunPhase as RunPhase
from kinetoscope.analysis.passes.whole_run import WholeRunRow as WholeRunRow
from kinetoscope.analysis.serving.rows import *
from kinetoscope.analysis.time.rows import *


class CauseRow(msgspec.Struct, frozen=True, kw_only=True):
    cause: str
    idle_us: float


class StepLevelTime(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the step, or the step itself: so many per step, one of them ``median_us`` long."""

    name: str
    per_step: float
    median_us: float | None


class OwnStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step in words, and how much of the run such steps are.

    ``calls_seen`` were waited for, timed or recorded, ``calls`` is about how many the whole run has;
    ``share_of_run`` is the part of the run's time that they make up. Both are null where the run was not
    watched. ``levels``: the step, then its parts.
    """

    name: str
    found_by: str
    calls_seen: int
    calls: int | None
    share_of_run: float | None
    levels: list[StepLevelTime] = []


class AsItRunsRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the program without the profiler, on the rank where it takes longest.

    ``busy_us`` and the idle times sum to the step; without recorded device work ``busy_us`` and
    ``busy_fraction`` are null. ``drift``: the steps timed after the recording (``n_after``, median
    ``after_us``) differ from those before by more than their spread. ``inflation`` is how many times as long
    the recorded step is (``recorded_step_us``, its mean). ``mean_us`` is the mean of the timed steps, with
    the rare long ones (``rare_steps``) that the median leaves out. ``round``: after every so many steps
    something longer happens; its ``per_step_us`` counts that in, even where it is part of no step, but for
    the first of the run, which also loads what it needs.
    """

    rank: int
    step_us: Spread
    busy_fraction: float | None
    idle: list[CauseRow]
    waiting: Waiting | None
    basis: str
    busy_us: float | None
    n_before: int
    n_after: int
    before_us: float | None
    after_us: float | None
    drift: bool
    recorded_step_us: float | None
    inflation: float | None
    mean_us: float = 0.0
    rare_steps: RareSteps | None = None
    round: StepRound | None = None
    step: OwnStep | None = None  # null of recordings made before steps had levels


class TimingRow(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one rank's step without and with the profiler: that of ``as_it_runs``, for each rank.

    ``unprofiled_us`` is its median, ``profiled_us`` the mean of the recorded steps."""

    rank: int
    found_by: str
    unprofiled_us: float
    profiled_us: float | None


class StepLevelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the program, or a part that it is made of; the first of them is the step.

    ``calls`` is how many a step has; ``each_us`` the time of one, at the median: of the step as it runs, of
    its parts by the host's clock while steps were looked for; null where it was not timed. ``option`` is the
    NAME of ``run --step NAME`` that makes it the step, empty of what is found unasked.
    """

    kind: str
    name: str
    calls: float
    each_us: float | None
    option: str


class StepCandidateRow(msgspec.Struct, frozen=True, kw_only=True):
    """A source of steps seen while they were looked for: ``ticks``, one per ``each_us`` at the median."""

    kind: str
    name: str
    ticks: int
    each_us: float | None
    option: str


class StepLevels(msgspec.Struct, frozen=True, kw_only=True):
    """The step of the program, its parts, and the other sources that could have been it."""

    levels: list[StepLevelRow] = []
    candidates: list[StepCandidateRow] = []


class StepsListing(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``kinetoscope steps``: what a step is, and the steps that a serving engine marked."""

    as_it_runs: AsItRunsRow | None = None
    step_levels: StepLevels | None = None
    serving: Serving | None = None
    graph_replays: GraphReplays | None = None
