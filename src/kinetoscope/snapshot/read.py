"""Files to snapshots: what ``torch.cuda.memory._dump_snapshot`` writes, of 2.9 and later."""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import polars as pl

from kinetoscope.errors import InputError, TooLargeError
from kinetoscope.recording import plain_file
from kinetoscope.snapshot import unpickle, unpickler
from kinetoscope.snapshot.model import (
    BLOCKS,
    ENTRIES,
    SEGMENTS,
    STATES,
    Annotation,
    Noted,
    Snapshot,
    StackFrame,
)

# As the documentation has it, and as torch writes it.
STATE_NUMBERS = {name: number for number, name in enumerate(STATES)} | {"active_awaiting_free": 1}
MOST_UNPACKED = 500  # times; stacks repeat, and histories pack 60 times
LARGEST = 1 << 48  # bytes: more than any device has
MOST_DEVICES = 1 << 16


def read(path: Path) -> Snapshot:
    """The snapshot in a file. Raises InputError where it is none, damaged, or more than plain data."""
    try:
        if path.suffix == ".gz":
            data = unpacked(path)
            return _read(data, path, len(data))
        with plain_file.opened(path):  # it is neither a pipe nor a device
            return _read(path, path, path.stat().st_size)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot read the snapshot: {error}", where=str(path)) from error


def unpacked(path: Path) -> bytes:
    """Raises InputError where it is damaged, TooLargeError where it unpacks to more than any snapshot."""
    most = MOST_UNPACKED * path.stat().st_size + (1 << 20)
    try:
        with gzip.open(path) as file:
            data = file.read(most + 1)
    except zlib.error as error:
        raise InputError(f"the gzip file is damaged: {error}", where=str(path)) from error
    if len(data) > most:
        raise TooLargeError(f"it unpacks to more than {MOST_UNPACKED} times its size", where=str(path))
    return data


def _read(source: bytes | Path, path: Path, size: int) -> Snapshot:
    head, columns = unpickle.columns(source, str(path))
    try:
        return _snapshot(msgspec.json.decode(head, type=_Head), columns, path, size)
    except (*unpickler.MALFORMED, msgspec.MsgspecError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"the pickle is no snapshot of torch's allocator: {type(error).__name__}",
            where=str(path),
            hint=unpickle.HINT,
        ) from error


Address = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Size = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
Device = Annotated[int, msgspec.Meta(ge=0, lt=MOST_DEVICES)]
State = Literal["active_allocated", "active_pending_free", "active_awaiting_free", "inactive"]


class _Head(msgspec.Struct, frozen=True):
    """A snapshot but for the columns of its history, as ``unpickler.snapshot`` writes it."""

    segments: list[tuple[Device, Address, Size, int, int, bool, int]]
    blocks: list[list[tuple[Size, Size, State, int]]]  # of each segment
    sizes: list[int]
    stacks: list[tuple[int, ...]]
    frames: list[tuple[str, str, int]]
    pools: list[tuple[Address, Address]]
    settings: dict[str, object]
    annotations: list[tuple[int, str, int, bool]]
    contexts: list[tuple[str, str]]


def _snapshot(head: _Head, columns: memoryview, path: Path, size: int) -> Snapshot:
    frames = [StackFrame(*frame) for frame in head.frames]
    segments, blocks = _segments(head)
    table = _in_pools(_entries(head.sizes, columns), segments)
    unknown = int((table["action"] < 0).sum())
    return Snapshot(
        str(path),
        size,
        segments,
        blocks,
        table.filter(pl.col("action") >= 0) if unknown else table,
        tuple(tuple(frames[number] for number in stack) for stack in head.stacks),
        tuple(head.pools),
        {name: value for name, value in head.settings.items() if isinstance(value, (str, int, float))},
        unknown,
        tuple(sorted((Annotation(*one) for one in head.annotations), key=lambda one: one.time_us)),
        tuple(Noted(*one) for one in head.contexts),
    )


def _in_pools(entries: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """The entries with their pools: up to 2.11 torch says those of segments alone, which addresses tell."""
    private = segments.filter(pl.col("pool") != 0).sort("address")
    if private.is_empty() or (entries["pool"] != 0).any():
        return entries
    end = (pl.col("address") + pl.col("bytes")).alias("end")
    placed = entries.drop("pool").with_row_index("place").sort("address")
    placed = placed.join_asof(
        private.select("device", "address", "pool", end), on="address", by="device", check_sortedness=False
    )
    is_inside = (pl.col("address") < pl.col("end")).fill_null(value=False)
    pool = pl.when(is_inside).then("pool").otherwise(0).alias("pool")
    return placed.with_columns(pool).sort("place").select(list(ENTRIES))


def _entries(sizes: Sequence[int], columns: memoryview) -> pl.DataFrame:
    found: dict[str, pl.Series] = {}
    count, at = sum(sizes), 0
    for name, code in unpickler.COLUMNS.items():
        values = array(code)
        end = at + count * values.itemsize
        values.frombytes(columns[at:end])
        found[name], at = pl.Series(values).cast(ENTRIES[name]), end
    devices = [
        pl.repeat(device, size, dtype=pl.Int32, eager=True) for device, size in enumerate(sizes) if size
    ]
    return pl.DataFrame({"device": pl.concat([pl.Series(dtype=pl.Int32), *devices]), **found}, schema=ENTRIES)


def _segments(head: _Head) -> tuple[pl.DataFrame, pl.DataFrame]:
    segments: list[tuple[object, ...]] = []
    blocks: list[tuple[object, ...]] = []
    for number, (segment, inside) in enumerate(zip(head.segments, head.blocks, strict=True)):
        device, at, *_ = segment
        segments.append((device, number, *segment[1:]))
        for size, requested, state, stack in inside:
            state = STATE_NUMBERS[state]
            blocks.append((device, number, at, size, requested if state != 2 else 0, state, stack))
            at += size
    return (
        pl.DataFrame(segments, schema=SEGMENTS, orient="row"),
        pl.DataFrame(blocks, schema=BLOCKS, orient="row"),
    )
