"""Devices, steps and phases, as rows of the document."""

from __future__ import annotations

import msgspec


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A device that did any work: over the whole recording unless the name says window (see ``window``).

    ``span_us`` is from the first device event's start to the last one's end; ``busy_us`` the union of all
    device intervals over all streams; ``compute_us``, ``copy_us`` and ``communication_us`` the same of each
    part (see ``work``): parts overlap, so they may sum to more. ``exposed_communication_us`` is communication
    while nothing computes, ``device_time_us`` the plain sum of durations. ``unattributed_kernels`` are device
    events whose launch is not in the recording, ``launches_without_kernel`` launch calls whose device work is
    not. ``window_start_us`` is on the trace's clock."""

    rank: int
    device: int
    name: str
    window_us: float
    span_us: float
    busy_us: float
    busy_fraction: float
    busy_fraction_of_span: float
    compute_us: float
    copy_us: float
    communication_us: float
    exposed_communication_us: float
    idle_us: float
    device_time_us: float
    kernel_launches: int
    unattributed_kernels: int
    launches_without_kernel: int
    device_events: int
    window_basis: str
    window_start_us: float = 0.0


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step by the device's clock (see ``periods``), from where its first work stands to where the next
    step's does; ``host_duration_us`` is from the host's mark to its next.

    ``busy_us`` is the union of device intervals between its start and end, added up over the rank's devices;
    ``launches`` are the device events whose launch lies in it (their own start, if they have none), and
    ``device_time_us`` is the sum of their durations. For an end of the last step that was not recorded, the
    window begins earlier (see ``window``): what was busy there is the last step's, so that steps that follow
    each other sum to what the window was busy."""

    name: str
    start_us: float
    duration_us: float
    host_duration_us: float
    busy_us: float
    launches: int
    device_time_us: float
    rank: int
    phase: str = "step"  # the kind of step: see ``PhaseRow``


class PhaseKernel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    device_time_us: float
    launches: int


class PhaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """Similar steps (``of`` is ``step``), or similar parts of requests (``request``).

    ``phase`` is train, forward, evaluate, request, or step where no ops were recorded, with a letter where
    there are several; of a request encode, prefill or decode. ``busy_us``, ``launches`` and
    ``device_time_us`` are medians; ``per_step`` says how many a step or request has, at the mean;
    ``kernels`` are those with most device time, over the whole phase.
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


class StepTimesRow(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly the steps of one rank ran, and the time its device was busy in them."""

    rank: int
    steps: int
    duration_median_us: float
    duration_min_us: float
    duration_max_us: float
    duration_p10_us: float
    duration_p90_us: float
    busy_median_us: float


class StepDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an outlier did more of than the median step: a kernel, an op (host time of its own) or
    idle time (of a cause), which is its ``kind``."""

    kind: str
    name: str
    extra_us: float
    count: int


class StepOutlierRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step that took longer than the others of its phase; ``differences`` are the largest first."""

    rank: int
    name: str
    duration_us: float
    median_us: float
    differences: list[StepDifference]
