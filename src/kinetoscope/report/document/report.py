"""The Report document: the JSON contract as types. Renderers read this and nothing else.

Keys may be added; none is renamed or dropped without raising ``SCHEMA``. Times are microseconds as in the trace.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kinetoscope.report.document.compilation import Compilation

SCHEMA = "kinetoscope.report/1"


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    bytes: int
    events: int
    rank: int
    complete: bool
    notes: list[str]


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
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


class CategoryRow(msgspec.Struct, frozen=True, kw_only=True):
    category: str
    device_time_us: float
    share_of_device_time: float
    share_of_window: float
    launches: int
    distinct_kernels: int


class KernelOp(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    launches: int
    device_time_us: float


class ListingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Device time under one name: of a kernel, or of whatever kernels are summed by."""

    name: str
    short_name: str
    category: str
    launches: int
    device_time_us: float
    share_of_device_time: float
    mean_us: float
    median_us: float
    min_us: float
    max_us: float
    p90_us: float


class KernelRow(ListingRow, frozen=True, kw_only=True):
    """``bytes`` and ``flops`` are of all launches, and null unless every one's cost is known; ``speed_of_light`` is of
    the ``costed_launches`` whose cost model holds: their time at the device's peaks, over the time they took."""

    ops: list[KernelOp]
    kind: str = "kernel"
    graph: str | None = None
    source: str | None = None
    bytes: int | None = None
    flops: int | None = None
    speed_of_light: float | None = None
    costed_launches: int = 0


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    start_us: float
    duration_us: float
    busy_us: float
    launches: int
    device_time_us: float
    rank: int


class TimingRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of one rank cost without and with the profiler: means over steps in a row, the device waited for at
    both ends. The least and the most are the host's times of single steps, which the device may lag behind."""

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
    """What an outlier did more than the median step: a kernel, an op (host time of its own) or idle time of a cause."""

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


class QueuePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the window: launches made in it, and how deep the queue was at them."""

    start_us: float
    launches: int
    depth_mean: float
    depth_max: int


class LaunchRow(msgspec.Struct, frozen=True, kw_only=True):
    """How the launches on one device went. Latency: from the call's start to the start of its work. Depth: launches
    made whose work had not ended, this one included."""

    rank: int
    device: int
    launches: int
    launches_per_step: float | None
    work_per_launch: float
    host_us: float
    host_median_us: float
    host_p90_us: float
    host_us_per_launch: float | None
    """From one launch of a thread to its next, at the median."""
    latency_median_us: float
    latency_p10_us: float
    latency_p90_us: float
    depth_median: float
    depth_max: int
    on_idle_device: int
    shorter_than_call: int
    """Launches whose work took the device less time than the call took the host."""
    short_device_us: float
    queue: list[QueuePoint]


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the recording: the most that was allocated and reserved in it."""

    start_us: float
    allocated_bytes: int
    reserved_bytes: int | None


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """What PyTorch's allocator held of one device."""

    rank: int
    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_us: float
    peak_op: str | None
    first_allocated_bytes: int
    last_allocated_bytes: int
    allocations: int
    releases: int
    turned_over_bytes: int
    reserved_growths: int
    over_time: list[MemoryPoint]


class AllocatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the driver that takes or gives back device memory."""

    rank: int
    name: str
    calls: int
    calls_in_window: int
    host_us: float
    host_us_in_window: float


class OpRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of torch's own op table; rows of one name differ in ``kind``."""

    name: str
    kind: str = "cpu_op"
    calls: int
    host_self_us: float
    host_total_us: float
    device_self_us: float
    device_total_us: float


class GraphCategory(msgspec.Struct, frozen=True, kw_only=True):
    category: str
    launches: int
    device_time_us: float
    share_of_graph: float
    share_of_device_time: float


class GraphRow(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled graph that was called, and its device time by category."""

    graph: str
    hash: str
    compile_id: str | None
    direction: str
    calls: int
    host_us: float
    launches: int
    device_time_us: float
    share_of_device_time: float
    categories: list[GraphCategory]


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    start_us: float
    end_us: float
    events: list[int]


class FindingRow(msgspec.Struct, frozen=True, kw_only=True):
    """``proof`` is the command that tries the advice; the ``measured`` keys are what it found, null until it has run.
    ``measured_verdict`` is faster, slower, cannot tell, fails or differs (in its output)."""

    rule: str
    severity: str
    title: str
    saving_us: float
    saving_basis: str
    evidence: list[EvidenceRow]
    advice: str
    source: str | None = None
    saving_on_critical_path: bool = False
    share_of_step: float = 0.0
    snippet: str | None = None
    proof: str | None = None
    ranks: list[int] = []
    measured_saving_us: float | None = None
    measured_interval_us: tuple[float, float] | None = None
    measured_basis: str | None = None
    measured_verdict: str | None = None

    @property
    def is_measured(self) -> bool:
        return self.measured_verdict is not None


class HealthNote(msgspec.Struct, frozen=True, kw_only=True):
    """``gravity`` is info, degraded or unreliable; ``rank`` is null for a note about all of them."""

    code: str
    text: str
    share_of_device_time: float = 0.0
    gravity: str = "degraded"
    rank: int | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    verdict: str
    notes: list[HealthNote]


class IdleRow(msgspec.Struct, frozen=True, kw_only=True):
    device: int
    cause: str
    idle_us: float
    share_of_window: float
    rank: int = 0
    gaps: int = 0
    busy_inside_collectives_us: float = 0.0
    text: str | None = None
    """What explains most of it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    kinetoscope: str
    sources: list[SourceRow]
    environment: dict[str, Any]
    devices: list[DeviceRow]
    categories: list[CategoryRow]
    kernels: list[KernelRow]
    steps: list[StepRow]
    ops: list[OpRow]
    findings: list[FindingRow]
    health: Health
    idle: list[IdleRow]
    timings: list[TimingRow] = []
    step_times: list[StepTimesRow] = []
    step_outliers: list[StepOutlierRow] = []
    launching: list[LaunchRow] = []
    memory: list[MemoryRow] = []
    allocator: list[AllocatorRow] = []
    graphs: list[GraphRow] = []
    compilation: Compilation | None = None
    unread: list[str] = []
    """What stands in the folder or recording and cannot be read, and why."""
