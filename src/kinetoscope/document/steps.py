"""What steps took, how evenly they ran, and what the slow ones did."""

from __future__ import annotations

import msgspec

from kinetoscope.analysis.passes.unprofiled import Spread, Waiting


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step by the device's clock, from where its first work stands to where the next step's does;
    ``host_duration_us`` is from the host's mark to its next."""

    name: str
    start_us: float
    duration_us: float
    host_duration_us: float
    busy_us: float
    launches: int
    device_time_us: float
    rank: int
    phase: str = "step"
    """What the step is: see ``PhaseRow``."""


class PhaseKernel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    device_time_us: float
    launches: int


class PhaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that are alike (``of`` is ``step``), or the parts of requests that are (``request``).

    ``phase`` is train, forward, evaluate, request, or step where no ops were recorded, with a letter where
    there are several; of a request encode, prefill or decode. ``busy_us``, ``launches`` and
    ``device_time_us`` are medians; ``per_step`` says how many a step or request has; ``kernels`` are those
    with most device time, over the whole phase.
    """

    rank: int
    phase: str
    of: str
    count: int
    per_step: float
    median_us: float
    p10_us: float
    p90_us: float
    total_us: float
    busy_us: float
    launches: float
    device_time_us: float
    kernels: list[PhaseKernel]


class CauseRow(msgspec.Struct, frozen=True, kw_only=True):
    cause: str
    idle_us: float


class AsItRuns(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the program without the profiler, on the rank where it takes longest.

    ``busy_us`` and the idle times sum to the step; without recorded device work ``busy_us`` and
    ``busy_fraction`` are null. ``drift``: the steps timed after the recording (``n_after``, median
    ``after_us``) differ from those before by more than their spread. ``inflation`` is how many times as long
    the recorded step is (``recorded_step_us``, its mean); ``matched_fraction`` the share of the light pass'
    kernels that were found in the full pass, null without a light pass.
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
    matched_fraction: float | None


class TimingRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of one rank cost without and with the profiler: that of ``as_it_runs``, for each rank.

    ``unprofiled_us`` is its median, ``profiled_us`` the mean of the recorded steps."""

    rank: int
    found_by: str
    unprofiled_steps: int
    unprofiled_us: float
    unprofiled_min_us: float
    unprofiled_max_us: float
    profiled_us: float | None


class StepTimesRow(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly the steps of one rank ran: their time, and the time its device was busy in them."""

    rank: int
    steps: int
    duration_mean_us: float
    duration_median_us: float
    duration_min_us: float
    duration_max_us: float
    duration_p10_us: float
    duration_p90_us: float
    busy_mean_us: float
    busy_median_us: float
    busy_min_us: float
    busy_max_us: float
    busy_p10_us: float
    busy_p90_us: float
    spread: float
    """The 90th less the 10th percentile of the steps' time, over their median."""


class StepDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What an outlier did more than the median step: a kernel, an op (host time of its own) or idle time (of
    a cause), which is its ``kind``."""

    kind: str
    name: str
    extra_us: float
    count: int
    usual_count: float


class StepOutlierRow(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    name: str
    duration_us: float
    median_us: float
    differences: list[StepDifference]
