"""What steps took, how evenly they ran, and what the slow ones did."""

from __future__ import annotations

import msgspec


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    start_us: float
    duration_us: float
    busy_us: float
    launches: int
    device_time_us: float
    rank: int


class TimingRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of one rank cost without and with the profiler: means over steps in a row, the device
    waited for at both ends. Minimum and maximum are the host's times of single steps: the device may
    lag behind."""

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
