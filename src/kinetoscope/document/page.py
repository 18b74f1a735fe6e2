"""Rows of the page alone: too large for the JSON, which other tools read."""

from __future__ import annotations

import msgspec

from kinetoscope.document.timeline import PackedColumn, Timeline
from kinetoscope.hardware.nvml import NvmlReading


class KernelPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a kernel in its module, from 1, both included."""

    name: str
    first_line: int
    last_line: int


class GeneratedModule(msgspec.Struct, frozen=True, kw_only=True):
    """The module that Inductor wrote of one graph (``graph``: its row in the compilation), and that graph."""

    graph: int
    code: str
    post_grad: str | None
    kernels: list[KernelPlace]


class FrameText(msgspec.Struct, frozen=True, kw_only=True):
    """A graph of one frame as torch printed it: ``dynamo``, ``joint``, ``forward``, …"""

    frame: int
    name: str
    text: str


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the program as the recording keeps it."""

    path: str
    text: str


class DeviceClock(NvmlReading, frozen=True, kw_only=True, omit_defaults=False):
    """NVML's reading of a device at a moment of the run."""

    rank: int
    device: int
    moment: str


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The peak rates of a recorded device, per second; ``peaks`` by dtype."""

    device: str
    bandwidth: float
    peaks: dict[str, float]


class BenchedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that `bench` measured alone: times in nanoseconds, ``cold`` and ``hot`` caches.

    ``reference`` says whether it computes what it should, ``could_win_ns`` what tuning could win in a run.
    """

    name: str
    bytes: int
    cold_ns: tuple[float, float, float] | None  # 10th percentile, median, 90th percentile
    samples: int
    hot_ns: float | None
    configuration: dict[str, int] | None
    registers: int | None
    spills: int | None
    reference: str | None
    could_win_ns: float | None
    error: str | None


class AllocatorEvents(msgspec.Struct, frozen=True, kw_only=True):
    """All that torch's allocator did on one device, event by event, and what it had before the first."""

    peak: int  # the row of ``memory_peaks`` that it is of
    actions: list[str]  # what the column ``action`` numbers, in torch's words
    released: str  # the action after which the memory of a block may be used again
    streams: list[str]  # what the column ``stream`` numbers
    # what the column ``context`` numbers: what the program had torch note, what was compiling
    contexts: list[tuple[str, str]]
    # address, bytes and stream of what the allocator had of the driver before the first event
    segments: list[tuple[int, int, str]]
    blocks: list[tuple[int, int, int]]  # address, requested bytes and stack of what it had given out before
    # ``file:line function``; a stack is rows of it, the innermost first, and the first has none
    frames: list[str]
    stacks: list[list[int]]
    # of all events ``action``, ``time`` (µs since the history began), ``address`` (of ``oom``: the bytes that
    # the driver had free), ``bytes``, ``stream``, ``stack`` (of ``stacks``) and ``context``
    columns: list[PackedColumn]
    settings: dict[str, str]  # of the allocator, as torch writes them
    left_out: int  # the number of events before these


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The page's own rows, in addition to the JSON."""

    timeline: Timeline | None
    # the program's files; none where the recording keeps no source, as a bare trace
    program: list[SourceFile]
    clocks: list[DeviceClock]
    modules: list[GeneratedModule]
    frame_texts: list[FrameText]
    roofs: list[Roof]
    benches: list[BenchedKernel]  # kernels measured alone in this recording, each by its newest measurement
    meanings: dict[str, str]  # of names that stand in the report, by the glossary
    command: list[str] = []  # what was run; empty where the input does not say
    # of the allocator of the device, the most of any rank; of the process, without one
    peak_memory_bytes: int | None = None
    # one history for each device and moment of ``memory_peaks`` that has one
    allocator: list[AllocatorEvents] = []
    # what the events lack that ``kinetoscope run`` records on request: names of its options
    unrecorded: list[str] = []
