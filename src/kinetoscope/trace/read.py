"""A file to a Trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from kinetoscope.errors import NotATraceError
from kinetoscope.trace import cache
from kinetoscope.trace.container import open_supply
from kinetoscope.trace.damage import UNREADABLE_BYTES, described, is_loss
from kinetoscope.trace.model import DeviceProperties, Source, Trace
from kinetoscope.trace.recognise import refuse_document

if TYPE_CHECKING:
    from kinetoscope.trace.tables import Assembly

Progress = Callable[[int, int], None]
_HINT = "was it changed or copied badly? Record it again, or copy it again"
_LONGEST_NAME = 256  # characters of a device's
IN_PROCESS = 24 << 20  # bytes; below this starting processes costs more than it saves


def read(
    path: str | Path,
    *,
    rank: int | None = None,
    progress: Progress | None = None,
    kept: bool = True,
    links: bool = True,
) -> Trace:
    """Read one Kineto / Chrome JSON trace: plain, gzip or zstd, whole or damaged.

    ``rank``: that it belongs to, where the file does not say or is not to be believed. ``progress`` is called
    now and then with the bytes of the file read so far, and its size. ``kept``: its tables are, for the next
    time. ``links``: it has that by which its events were joined (see ``Trace.unlinked``).

    Raises NotATraceError where nothing in it is a trace (the message says what it is instead), InputError
    where it cannot be opened, MissingDependencyError where nothing installed here unpacks it, TooLargeError
    where it unpacks past the limit.
    """
    path = Path(path)
    trace = cache.recall(path, links=links)
    if trace is None:
        trace = _read(path, progress)
        if kept:
            cache.keep(path, trace)
        trace = trace if links else trace.unlinked()
    return trace if rank is None else replace(trace, source=replace(trace.source, rank=rank))


def _read(path: Path, progress: Progress | None) -> Trace:
    from kinetoscope.trace.cutter import Cutter  # not loaded where tables are kept, as what it reads with
    from kinetoscope.trace.workers import Workers, cores

    size = path.stat().st_size if path.is_file() else 0
    moved: Callable[[int], None] | None = None if progress is None else lambda at: progress(at, size)
    with closing(open_supply(path, moved)) as supply:
        start = supply.window(0, 1 << 16)
        is_small = not supply.reaches(IN_PROCESS)
        cutter = Cutter(supply, IN_PROCESS if is_small else supply.span)
        with Workers(1 if is_small else cores()) as workers:
            batches = workers.decode(cutter.spans())
            # Polars is loaded while the first spans are decoded.
            from kinetoscope.trace.link import link
            from kinetoscope.trace.tables import Assembly

            assembly = Assembly()
            for batch in batches:
                assembly.add(batch)
        metadata = cutter.metadata()
        unpacked = supply.end()
    if not assembly.holds_a_trace:
        if (bad := assembly.damages["bad-event"]) > 1:
            raise NotATraceError(f"none of its {bad:,} events can be read", where=str(path), hint=_HINT)
        _refuse_empty(path, start, metadata)
    if moved is not None:
        moved(size)
    return link(assembled(assembly, str(path), size, cutter.damages, metadata, unpacked))


def assembled(
    assembly: Assembly,
    path: str,
    size: int,
    damages: Mapping[str, int],
    metadata: Mapping[str, object],
    unpacked: int = 0,
) -> Trace:
    """The trace of what was decoded; nothing in it is joined. ``size`` and ``unpacked`` are the file's bytes,
    as it lies there and unpacked; ``damages`` are of the file, those of its events are the assembly's."""
    from kinetoscope.trace import schema

    tables = assembly.tables()
    damages = {**damages, **+assembly.damages}
    lost_share = damages.get(UNREADABLE_BYTES, 0) / max(unpacked, 1)
    source = Source(
        path,
        size,
        assembly.events,
        _rank(metadata),
        not any(map(is_loss, damages)),
        described(damages, lost_share, assembly.lost_ns),
        MappingProxyType(assembly.unused),
        lost_share,
        assembly.lost_ns,
    )
    return Trace(
        source=source,
        steps=schema.empty(schema.STEPS),
        **tables._asdict(),
        devices=_devices(metadata),
        metadata=MappingProxyType(dict(metadata)),
    )


def _refuse_empty(path: Path, start: bytes, metadata: Mapping[str, object]) -> NoReturn:
    if b'"traceEvents"' in start or metadata:
        raise NotATraceError(
            "the trace holds no events",
            where=str(path),
            hint="was the profiler active? With a schedule, p.step() must be called often enough",
        )
    refuse_document(path, start)


def _rank(metadata: Mapping[str, object]) -> int:
    distributed = metadata.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    return rank if type(rank) is int and 0 <= rank < 1 << 31 else 0


def _devices(metadata: Mapping[str, object]) -> tuple[DeviceProperties, ...]:
    entries = metadata.get("deviceProperties")
    if not isinstance(entries, list):
        return ()
    return tuple(
        _properties(index, entry)
        for entry in entries
        if isinstance(entry, dict) and isinstance(index := entry.get("id"), int)
    )


def _properties(index: int, entry: Mapping[str, object]) -> DeviceProperties:
    major, minor = entry.get("computeMajor"), entry.get("computeMinor")
    return DeviceProperties(
        index,
        str(entry.get("name", ""))[:_LONGEST_NAME],
        _count(entry.get("totalGlobalMem"), 1 << 53),
        (major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
        _count(entry.get("numSms"), 1 << 31),
        MappingProxyType(entry),
    )


def _count(value: object, below: int) -> int | None:
    """A number above 0, or null: files say absurd things."""
    return value if type(value) is int and 0 < value < below else None
