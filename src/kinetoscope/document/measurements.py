"""Kernels and graphs that `bench` measured alone, configurations and settings that it and `tune` compared.

Results are as they lie on disk, so times are nanoseconds or seconds, as they were measured. Added is what
else is known of them.
"""

from __future__ import annotations

import msgspec

from kinetoscope.bench.autotune.configurations import TriedConfiguration
from kinetoscope.bench.autotune.configurations import Tuned as Tuned
from kinetoscope.bench.autotune.winners import Applied, Promise
from kinetoscope.bench.autotune.worth import Worth as Worth
from kinetoscope.bench.kernels.ncu import NcuRow
from kinetoscope.bench.kernels.replay import ModuleResult as ModuleResult
from kinetoscope.bench.kernels.timing import KernelResult
from kinetoscope.bench.measure.results import Gain as Gain
from kinetoscope.bench.measure.results import RatioToBase as RatioToBase
from kinetoscope.bench.tune.largest import LargestBatch as LargestBatch
from kinetoscope.bench.tune.largest import Try as Try
from kinetoscope.bench.tune.results import BatchesThatFit as BatchesThatFit
from kinetoscope.bench.tune.results import SettingRow as SettingRow
from kinetoscope.bench.tune.results import Tuning as Tuning
from kinetoscope.bench.versions.campaign import VersionRow as VersionRow
from kinetoscope.bench.versions.campaign import VersionsCompared as VersionsCompared


class InModel(msgspec.Struct, frozen=True):
    median_ns: float
    share_of_device_time: float


class BenchRow(msgspec.Struct, frozen=True):
    """A kernel measured alone, with what else is known of it."""

    kernel: KernelResult
    in_model: InModel | None
    counters: NcuRow | None
    worth: Worth | None


class BenchListing(msgspec.Struct, frozen=True):
    device: str
    peak_bandwidth: float | None  # bytes per second
    rows: list[BenchRow]
    notes: list[str]
    problems: tuple[str, ...]


class ReplayedWork(msgspec.Struct, frozen=True):
    """Device work of one name, or of one category, in a run of a graph."""

    name: str
    category: str
    launches: float
    device_time_ns: float
    share: float
    counters: NcuRow | None = None


class ReplayedGraph(msgspec.Struct, frozen=True):
    module: ModuleResult
    categories: list[ReplayedWork]
    kernels: list[ReplayedWork]


class ReplayListing(msgspec.Struct, frozen=True):
    graphs: list[ReplayedGraph]
    has_counters: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


class AutotuneRow(msgspec.Struct, frozen=True):
    """A kernel's configurations: the fastest, and the default."""

    kernel: Tuned
    fastest: list[TriedConfiguration]
    timed: int
    saves_in_model_ns: float | None


class SkippedKernels(msgspec.Struct, frozen=True):
    reason: str
    count: int
    could_win_ns: float


class PromiseRow(msgspec.Struct, frozen=True):
    """The promised saving of a graph's winners together, and the time of its replay without and with them."""

    promise: Promise
    before_ns: float
    after_ns: float


class AutotuneListing(msgspec.Struct, frozen=True):
    worth: list[Worth]
    skipped: list[SkippedKernels]
    rows: list[AutotuneRow]
    promises: list[PromiseRow]
    applied: Applied | None
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
