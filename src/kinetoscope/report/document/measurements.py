"""What `bench` and `tune` show: kernels and graphs measured alone, configurations and settings side by side.

Most of it is an excerpt of a result on disk: what has a result's name has its unit and meaning. So times are
nanoseconds or seconds, as they were measured.
"""

from __future__ import annotations

import msgspec


class Measurement(msgspec.Struct, frozen=True):
    median_ns: float
    p10_ns: float
    p90_ns: float
    n: int


class Counters(msgspec.Struct, frozen=True):
    """Of Nsight Compute; percentages are of the device's speed of light."""

    duration_ns: float
    memory_percent: float | None
    compute_percent: float | None


class InModel(msgspec.Struct, frozen=True):
    """A kernel in the recorded program."""

    median_ns: float
    share_of_device_time: float


class WorthRow(msgspec.Struct, frozen=True):
    """What tuning a kernel could win in a run of its graph; ``skipped`` says why it is not tuned."""

    name: str
    launches_per_run: int
    cold_ns: float
    least_ns: float
    speed: float
    could_win_ns: float
    is_near: bool
    skipped: str | None


class ReferenceCheck(msgspec.Struct, frozen=True):
    status: str
    text: str


class BenchRow(msgspec.Struct, frozen=True):
    """A kernel measured alone, beside what else is known of it."""

    name: str
    category: str
    launches_per_run: int
    bytes: int
    flops: int | None
    configuration: dict[str, int] | None
    registers: int | None
    spills: int | None
    shared_memory_bytes: int | None
    cold: Measurement | None
    hot: Measurement | None
    reference: ReferenceCheck | None
    error: str | None
    in_model: InModel | None
    counters: Counters | None
    worth: WorthRow | None


class BenchListing(msgspec.Struct, frozen=True):
    device: str
    peak_bandwidth: float | None
    """Bytes per second."""
    rows: list[BenchRow]
    notes: list[str]
    problems: list[str]


class WorkRow(msgspec.Struct, frozen=True):
    """Device work of one name, or of one category, in a run of a graph."""

    name: str
    category: str
    launches: float
    device_time_ns: float
    share: float
    counters: Counters | None = None


class ReplayedGraph(msgspec.Struct, frozen=True):
    module: str
    aot_id: str
    wall: Measurement
    busy_ns: float | None
    span_ns: float | None
    peak_memory_bytes: int | None
    categories: list[WorkRow]
    kernels: list[WorkRow]
    notes: list[str]


class ReplayListing(msgspec.Struct, frozen=True):
    graphs: list[ReplayedGraph]
    has_counters: bool
    problems: list[str]


class Gain(msgspec.Struct, frozen=True):
    """In a run of the graph, with the 95 % interval."""

    ns: float
    low_ns: float
    high_ns: float


class WinnerComparison(msgspec.Struct, frozen=True):
    """With the default: below 1 is faster."""

    ratio: float
    low: float
    high: float
    noise_floor: float
    verdict: str


class ConfigurationRow(msgspec.Struct, frozen=True):
    configuration: dict[str, int]
    origin: str
    median_ns: float
    registers: int | None
    spills: int | None


class AutotuneRow(msgspec.Struct, frozen=True):
    """A kernel's configurations: the fastest, and the default."""

    name: str
    launches_per_run: int
    default: dict[str, int]
    winner: dict[str, int]
    comparison: WinnerComparison | None
    """Null where the default won."""
    gain: Gain
    fastest: list[ConfigurationRow]
    timed: int
    unusable: int
    saves_in_model_ns: float | None


class SkippedKernels(msgspec.Struct, frozen=True):
    reason: str
    count: int
    could_win_ns: float


class PromiseRow(msgspec.Struct, frozen=True):
    """What the winners of a graph promise together, and what its replay with and without them says."""

    aot_id: str
    promised: Gain
    measured: Gain
    outcome: str
    before_ns: float
    after_ns: float


class AppliedTable(msgspec.Struct, frozen=True):
    table: str
    lines: list[str]
    kernels: list[str]
    picked_up: list[str]


class AutotuneListing(msgspec.Struct, frozen=True):
    worth: list[WorthRow]
    skipped: list[SkippedKernels]
    rows: list[AutotuneRow]
    promises: list[PromiseRow]
    applied: AppliedTable | None
    problems: list[str]


class SettingName(msgspec.Struct, frozen=True):
    name: str
    batch: str | None
    as_written: bool


class SettingRow(msgspec.Struct, frozen=True):
    setting: SettingName
    label: str
    as_written: bool
    step_s: float | None
    samples_per_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str | None
    compile_s: float | None
    break_even_steps: int | None
    peak_memory_bytes: int | None
    graph_breaks: int
    agrees: bool | None
    error: str | None


class TuneListing(msgspec.Struct, frozen=True):
    command: list[str]
    device: str
    steps_by: str | None
    step_name: str | None
    rounds: int
    tokens_per_sample: int | None
    rows: list[SettingRow]
    recommendation: str
    lines: list[str]
