"""A file to a Trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing as closed_after
from pathlib import Path
from typing import Any

from kinetoscope.errors import NotATraceError
from kinetoscope.trace import schema
from kinetoscope.trace.container import open_supply
from kinetoscope.trace.cutter import Cutter
from kinetoscope.trace.link import link
from kinetoscope.trace.model import DeviceProperties, Source, Trace
from kinetoscope.trace.spans import Span, decode_span
from kinetoscope.trace.tables import Assembly
from kinetoscope.trace.workers import Workers, cores

Progress = Callable[[int, int], None]
IN_PROCESS = 24 << 20  # bytes; below this starting processes costs more than it saves


def read(path: str | Path, *, rank: int | None = None, progress: Progress | None = None) -> Trace:
    """Read one Kineto / Chrome JSON trace into tables."""
    path = Path(path)
    with closed_after(open_supply(path)) as supply:
        cutter = Cutter(supply)
        assembly = Assembly()
        many = supply.reaches(IN_PROCESS)
        for _, batch in _decoded(cutter.spans(), cores() if many else 0):
            assembly.add(batch)
        metadata = cutter.metadata()
        size = path.stat().st_size
    if not assembly.events:
        raise NotATraceError("no trace", where=str(path))
    tables = assembly.tables()
    distributed: Any = metadata.get("distributedInfo") or {}
    return link(
        Trace(
            source=Source(
                str(path),
                size,
                assembly.events,
                int(rank if rank is not None else distributed.get("rank", 0)),
            ),
            lanes=tables.lanes,
            host_events=tables.host_events,
            device_events=tables.device_events,
            steps=schema.empty(schema.STEPS),
            device_annotations=tables.device_annotations,
            flows=tables.flows,
            memory=tables.memory,
            devices=tuple(_properties(d) for d in metadata.get("deviceProperties") or []),
            metadata=metadata,
        )
    )


def _decoded(spans: Iterable[Span], workers: int) -> Iterator[tuple[Span, Any]]:
    if not workers:
        for span in spans:
            yield span, decode_span(span)
        return
    with Workers(workers) as pool:
        yield from pool.decode(spans)


def _properties(entry: dict[str, Any]) -> DeviceProperties:
    capability = (entry["computeMajor"], entry["computeMinor"]) if "computeMajor" in entry else None
    return DeviceProperties(
        int(entry["id"]),
        str(entry["name"]),
        entry.get("totalGlobalMem"),
        capability,
        entry.get("numSms"),
        entry,
    )
