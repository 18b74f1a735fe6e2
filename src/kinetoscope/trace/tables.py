"""Packed columns of many chunks to the declared tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import polars as pl

from kinetoscope.trace import schema
from kinetoscope.trace.decode import Batch, Codes
from kinetoscope.trace.events import ABSENT, DEVICE_KINDS, canonical

_DAY_NS = 86_400_000_000_000
_TYPES: dict[str, Any] = {"q": pl.Int64, "d": pl.Float64, "I": pl.UInt32, "B": pl.UInt8}
_TIMED = ("ops", "calls", "python", "device", "notes", "flows", "instants")
_LARGEST_US = 9e15  # a double counts single microseconds up to here


class Tables(NamedTuple):
    """The tables as the file has them: not joined, rows not numbered."""

    lanes: pl.DataFrame
    host_events: pl.DataFrame
    device_events: pl.DataFrame
    device_annotations: pl.DataFrame
    flows: pl.DataFrame
    memory: pl.DataFrame


class Assembly:
    """Collects batches in the order of the file and makes the tables of them."""

    def __init__(self) -> None:
        self.events = 0
        self.unused: dict[str, int] = {}
        self.damages: dict[str, int] = {}
        self._names, self._texts, self._lanes = Codes(), Codes(), Codes()
        self._texts[""] = 0  # absent
        self._frames: dict[str, list[pl.DataFrame]] = {}

    def add(self, batch: Batch) -> None:
        names = _codes(self._names.of(map(_text, batch.names)))
        texts = _codes(self._texts.of(map(_text, batch.texts)))
        lanes = _codes(self._lanes.of((_text(pid), _text(tid)) for pid, tid in batch.lanes))
        for room, packed in batch.tables.items():
            columns: list[pl.Series] = []
            for name, (typecode, data) in packed.items():
                column = _unpack(name, typecode, data)
                if name == "event":
                    column = column + self.events
                elif name == "lane":
                    column = lanes.gather(column)
                elif name in ("name", "category"):
                    column = names.gather(column)
                elif typecode == "I":
                    column = texts.gather(column)
                elif name in ("start", "duration"):
                    name, column = f"{name}_ns", _nanoseconds(column)
                columns.append(column.alias(name))
            self._frames.setdefault(room, []).append(pl.DataFrame(columns))
        self.events += batch.events
        for mine, theirs in ((self.unused, batch.unused), (self.damages, batch.damages)):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count

    def tables(self) -> Tables:
        """All tables; events without a believable time are left out and counted in ``damages``."""
        frames = {room: pl.concat(parts, how="diagonal_relaxed") for room, parts in self._frames.items()}
        self._frames.clear()
        frames = self._believable(frames)
        texts = pl.Series("text", list(self._texts), pl.String)
        texts = texts.set(texts == "", None)
        names = pl.Series("name", list(self._names), pl.String)
        pid, tid = (
            (pl.Series(list(part), dtype=pl.String) for part in zip(*self._lanes, strict=True))
            if self._lanes
            else (
                pl.Series(dtype=pl.String),
                pl.Series(dtype=pl.String),
            )
        )
        decoded = {room: _decoded(frame, names, texts) for room, frame in frames.items()}
        labels = decoded.pop("labels", None)
        device = _on_device(decoded.get("device"), pid, tid)
        notes = _on_device(decoded.get("notes"), pid, tid)
        instants = decoded.get("instants")
        if instants is not None and "name" in instants.columns:
            self._count_unused(instants.filter(pl.col("name").cast(pl.String) != "[memory]"))
        host = [decoded[room] for room in ("ops", "calls", "python") if room in decoded]
        return Tables(
            _lanes(pid, tid, labels, device),
            schema.conform(pl.concat(host, how="diagonal") if host else pl.DataFrame(), schema.HOST_EVENTS),
            schema.conform(device, schema.DEVICE_EVENTS),
            schema.conform(notes, schema.DEVICE_ANNOTATIONS),
            schema.conform(decoded.get("flows", pl.DataFrame()), schema.FLOWS),
            _memory(instants),
        )

    def _count_unused(self, instants: pl.DataFrame) -> None:
        if len(instants):
            self.unused["i"] = self.unused.get("i", 0) + len(instants)

    def _count_damage(self, code: str, count: int) -> None:
        if count:
            self.damages[code] = self.damages.get(code, 0) + count

    def _believable(self, frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        starts = [frames[room]["start_ns"] for room in ("ops", "calls", "python", "device") if room in frames]
        all_starts = pl.concat(starts) if starts else pl.Series(dtype=pl.Int64)
        low, high = all_starts.quantile(0.25, "nearest"), all_starts.quantile(0.75, "nearest")
        far = int(max(_DAY_NS, 100 * ((high or 0) - (low or 0))))
        for room in _TIMED:
            if room not in frames:
                continue
            frame = frames[room]
            start = frame["start_ns"]
            if start.null_count():
                self._count_damage("missing-time", start.null_count())
                frame = frame.filter(pl.col("start_ns").is_not_null())
            if low is not None and high is not None:
                believable = pl.col("start_ns").is_between(int(low) - far, int(high) + far)
                kept = frame.filter(believable)
                self._count_damage("impossible-time", len(frame) - len(kept))
                frame = kept
            if "duration_ns" in frame.columns:
                duration = frame["duration_ns"]
                self._count_damage("missing-duration", duration.null_count())
                impossible = (duration < 0) | (duration > far)
                self._count_damage("impossible-duration", int(impossible.sum() or 0))
                if duration.null_count() or impossible.any():
                    possible = pl.col("duration_ns").is_between(0, far)
                    frame = frame.with_columns(
                        pl.when(possible).then("duration_ns").otherwise(0).alias("duration_ns")
                    )
            frames[room] = frame
        return frames


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _codes(values: list[int]) -> pl.Series:
    return pl.Series(values, dtype=pl.UInt32)


def _unpack(name: str, typecode: str, data: bytes) -> pl.Series:
    dtype = _TYPES[typecode]
    width = {"q": 8, "d": 8, "I": 4, "B": 1}[typecode]
    packed = pl.Series(name, [data]).bin.reinterpret(dtype=pl.Array(dtype, len(data) // width))
    return packed.reshape((-1,))


def _nanoseconds(column: pl.Series) -> pl.Series:
    """Microseconds as doubles, or nanoseconds with ABSENT, to nanoseconds with nulls, exactly."""
    if column.dtype == pl.Int64:
        return column.set(column == ABSENT, None)
    frame = column.to_frame("us").with_columns(
        pl.when(pl.col("us").is_finite() & (pl.col("us").abs() < _LARGEST_US)).then("us").alias("us")
    )
    whole = pl.col("us").floor()
    return frame.select(
        whole.cast(pl.Int64) * 1000 + ((pl.col("us") - whole) * 1000).round().cast(pl.Int64)
    ).to_series()


def _decoded(frame: pl.DataFrame, names: pl.Series, texts: pl.Series) -> pl.DataFrame:
    """Codes back to what they stand for, and absent integers to null."""
    columns: list[pl.Series] = []
    for column in frame.iter_columns():
        if column.name == "name":
            column = names.cast(pl.Categorical).gather(column).alias("name")
        elif column.name == "category":
            column = _categories(column, names)
        elif column.dtype == pl.UInt32 and column.name not in ("event", "lane"):
            column = texts.gather(column).alias(column.name)
        elif column.dtype == pl.Int64 and column.name not in ("start_ns", "duration_ns"):
            if column.min() == ABSENT:
                column = column.set(column == ABSENT, None)
        elif column.dtype == pl.Float64:
            column = column.fill_nan(None)
        columns.append(column)
    return pl.DataFrame(columns)


def _categories(column: pl.Series, names: pl.Series) -> pl.Series:
    used = column.unique()
    today = pl.Series([canonical(name) for name in names.gather(used)], dtype=pl.String)
    return column.replace_strict(used, today, return_dtype=pl.String).cast(pl.Categorical).alias("category")


def _on_device(frame: pl.DataFrame | None, pid: pl.Series, tid: pl.Series) -> pl.DataFrame:
    """With ``kind``, and with ``device`` and ``stream`` from the lane where the event does not say."""
    if frame is None:
        return pl.DataFrame()
    return frame.with_columns(
        pl.coalesce("device", pid.cast(pl.Int64, strict=False).gather(frame["lane"]), 0)
        .cast(pl.Int32, strict=False)
        .alias("device"),
        pl.coalesce("stream", tid.cast(pl.Int64, strict=False).gather(frame["lane"]), 0).alias("stream"),
        pl.col("category").cast(pl.String).replace_strict(DEVICE_KINDS, default=None).alias("kind"),
    )


def _lanes(pid: pl.Series, tid: pl.Series, labels: pl.DataFrame | None, device: pl.DataFrame) -> pl.DataFrame:
    lanes = pl.DataFrame({"pid": pid, "tid": tid}).with_row_index("id")
    if labels is not None:
        labels = labels.with_columns(pl.col("name").cast(pl.String))
        processes = labels.filter(pl.col("name") == "process_name").select("pid", process_name="label")
        threads = labels.filter(pl.col("name") == "thread_name").select("pid", "tid", thread_name="label")
        lanes = lanes.join(
            processes.unique("pid", keep="last", maintain_order=True),
            on="pid",
            how="left",
            maintain_order="left",
        ).join(
            threads.unique(["pid", "tid"], keep="last", maintain_order=True),
            on=["pid", "tid"],
            how="left",
            maintain_order="left",
        )
    seen: Iterable[int] = device["lane"].unique() if len(device) else []
    return schema.conform(lanes.with_columns(is_device=pl.col("id").is_in(list(seen))), schema.LANES)


def _memory(instants: pl.DataFrame | None) -> pl.DataFrame:
    if instants is None:
        return schema.conform(pl.DataFrame(), schema.MEMORY)
    memory = instants.filter(pl.col("name").cast(pl.String) == "[memory]").rename(
        {"device_id": "device", "memory_bytes": "bytes"}
    )
    return schema.conform(memory.with_columns(pl.col("address").cast(pl.UInt64, strict=False)), schema.MEMORY)
