"""Files to snapshots: what ``torch.cuda.memory._dump_snapshot`` writes, of 2.9 and later."""

from __future__ import annotations

import gzip
import mmap
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl

from kinetoscope.errors import InputError, TooLargeError
from kinetoscope.snapshot.model import ACTIONS, BLOCKS, ENTRIES, SEGMENTS, STATES, Frame, Snapshot, Stack
from kinetoscope.snapshot.unpickle import Columns, Known, Machine, Reader, integers, load

ACTION_NUMBERS = {name: number for number, name in enumerate(ACTIONS)}
# As the documentation has it, and as torch writes it.
STATE_NUMBERS = {name: number for number, name in enumerate(STATES)} | {"active_awaiting_free": 1}
COLUMNS = tuple(ENTRIES)[1:]
MOST_UNPACKED = 500  # times; stacks repeat, and histories pack 60 times
MALFORMED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)
KNOWN_MOST = 100_000  # sizes as they are written, most of which come again


def is_snapshot(path: Path) -> bool:
    """Whether a file is a pickle, by its name and its first byte."""
    if not path.name.endswith((".pickle", ".pkl", ".pickle.gz", ".pkl.gz")) or not path.is_file():
        return False
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(1) == b"\x80"


def read(path: Path) -> Snapshot:
    """The snapshot in a file.

    Raises:
        InputError: it is no snapshot, is damaged, or holds more than plain data.
    """
    try:
        if path.suffix == ".gz":
            return _read(_unpacked(path), path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _read(mapped, path)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot read the snapshot: {error}", where=str(path)) from error


def _unpacked(path: Path) -> bytes:
    """Raises:
    TooLargeError: it unpacks to more than any snapshot would.
    """
    most = MOST_UNPACKED * path.stat().st_size + (1 << 20)
    with gzip.open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TooLargeError(f"it unpacks to more than {MOST_UNPACKED} times its size", where=str(path))
    return data


def _read(data: bytes | mmap.mmap, path: Path) -> Snapshot:
    reader = _SnapshotReader()
    found = load(data, str(path), reader)
    if isinstance(found, list):  # as torch.cuda.memory_snapshot() gives it
        found = {"segments": cast(list[object], found)}
    try:
        return reader.snapshot(cast(dict[str, Any], found), path, len(data))
    except (*MALFORMED, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"the pickle is no snapshot of torch's allocator: {type(error).__name__}",
            where=str(path),
            mend="name what torch.cuda.memory._dump_snapshot wrote",
        ) from error


class _SnapshotReader(Reader):
    """Frames are kept once, stacks by number, entries of the history in columns."""

    sequences = frozenset({"frames"})
    wanted = frozenset({"action", "addr", "size", "stream", "time_us"})

    def __init__(self) -> None:
        self.frames: dict[tuple[object, ...], Frame] = {}
        self.stacks: dict[Stack, int] = {(): 0}
        self.pools = _Pools({(0, 0): 0, None: 0})
        self.action, self.stack, self.pool = array("b"), array("i"), array("i")
        self.address, self.bytes, self.stream, self.time_us = (array("q") for _ in range(4))

    def complete(self, found: dict[Any, Any]) -> object:
        if "filename" in found and "line" in found:
            key = (found.get("name"), found["filename"], found["line"])
            if key not in self.frames:
                self.frames[key] = Frame(str(key[0]), str(key[1]), int(key[2]))
            return self.frames[key]
        if "action" in found:
            self._entry(found)
            return None
        return found

    def listed(self, items: Sequence[object]) -> int:
        stack = tuple(items)
        if any(type(one) is not Frame for one in stack):
            raise TypeError
        return self.stacks.setdefault(cast(Stack, stack), len(self.stacks))

    def _stack(self, value: object) -> int:
        return value if isinstance(value, int) else self.listed(cast(Sequence[object], value or ()))

    def _entry(self, found: dict[str, Any]) -> None:
        self.action.append(ACTION_NUMBERS.get(found["action"], -1))
        self.address.append(found.get("addr", found.get("device_free", 0)))
        self.bytes.append(found.get("size", 0))
        self.stream.append(found.get("stream", 0))
        self.time_us.append(found.get("time_us", 0))
        self.stack.append(self._stack(found.get("frames")))
        self.pool.append(self.pools[found.get("pool_id")])

    def rows(self, keys: tuple[str, ...], machine: Machine) -> Callable[[Columns], None] | None:
        if not self.wanted <= set(keys):
            return None
        value = machine.value
        actions = Known(lambda raw: ACTION_NUMBERS.get(value(raw), -1))
        sizes, streams = Known(value, KNOWN_MOST), Known(value)

        def take(columns: Columns) -> None:
            row = dict(zip(keys, columns, strict=True))
            nothing = [None] * len(columns[0])
            self.action.extend(map(actions.__getitem__, row["action"]))
            self.address.extend(integers(row["addr"]))
            self.bytes.extend(map(sizes.__getitem__, row["size"]))
            self.stream.extend(map(streams.__getitem__, row["stream"]))
            self.time_us.extend(integers(row["time_us"]))
            stacks = row.get("frames", nothing)
            self.stack.extend(stacks if set(map(type, stacks)) == {int} else map(self._stack, stacks))
            self.pool.extend(map(self.pools.__getitem__, row.get("pool_id", nothing)))

        return take

    def snapshot(self, found: dict[str, Any], path: Path, size: int) -> Snapshot:
        segments, blocks = self._segments(found["segments"])
        devices = array("i")
        for device, trace in enumerate(found.get("device_traces", ())):
            devices.extend(array("i", [device]) * len(trace))
        columns = {name: pl.Series(getattr(self, name), dtype=ENTRIES[name]) for name in COLUMNS}
        table = pl.DataFrame({"device": pl.Series(devices, dtype=pl.Int32), **columns})
        return Snapshot(
            str(path),
            size,
            segments,
            blocks,
            table.filter(pl.col("action") >= 0),
            tuple(self.stacks),
            tuple(pool for pool in self.pools if pool),
            dict(found.get("allocator_settings", {})),
            self.action.count(-1),
        )

    def _segments(self, found: Iterable[dict[str, Any]]) -> tuple[pl.DataFrame, pl.DataFrame]:
        segments: list[tuple[object, ...]] = []
        blocks: list[tuple[object, ...]] = []
        for number, segment in enumerate(found):
            device, at = segment.get("device", 0), segment["address"]
            pool = self.pools[segment.get("segment_pool_id")]
            stack = self._stack(segment.get("frames"))
            expandable = bool(segment.get("is_expandable", False))
            size = segment["total_size"]
            segments.append((device, number, at, size, segment["stream"], pool, expandable, stack))
            for block in segment["blocks"]:
                state = STATE_NUMBERS[block["state"]]
                asked = block.get("requested_size", block["size"]) if state != 2 else 0
                stack = self._stack(block.get("frames"))
                blocks.append((device, number, at, block["size"], asked, state, stack))
                at += block["size"]
        return (
            pl.DataFrame(segments, schema=SEGMENTS, orient="row"),
            pl.DataFrame(blocks, schema=BLOCKS, orient="row"),
        )


class _Pools(dict[tuple[int, int] | None, int]):
    """The numbers of pools, in the order in which they are met."""

    def __missing__(self, pool: tuple[int, int] | None) -> int:
        first, second = pool or (0, 0)
        return self.setdefault((int(first), int(second)), len(self) - 1)
