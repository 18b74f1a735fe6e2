"""The whole report, under the contract's keys.

Keys may be added; none is renamed or dropped without raising ``SCHEMA``.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from kinetoscope.document.compilation import Compilation
from kinetoscope.document.devices import DeviceRow, IdleRow, LaunchRow
from kinetoscope.document.findings import FindingRow
from kinetoscope.document.kernels import CategoryRow, GraphRow, KernelRow, OpRow
from kinetoscope.document.memory import AllocatorRow, MemoryPeak, MemoryRow
from kinetoscope.document.page import Page
from kinetoscope.document.ranks import Ranks
from kinetoscope.document.replay import ReplayRow
from kinetoscope.document.sources import EnvironmentRow, Health, SourceRow
from kinetoscope.document.steps import *

SCHEMA = "kinetoscope.report/1"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    kinetoscope: str
    sources: list[SourceRow]
    environment: EnvironmentRow
    devices: list[DeviceRow]
    categories: list[CategoryRow]
    kernels: list[KernelRow]
    steps: list[StepRow]
    ops: list[OpRow]
    findings: list[FindingRow]
    health: Health
    idle: list[IdleRow]
    as_it_runs: AsItRunsRow | None = None
    """Null where nothing was timed without the profiler, as of a bare trace."""
    timings: list[TimingRow] = []
    step_levels: StepLevels | None = None
    """Null of a bare trace, and of recordings made before steps had levels."""
    whole_run: WholeRunRow | None = None
    """Null where the whole run was not watched, as of a bare trace, or no steps were seen in it."""
    phases: list[PhaseRow] = []
    serving: Serving | None = None
    """Steps that a serving engine marked, by phase, batch and graph mode; null elsewhere."""
    graph_replays: GraphReplays | None = None  # null where no graph was replayed
    step_times: list[StepTimesRow] = []
    step_outliers: list[StepOutlierRow] = []
    launching: list[LaunchRow] = []
    memory: list[MemoryRow] = []
    allocator: list[AllocatorRow] = []
    memory_peaks: list[MemoryPeak] = []
    graphs: list[GraphRow] = []
    replay: ReplayRow | None = None  # null where nothing was recorded that could be replayed
    ranks: Ranks | None = None  # null of one rank
    compilation: Compilation | None = None
    unread: list[str] = []  # the files of the folder or recording that cannot be read, and why
    page: Page | UnsetType = UNSET  # set for the HTML page alone
