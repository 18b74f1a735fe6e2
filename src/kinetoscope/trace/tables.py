"""Packed columns of many chunks to the declared tables."""

from __future__ import annotations

import zlib
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import polars as pl

from kinetoscope.trace import schema
from kinetoscope.trace.columns import Alphabet, CodeTables, array, split, unpacked
from kinetoscope.trace.damage import UNREADABLE_BYTES
from kinetoscope.trace.decoding.events import DEVICE_KINDS, TABLES
from kinetoscope.trace.decoding.packing import Batch, Codes
from kinetoscope.trace.gaps import LostBytes, spanned_ns
from kinetoscope.trace.tree import nested, sorted_by_lane

_DAY_NS, _FAR = 86_400_000_000_000, 100
_LASTING = ("ops", "calls", "python", "device")
_TIMED = ("ops", "calls", "python", "device", "notes", "flows", "instants")
_END = (1 << 63) - 1
# The packed tables whose arguments are kept apart, with their columns that hold these.
_ARGUMENTS = {
    "ops": {"ops_json", *schema.ARGUMENTS["host_events"]},
    "device": {*schema.ARGUMENTS["device_events"]},
}
NAME, STACK = 4 << 10, 64 << 10  # characters that are kept of a name, and of other texts: stacks are longest


class Tables(NamedTuple):
    """The tables as the file has them, rows ordered and numbered, nothing joined."""

    lanes: pl.DataFrame
    host_events: pl.DataFrame
    device_events: pl.DataFrame
    device_annotations: pl.DataFrame
    flows: pl.DataFrame
    memory: pl.DataFrame
    host_arguments: pl.DataFrame
    device_arguments: pl.DataFrame


class Assembly:
    """Collects batches in the order of the file and makes the tables of them."""

    def __init__(self) -> None:
        self.events = 0
        self.unused: Counter[str] = Counter()
        self.damages: Counter[str] = Counter()
        self.lost_ns = 0  # known once there are tables
        self._gaps: list[LostBytes] = []
        self._names, self._lanes = Codes(), Codes()
        self._texts, self._joined = Codes({"": 0}), Codes({"": 0})  # absent
        self._threads = ThreadPoolExecutor(pl.thread_pool_size())
        self._order: list[bytes] = []
        self._unpacked: list[Future[dict[str, tuple[pl.DataFrame, pl.DataFrame | None]]]] = []

    @property
    def holds_a_trace(self) -> bool:
        """Whether any of it was an event: only those have a phase."""
        return bool(self._unpacked) or any(not kind.startswith("None") for kind in self.unused)

    def add(self, batch: Batch) -> None:
        alphabet = Alphabet(
            names=_codes(self._names.of(_bounded(name, NAME) for name in batch.names)),
            texts=_codes(self._texts.of(_bounded(text, STACK) for text in batch.texts)),
            joined=_codes(self._joined.of(map(_text, batch.joined))),
            lanes=_codes(
                self._lanes.of((_bounded(pid, NAME), _bounded(tid, NAME)) for pid, tid in batch.lanes)
            ),
        )
        if batch.tables:
            self._unpacked.append(self._threads.submit(_frames, batch.tables, alphabet))
        self._order.append(batch.table_of)
        self._gaps += (LostBytes(self.events + place, size) for place, size in batch.lost)
        self.events += len(batch.table_of)
        self.unused.update(batch.unused)
        self.damages.update(batch.damages)

    def tables(self) -> Tables:
        """All tables; events without a believable time are left out and counted in ``damages``."""
        parts: dict[str, list[pl.DataFrame]] = {}
        said: dict[str, list[pl.DataFrame]] = {name: [] for name in _ARGUMENTS}
        for unpacked_batch in self._unpacked:
            for name, (frame, own) in unpacked_batch.result().items():
                if own is not None:
                    frame = frame.with_columns(pl.col("arguments") + sum(map(len, said[name])))
                    said[name].append(own)
                parts.setdefault(name, []).append(frame)
        self._unpacked.clear()
        order = b"".join(self._order)
        places = pl.select(array(pl.lit(order), "B", len(order))).to_series()
        frames = self._believable(
            {
                name: pl.concat(parts.pop(name), how="diagonal_relaxed").insert_column(
                    0, (places == TABLES.index(name)).arg_true().alias("event")
                )
                for name in list(parts)
            }
        )
        arguments: dict[str, pl.DataFrame | None] = dict.fromkeys(_ARGUMENTS)
        for name, each in said.items():
            if len(each) == 1:
                arguments[name] = each[0]
            elif each:
                arguments[name], rows = _distinct(pl.concat(each, how="diagonal_relaxed"))
                frames[name] = frames[name].with_columns(rows.gather(frames[name]["arguments"]))
        self.damages[UNREADABLE_BYTES] += sum(gap.bytes for gap in self._gaps)
        self.lost_ns = spanned_ns(self._gaps, frames)
        meaning = CodeTables(
            pl.Series("name", list(self._names), pl.String).cast(schema.NAME),
            pl.Series("text", [None, *list(self._texts)[1:]], pl.String).cast(schema.NAME),
            split(list(self._joined)),
            pl.Series("pid", [pid for pid, _ in self._lanes], pl.String),
            pl.Series("tid", [tid for _, tid in self._lanes], pl.String),
        )
        host = self._threads.submit(
            _host, [frames.pop(name) for name in ("ops", "calls", "python") if name in frames], meaning
        )
        self._threads.shutdown(wait=False)
        labels = meaning.table(frames.pop("labels", None))
        flows = schema.conform(meaning.table(frames.pop("flows", None)), schema.FLOWS)
        notes = _on_device(frames.pop("notes", None), meaning, ["event"])
        device = _on_device(frames.pop("device", None), meaning, ["device", "start_ns", "event"])
        memory = self._memory(meaning.table(frames.pop("instants", None)))
        return Tables(
            _lanes(meaning, labels, device),
            host.result(),
            schema.conform(device, schema.HELD["device_events"]),
            schema.conform(notes, schema.DEVICE_ANNOTATIONS),
            flows,
            memory,
            schema.conform(meaning.table(arguments["ops"]), schema.HELD["host_arguments"]),
            schema.conform(meaning.table(arguments["device"]), schema.HELD["device_arguments"]),
        )

    def _memory(self, instants: pl.DataFrame) -> pl.DataFrame:
        if not instants.columns:
            return schema.empty(schema.MEMORY)
        is_memory = instants["name"].cast(pl.String) == "[memory]"
        if marks := len(instants) - int(is_memory.sum()):
            self.unused["i"] += marks
        names = {"device_id": "device", "memory_bytes": "bytes"}
        memory = instants.filter(is_memory).rename(names, strict=False)
        address = pl.col("^address$").cast(pl.String).cast(pl.UInt64, strict=False)
        return schema.conform(memory.with_columns(address), schema.MEMORY)

    def _believable(self, frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        low, high, far = _reach([frames[name] for name in _LASTING if name in frames])
        for name in _TIMED:
            if name not in frames:
                continue
            frame, start = frames[name], frames[name]["start_ns"]
            near = start.is_not_null()
            if low is not None and high is not None:
                near = start.is_between(max(low - far, -_END), min(high + far, _END))
            missing = start.null_count()
            self.damages["missing-time"] += missing
            self.damages["impossible-time"] += len(frame) - missing - int(near.sum())
            if not near.all(ignore_nulls=False):
                frame = frame.filter(near)
            if "duration_ns" in frame.columns:
                possible = frame.select(pl.col("duration_ns").is_between(0, far)).to_series()
                missing = possible.null_count()
                self.damages["missing-duration"] += missing
                self.damages["impossible-duration"] += len(frame) - missing - int(possible.sum())
                if not possible.all(ignore_nulls=False):
                    lasted = pl.when(possible).then("duration_ns").otherwise(0)
                    frame = frame.with_columns(duration_ns=lasted)
            frames[name] = frame
        return frames


def _frames(
    tables: dict[str, dict[str, tuple[str, bytes]]], alphabet: Alphabet
) -> dict[str, tuple[pl.DataFrame, pl.DataFrame | None]]:
    """A batch's tables, unpacked, and apart from each the arguments that are kept so."""
    found: dict[str, tuple[pl.DataFrame, pl.DataFrame | None]] = {}
    for name, packed in tables.items():
        frame = unpacked(name, packed, alphabet)
        columns = [column for column in frame.columns if column in _ARGUMENTS.get(name, ())]
        if columns:
            arguments, rows = _distinct(frame.select(columns))
            found[name] = frame.drop(columns).with_columns(rows), arguments
        else:
            found[name] = frame, None
    return found


def _distinct(arguments: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """The distinct rows, and which of them each row is: ``arguments``."""
    distinct = arguments.unique(maintain_order=True).with_row_index("arguments")
    rows = arguments.join(
        distinct, on=arguments.columns, how="left", nulls_equal=True, maintain_order="left"
    )["arguments"]
    return distinct.drop("arguments"), rows


def _reach(timed: list[pl.DataFrame]) -> tuple[int | None, int | None, int]:
    """The first and third quartile of all starts; how far from them a start is believed, or how long a time.

    That is a day, or 100 times what lies between the two. Where it is a day anyway, first and last will do.
    """
    starts = pl.concat([pl.Series("start_ns", dtype=pl.Int64), *(frame["start_ns"] for frame in timed)])
    longest = max((frame.select(pl.col("duration_ns").max()).item() or 0 for frame in timed), default=0)
    low, high = pl.select(low=starts.min(), high=starts.max()).row(0)
    if low is not None and max(_FAR * (high - low), longest) > _DAY_NS:
        quartiles = (starts.quantile(part, "nearest") for part in (0.25, 0.75))
        low, high = (int(quartile or 0) for quartile in quartiles)
    return low, high, min(max(_DAY_NS, _FAR * ((high or 0) - (low or 0))), _END)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _bounded(value: object, most: int) -> str:
    """A text; of one that is absurdly long both ends, its length, and what tells it from its like."""
    text = _text(value)
    if len(text) <= most:
        return text
    digest = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    half = most // 2 - 50
    return f"{text[:half]} …({len(text):,} characters, {digest:08x})… {text[-half:]}"


def _codes(values: list[int]) -> pl.Series:
    return pl.Series(values, dtype=pl.UInt32)


def _host(parts: list[pl.DataFrame], meaning: CodeTables) -> pl.DataFrame:
    """Host events in order, with their tree; wide columns come last and one at a time, for memory's sake."""
    if not parts:
        return schema.empty(schema.HELD["host_events"])
    packed = pl.concat(parts, how="diagonal_relaxed")
    parts.clear()
    tree = nested(sorted_by_lane(packed))
    rest = packed.get_columns()
    del packed
    order = tree["row"]
    return schema.conform(
        pl.DataFrame(
            [*tree.drop("row"), *meaning.of([c for c in rest if c.name not in tree.columns], order)]
        ),
        schema.HELD["host_events"],
    )


def _on_device(frame: pl.DataFrame | None, meaning: CodeTables, order: list[str]) -> pl.DataFrame:
    """With ``kind``, and with ``device`` and ``stream`` from the lane where the event does not say."""
    if frame is None:
        return pl.DataFrame()
    lacking = [
        pl.lit(None, pl.Int64).alias(name) for name in ("device", "stream") if name not in frame.columns
    ]
    frame = frame.with_columns(lacking)
    lane = frame["lane"]
    pid, tid = (part.cast(pl.Int64, strict=False).gather(lane) for part in (meaning.pid, meaning.tid))
    placed = frame.with_columns(
        pl.coalesce(part.cast(pl.Int32, strict=False) for part in (pl.col("device"), pl.lit(pid), pl.lit(0))),
        pl.coalesce("stream", tid, 0).alias("stream"),
    )
    del frame
    rows = placed.select(order).with_row_index("row").sort(order)["row"]
    named = pl.DataFrame(meaning.of(placed.get_columns(), rows)).with_row_index("id")
    return named.with_columns(
        kind=pl.col("category").cast(pl.String).replace_strict(DEVICE_KINDS, default=None)
    )


def _lanes(meaning: CodeTables, labels: pl.DataFrame, device: pl.DataFrame) -> pl.DataFrame:
    lanes = pl.DataFrame([meaning.pid, meaning.tid]).with_row_index("id")
    if "label" in labels.columns:
        labels = labels.with_columns(pl.col("name", "pid", "tid", "label").cast(pl.String))
        processes = labels.filter(pl.col("name") == "process_name").select("pid", process_name="label")
        threads = labels.filter(pl.col("name") == "thread_name").select("pid", "tid", thread_name="label")
        for named, key in ((processes, ["pid"]), (threads, ["pid", "tid"])):
            last = named.unique(key, keep="last", maintain_order=True)
            lanes = lanes.join(last, on=key, how="left", maintain_order="left")
    seen = device["lane"].unique() if len(device) else pl.Series(dtype=pl.UInt32)
    return schema.conform(lanes.with_columns(is_device=pl.col("id").is_in(seen.implode())), schema.LANES)
