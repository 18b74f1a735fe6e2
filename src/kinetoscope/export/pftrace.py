"""A run in Perfetto's own format: a third of its Chrome JSON, with whole nanoseconds.

Events are begun and ended on tracks of ours, one a lane, below one a process or device. Field numbers are
those of perfetto/trace/trace_packet.proto and track_event/*.proto; see
https://perfetto.dev/docs/reference/synthetic-track-event.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from kinetoscope.analysis.kernels.work import work
from kinetoscope.export.memory_counters import counts
from kinetoscope.export.nesting import DEVICE, HOST, changes, named, nested
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace, with_arguments


def varint(number: int) -> bytes:
    """A number of 0 or more: seven bits a byte, the lowest first, the highest bit of each saying "more"."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def number(field: int, value: int) -> bytes:
    """An unsigned number, an enum's, or a signed one: a negative one is written as its 64 bits."""
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def fixed(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + value.to_bytes(8, "little")


def message(field: int, *parts: bytes) -> bytes:
    """A message of parts that are fields themselves."""
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    return message(field, value.encode())


PACKET, TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS, TRACK = 1, 8, 10, 11, 12, 13, 60
TYPE, NAME_ID, TRACK_ID, ANNOTATION, FLOW, FLOW_END = 9, 10, 11, 4, 47, 48
COUNTED, BYTES = 30, message(8, number(3, 3))  # an event's value; of a track: its values are bytes
BEGIN, END, COUNT = 1, 2, 4
CLEARED, NEEDED = 1, 2  # what has been interned: begins here, is needed here
OURS = number(SEQUENCE, 1)
COUNTERS = 1 << 12  # tracks of a rank's own: processes and devices are fewer
ARGUMENTS = ["category", "grid", "block", "registers", "shared_memory_bytes", "occupancy_percent", "bytes"]


def render(run: LoadedRun) -> bytes:
    """All ranks, one below the other; times are those of the traces."""
    tables = [nested(trace) for trace in run.traces]
    names = pl.concat([table["name"].cast(pl.String) for table in tables]).unique(maintain_order=True)
    packets = [_interned(names)]
    flows = 0
    for trace, events in zip(run.traces, tables, strict=True):
        coded = events.with_columns(
            iid=events["name"].cast(pl.String).replace_strict(names, range(1, len(names) + 1))
        )
        packets += _tracks(trace, coded, several=len(run.traces) > 1)
        packets += _slices(trace, coded, flows)
        packets += _memory(run, trace)
        flows += len(trace.device_events)
    return b"".join(packets)


def _interned(names: pl.Series) -> bytes:
    rows = [message(2, number(1, iid), text(2, name)) for iid, name in enumerate(names, 1)]
    kinds = [message(3, number(1, iid), text(2, name)) for iid, name in enumerate(ARGUMENTS, 1)]
    return message(PACKET, OURS, number(FLAGS, CLEARED), message(INTERNED, *rows, *kinds))


def _track(trace: Trace, lane: int, extra: int = 0) -> int:
    """A track's id: 0 for none, so ranks count from 1."""
    return (trace.rank + 1) << 40 | (lane + 1) << 16 | extra


def _tracks(trace: Trace, events: pl.DataFrame, *, several: bool) -> Iterator[bytes]:
    """One a process or device, and below it one a lane of its events."""
    parents: dict[str, int] = {}
    for lane in named(trace, events, several=several):
        if lane.process not in parents:
            parents[lane.process] = _track(trace, -1, len(parents))
            own = number(1, parents[lane.process]), text(2, lane.process)
            yield message(PACKET, message(TRACK, *own), OURS)
        own = number(1, _track(trace, lane.lane, lane.extra)), text(2, lane.thread)
        yield message(PACKET, message(TRACK, *own, number(5, parents[lane.process])), OURS)


def _slices(trace: Trace, events: pl.DataFrame, first_flow: int) -> Iterator[bytes]:
    """Each lane from left to right: what has ended is ended before the next begins."""
    arguments, (begins, ends) = _arguments(trace), _arrows(trace, first_flow)
    tracks: dict[tuple[int, int], bytes] = {}
    for place, at, begun in changes(events, "iid", "of", "row"):
        track = tracks.get(place) or tracks.setdefault(place, number(TRACK_ID, _track(trace, *place)))
        if begun is None:
            yield _event(at, number(TYPE, END) + track)
            continue
        iid, of, row = begun
        more = arguments[row] + ends[row] if of == DEVICE else begins.get(row, b"") if of == HOST else b""
        yield _event(at, number(TYPE, BEGIN) + track + number(NAME_ID, iid) + more)


def _memory(run: LoadedRun, trace: Trace) -> Iterator[bytes]:
    """Counters of device memory: a track a kind, below one a device; from the trace's own zero on."""
    tracks: dict[str, int] = {}

    def track(name: str, label: str, *extra: bytes) -> Iterator[bytes]:
        if name not in tracks:
            tracks[name] = _track(trace, -1, COUNTERS + len(tracks))
            yield message(PACKET, message(TRACK, number(1, tracks[name]), text(2, label), *extra), OURS)

    several = f"rank {trace.rank} · " if len(run.traces) > 1 else ""
    for one in counts(run, trace):
        device = f"GPU {one.device} memory"
        yield from track(device, several + device)
        for kind, size in one.bytes.items():
            name = f"{device} {kind}"
            yield from track(name, kind, number(5, tracks[device]), BYTES)
            counted = number(TYPE, COUNT) + number(TRACK_ID, tracks[name]) + number(COUNTED, size)
            yield _event(one.start_ns, counted)


def _event(at: int, body: bytes) -> bytes:
    """An event at a time that the format can say: it has none before 0."""
    return message(
        PACKET, number(TIMESTAMP, max(at, 0)), OURS, number(FLAGS, NEEDED), message(TRACK_EVENT, body)
    )


def _arrows(trace: Trace, first: int) -> tuple[dict[int, bytes], list[bytes]]:
    """An arrow from each launch to its work: its begins by the launch's row, and its end of each work."""
    begins: dict[int, bytes] = {}
    ends: list[bytes] = []
    for flow, launch in enumerate(trace.device_events["launch"], first + 1):
        if launch is not None:
            begins[launch] = begins.get(launch, b"") + fixed(FLOW, flow)
        ends.append(b"" if launch is None else fixed(FLOW_END, flow))
    return begins, ends


def _arguments(trace: Trace) -> list[bytes]:
    """How each piece of device work was launched; equal ones are encoded once."""
    rows = with_arguments(work(trace), trace.device_arguments).select(
        pl.col("category", "grid", "block").cast(pl.String), *ARGUMENTS[3:]
    )
    written = {row: _annotated(row) for row in rows.unique().iter_rows()}
    return [written[row] for row in rows.iter_rows()]


def _annotated(row: tuple[object, ...]) -> bytes:
    found = [
        message(
            ANNOTATION,
            number(1, iid),
            number(4, int(value)) if isinstance(value, int | float) else text(6, str(value)),
        )
        for iid, value in enumerate(row, 1)
        if value is not None
    ]
    return b"".join(found)
