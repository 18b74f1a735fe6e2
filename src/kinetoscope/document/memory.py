"""Memory of PyTorch's allocator: what was allocated, by whom, and what it requested of the driver."""

from __future__ import annotations

import msgspec

from kinetoscope.analysis.memory.rows import CallsRow as CallsRow
from kinetoscope.analysis.memory.rows import Fits as Fits
from kinetoscope.analysis.memory.rows import SegmentRow as SegmentRow
from kinetoscope.document.findings import FindingRow


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """An interval of the recording: the most that was allocated and reserved in it."""

    start_us: float
    allocated_bytes: int
    reserved_bytes: int | None


class HeldRow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that was allocated at a device's peak, by one op of one module and line (``file.py(12):
    function``); null: not recorded."""

    op: str | None
    module: str | None
    line: str | None
    bytes: int
    allocations: int


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """PyTorch's allocator on one device over the recording."""

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
    over_time: list[MemoryPoint]
    held_at_peak: list[HeldRow]  # the most bytes first; with what follows they add up to the peak
    held_from_before_bytes: int | None
    """Of the peak what was allocated before the recording began; null where that is not known."""


class AllocatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the driver that takes or gives back device memory."""

    rank: int
    name: str
    calls: int
    calls_in_window: int
    host_us: float
    host_us_in_window: float


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what was reserved at the peak: a role of tensors, or memory that no tensor has
    (rounding, fragmentation, cached). All parts sum to ``reserved_bytes``, byte by byte."""

    part: str
    bytes: int
    share_of_reserved: float
    allocations: int


class HolderRow(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a part of the memory at the peak; all rows sum to ``requested_bytes``."""

    role: str
    owner: str
    line: str | None
    allocations: int
    bytes: int
    largest_bytes: int
    op: str | None  # of the trace, that made the largest; null where the trace did not see it
    stack: list[str]  # ``file:line function`` of the largest one's allocation, the innermost first


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """The moment of an interval of the history when most was allocated."""

    time_us: float
    reserved_bytes: int
    bytes: list[int]  # by role, in the order of ``roles``
    idle_in_pools_bytes: int = 0
    """Of what private pools, as of CUDA graphs, have of the driver: what no tensor has, nor can get that is
    not of the pool."""


class MemoryBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One allocation: where it lay, from when to when. Null: from before the history, or beyond it.

    ``name`` is the program's own for it, ``stack`` a row of the peak's ``stacks``. ``user_metadata`` is what
    the program had torch note of its allocations, ``compile_context`` what was compiling, ``pool`` torch's
    pair of numbers of a private pool, null of the default one.
    """

    start_us: float | None
    end_us: float | None
    address: int
    bytes: int
    role: str
    owner: str
    line: str | None
    name: str | None
    module: str | None
    op: str | None
    stack: int
    user_metadata: str | None = None
    compile_context: str | None = None
    pool: tuple[int, int] | None = None


class GrowthRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line whose memory grows with every recorded step."""

    line: str | None
    owner: str
    role: str
    bytes_per_step: int
    bytes: int
    names: list[str]
    grows: str  # allocations: one more is kept in each step; bytes: one is replaced by a larger one


class GivenBackRow(msgspec.Struct, frozen=True, kw_only=True):
    """Cached memory that was given back to the driver, as often as one line did so."""

    cause: str  # room: an allocation found none before; empty_cache: nothing needed it
    line: str | None
    times: int
    steps: int  # recorded ones in which it was
    segments: int
    bytes: int
    again_bytes: int  # that were taken of the driver afterwards, before the next time


class MemoryPeak(msgspec.Struct, frozen=True, kw_only=True):
    """One device's memory by the allocator's history, at the moment when most was allocated. Times
    are microseconds since the history began."""

    rank: int
    device: int
    moment: str
    """recorded steps, history (no steps are known), out of memory, snapshot (no history was kept), chosen,
    timeline (of the profiler: what was reserved is not known, and ``reserved_bytes`` is what was
    allocated)."""
    failed_bytes: int | None = None
    failed_by: str | None = None
    """The requester: a module, a function or autograd; null where no stack was recorded."""
    failed_line: str | None = None
    failed_stack: list[str] = []
    free_bytes: int | None = None  # memory that the driver had free when the allocation failed
    annotations: list[str] = []  # the program's named ranges at that moment, the outermost first
    peak_us: float
    history_us: float
    requested_bytes: int  # the bytes that tensors requested
    reserved_bytes: int  # memory that the allocator had taken from the driver
    outside_bytes: int | None = None
    """Of the device, at the snapshot: other processes, the driver, libraries with allocators of their own."""
    total_bytes: int | None = None
    """The most that tensors requested since the program began, by the allocator's own count."""
    parts: list[MemoryPart]
    holders: list[HolderRow] = []
    roles: list[str]
    over_time: list[MemorySample]
    blocks: list[MemoryBlock] = []  # the largest of the peak, and of those before and after it
    stacks: list[list[str]] = []  # ``file:line function``, the innermost first; the first is empty
    traced_us: float | None = None
    """The time on the trace's clock when the history begins; null where neither is known."""
    growth: list[GrowthRow] = []
    given_back: list[GivenBackRow] = []  # the most bytes first
    segments: list[SegmentRow] = []
    """Of the peak, most free bytes first; empty where they grow by pages and the history goes on."""
    calls: list[CallsRow] = []  # depth first; calls of less than a hundredth are left out
    fits: Fits | None = None
    snapshot: str  # the file, which torch's own viewer reads
    notes: list[str]


class MemoryPeaks(msgspec.Struct, frozen=True, kw_only=True):
    peaks: list[MemoryPeak]
    unread: list[str] = []
    memory: list[MemoryRow] = []  # by the traces' own events, where those were recorded
    frees: list[FindingRow] = []
    """The findings whose advice frees memory at the peak, each by itself: they do not add up."""
