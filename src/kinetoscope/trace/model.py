"""A trace in memory: immutable tables and what is known about where they came from."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    import polars as pl


# The key of a trace's metadata under which stands what recorded it, where that was not torch's profiler.
RECORDER = "recorder"
JOINED = "joined"  # and under this what was joined to it: a ``JoinedExport``


class JoinedExport(NamedTuple):
    """An account of what a recording of Nsight Systems added to a trace."""

    path: str  # the name of its file
    compared: int  # pieces of device work that should have been the same; ``matched`` those that were
    matched: int
    graph_nodes: int  # of them those whose node of a graph it tells
    ranges: int  # NVTX ranges that it added
    apart_ns: int  # median distance of the same work on both clocks, once these are fitted


class DeviceProperties(Struct, frozen=True):
    """One entry of the file's ``deviceProperties``."""

    index: int
    name: str
    total_memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    properties: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


class Damage(Struct, frozen=True):
    """One kind of thing that could not be read as it stood."""

    code: str  # a key of ``kinetoscope.trace.damage.DAMAGES``: ``truncated``, ``bad-event``, …
    text: str  # what happened, in words, with its number
    count: int  # events or bytes concerned


class Source(Struct, frozen=True):
    path: str
    bytes: int
    events: int  # elements of ``traceEvents``, lost ones included where they could be distinguished
    rank: int
    complete: bool = True  # nothing of the recording was lost between the profiler and here
    damages: tuple[Damage, ...] = ()  # what was lost or repaired, with counts
    # events that no table holds (counters, marks), counted by ``ph cat``
    unused: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    lost_share: float = 0.0  # part of the file's bytes, unpacked, that could not be read
    lost_ns: int = 0  # time of the recording that those bytes may span


# Identity: analyses remember their result per trace.
class Trace(Struct, frozen=True, eq=False, weakref=True):
    """One Kineto / Chrome JSON trace as tables (columns: ``kinetoscope.trace.schema``).

    ``host_events`` holds what ran on host threads, ``device_events`` only work of devices (kernels, copies,
    memsets); annotations that the profiler draws on device lanes are never work: ``device_annotations``.
    Of both tables some arguments (``schema.ARGUMENTS``) are apart, once for all events that say the same:
    ``arguments`` is the row of ``host_arguments`` and ``device_arguments``.
    """

    source: Source
    lanes: pl.DataFrame
    host_events: pl.DataFrame
    device_events: pl.DataFrame
    steps: pl.DataFrame
    device_annotations: pl.DataFrame
    flows: pl.DataFrame
    memory: pl.DataFrame
    host_arguments: pl.DataFrame
    device_arguments: pl.DataFrame
    devices: tuple[DeviceProperties, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def rank(self) -> int:
        return self.source.rank

    def unlinked(self) -> Trace:
        """Without flows and External ids: by these its events were joined, and no analysis asks for them."""
        import polars as pl

        none = pl.lit(None, pl.Int64).alias("external_id")
        host, device = (table.with_columns(none) for table in (self.host_events, self.device_events))
        return replace(self, host_events=host, device_events=device, flows=self.flows.clear())

    def table(self, name: str) -> pl.DataFrame:
        """The table of that name (a key of ``schema.TABLES``) as it is shown."""
        from kinetoscope.trace import schema  # loads Polars

        table: pl.DataFrame = getattr(self, name)
        if name not in schema.ARGUMENTS:
            return table
        return with_arguments(table, getattr(self, name.replace("events", "arguments"))).select(
            *schema.TABLES[name]
        )

    @overload
    def argument(self, name: str, rows: pl.Series | None = None) -> pl.Series: ...
    @overload
    def argument(self, name: str, rows: int) -> Any: ...
    def argument(self, name: str, rows: pl.Series | int | None = None) -> Any:
        """An argument of all host events, of those rows, or of one."""
        row = self.host_events["arguments"]
        if isinstance(rows, int):
            return None if row[rows] is None else self.host_arguments[name][row[rows]]
        return self.host_arguments[name].gather(row if rows is None else row.gather(rows))


def with_arguments(events: pl.DataFrame, arguments: pl.DataFrame, *names: str) -> pl.DataFrame:
    row = events["arguments"]
    return events.with_columns(arguments[name][row].alias(name) for name in names or arguments.columns)
