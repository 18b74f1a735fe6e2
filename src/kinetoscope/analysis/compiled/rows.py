"""Compiled graphs and how much of the device's time is theirs, as rows of the document."""

from __future__ import annotations

import msgspec

from kinetoscope.compilation.model import CompileRow


class GraphCategory(msgspec.Struct, frozen=True, kw_only=True):
    category: str
    launches: int
    device_time_us: float
    share_of_graph: float
    share_of_device_time: float


class GraphRow(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled graph that was called (see ``graph_calls``), and its device time by category; ``host_us`` is
    the time inside the calls."""

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


class Coverage(CompileRow, frozen=True, kw_only=True):
    """Null where no device work was recorded."""

    compiled_share_of_device_time: float | None = None
    cudagraph_share_of_device_time: float | None = None


class UnmatchedKernel(CompileRow, frozen=True, kw_only=True):
    name: str
    device_time_us: float
    launches: int


class UnknownGraph(CompileRow, frozen=True, kw_only=True):
    hash: str
    device_time_us: float
    launches: int


class Matched(CompileRow, frozen=True, kw_only=True):
    """Device time of generated kernels, how far it could be traced back, and on what ground."""

    generated_us: float
    to_aten_ops_us: float
    to_source_us: float
    basis_us: dict[str, float]
    unmatched: tuple[UnmatchedKernel, ...]
    unknown_graphs: tuple[UnknownGraph, ...]
