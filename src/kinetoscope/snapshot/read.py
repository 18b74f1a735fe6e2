"""Files to snapshots: what ``torch.cuda.memory._dump_snapshot`` writes, of 2.9 and later."""

from __future__ import annotations

import gzip
import mmap
import re
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl

from kinetoscope.errors import InputError, TooLargeError
from kinetoscope.recording import plain_file
from kinetoscope.snapshot.model import (
    ACTIONS,
    BLOCKS,
    ENTRIES,
    SEGMENTS,
    STATES,
    Annotation,
    Snapshot,
    Stack,
    StackFrame,
)
from kinetoscope.snapshot.unpickle import PickleReader, load

ACTION_NUMBERS = {name: number for number, name in enumerate(ACTIONS)}
# As the documentation has it, and as torch writes it.
STATE_NUMBERS = {name: number for number, name in enumerate(STATES)} | {"active_awaiting_free": 1}
COLUMNS = {name: dtype for name, dtype in ENTRIES.items() if name != "device"}
KEYS = {
    "action": "action",
    "addr": "address",
    "device_free": "address",
    "size": "bytes",
    "stream": "stream",
    "time_us": "time_us",
    "frames": "stack",
    "pool_id": "pool",
}
# torch's default is to write the C++ frames as well, the interpreter's between Python's: not the program's.
NATIVE = re.compile(r"^(\?\?)?$|\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|inl|S|so[.\d]*)$|/include/c\+\+/")
MOST_UNPACKED = 500  # times; stacks repeat, and histories pack 60 times
LARGEST = 1 << 48  # bytes: more than any device has
MOST_DEVICES = 1 << 16
SHORT = 16  # frames of a stack that is compared anew each time it is named
MALFORMED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)


def read(path: Path) -> Snapshot:
    """The snapshot in a file.

    Raises:
        InputError: it is no snapshot, is damaged, or holds more than plain data.
    """
    try:
        if path.suffix == ".gz":
            return _read(unpacked(path), path)
        with plain_file.opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _read(mapped, path)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot read the snapshot: {error}", where=str(path)) from error


def unpacked(path: Path) -> bytes:
    """Raises:
    InputError: it is damaged.
    TooLargeError: it unpacks to more than any snapshot would.
    """
    most = MOST_UNPACKED * path.stat().st_size + (1 << 20)
    try:
        with gzip.open(path) as file:
            data = file.read(most + 1)
    except zlib.error as error:
        raise InputError(f"the gzip file is damaged: {error}", where=str(path)) from error
    if len(data) > most:
        raise TooLargeError(f"it unpacks to more than {MOST_UNPACKED} times its size", where=str(path))
    return data


def _read(data: bytes | mmap.mmap, path: Path) -> Snapshot:
    reader = _SnapshotReader()
    try:
        found = load(data, str(path), reader)
        if isinstance(found, list):  # as torch.cuda.memory_snapshot() gives it
            found = {"segments": cast(list[object], found)}
        return reader.snapshot(cast(dict[str, Any], found), path, len(data))
    except (*MALFORMED, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"the pickle is no snapshot of torch's allocator: {type(error).__name__}",
            where=str(path),
            hint="name what torch.cuda.memory._dump_snapshot wrote",
        ) from error


class _SnapshotReader(PickleReader):
    """Frames are kept once, stacks by number, entries of the history in columns."""

    sequences = frozenset({"frames"})
    wanted = frozenset(KEYS)

    def __init__(self) -> None:
        self.frames: dict[StackFrame, StackFrame] = {}
        self.stacks: dict[Stack, int] = {(): 0}
        self.native: dict[str, bool] = {}  # by file
        self.named: dict[int, tuple[object, int]] = {}  # long lists of frames by identity, with their number
        self.pools = _Pools({(0, 0): 0})
        self.tables: list[pl.DataFrame] = [pl.DataFrame(schema=COLUMNS)]
        self.singly: list[tuple[int, ...]] = []  # entries that came after those

    def complete(self, found: dict[Any, Any]) -> object:
        if "filename" in found and "line" in found:
            file = found["filename"].replace("\\", "/")  # of Windows
            frame = StackFrame(found.get("name", ""), file, found["line"])
            if (type(frame.name), type(frame.file), type(frame.line)) != (str, str, int):
                raise TypeError
            _checked(abs(frame.line), 1 << 31)  # larger ones may all have one hash
            return self.frames.setdefault(frame, frame)
        if "action" in found:
            self._entry(found)
            return None
        return found

    def _stack(self, value: object) -> int:
        """The number of a list of frames, or of what stands for one already."""
        if isinstance(value, int):
            return value
        if known := self.named.get(id(value)):
            return known[1]
        stack = tuple(cast(Sequence[object], value or ()))
        if any(type(one) is not StackFrame for one in stack):
            raise TypeError
        python = tuple(one for one in cast(Stack, stack) if not self._is_native(one.file))
        number = self.stacks.setdefault(python, len(self.stacks))
        if len(stack) > SHORT:
            self.named[id(value)] = value, number
        return number

    def _is_native(self, file: str) -> bool:
        if (known := self.native.get(file)) is None:
            known = self.native[file] = NATIVE.search(file) is not None
        return known

    def _entry(self, found: dict[str, Any]) -> None:
        row = {
            KEYS[key]: value if type(value) is int else self.coded(key, value)
            for key, value in found.items()
            if key in KEYS
        }
        self.singly.append(tuple(row.get(name, 0) for name in COLUMNS))

    def is_row(self, keys: Sequence[str]) -> bool:
        return {"action", "size", "time_us"} <= set(keys)

    def coded(self, key: str, value: Any) -> int:
        if key == "action":
            return ACTION_NUMBERS.get(value, -1)
        return self._pool(value) if key == "pool_id" else self._stack(value)

    def _pool(self, value: object) -> int:
        """The number of a pool, by torch's pair of numbers; tuples of tuples may take forever to hash."""
        if value is None:
            return 0
        first, second = cast(tuple[object, object], value)
        return self.pools[_checked(first, 1 << 63), _checked(second, 1 << 63)]

    def take(self, columns: Mapping[str, array[int]], places: Sequence[int]) -> None:
        self._flush()
        nothing = pl.repeat(0, len(places), dtype=pl.Int64, eager=True)
        found = dict.fromkeys(COLUMNS, nothing)
        for key, column in columns.items():
            name = KEYS[key]  # an entry has one key of a name
            found[name] = pl.Series(column) if found[name] is nothing else found[name] + pl.Series(column)
        order = pl.Series(places).arg_sort()
        table = pl.DataFrame({name: found[name].cast(dtype) for name, dtype in COLUMNS.items()})
        self.tables.append(table[order])

    def _flush(self) -> None:
        if self.singly:
            self.tables.append(pl.DataFrame(self.singly, schema=COLUMNS, orient="row"))
            self.singly = []

    def snapshot(self, found: dict[str, Any], path: Path, size: int) -> Snapshot:
        segments, blocks = self._segments(found["segments"])
        self._flush()
        table = pl.concat(self.tables, rechunk=False)
        sizes = [len(trace) for trace in found.get("device_traces", ())]
        if sum(sizes) != len(table):  # one history is written, and named again
            raise TypeError
        devices = [
            pl.repeat(device, size, dtype=pl.Int32, eager=True) for device, size in enumerate(sizes) if size
        ]
        table.insert_column(0, pl.concat([pl.Series(dtype=pl.Int32), *devices]).alias("device"))
        unknown = int((table["action"] < 0).sum())
        return Snapshot(
            str(path),
            size,
            segments,
            blocks,
            table.filter(pl.col("action") >= 0) if unknown else table,
            tuple(self.stacks),
            tuple(self.pools),
            {
                name: value
                for name, value in dict(found.get("allocator_settings", {})).items()
                if isinstance(value, (str, int, float))  # lists may name each other without end
            },
            unknown,
            _annotations(found.get("external_annotations", ())),
        )

    def _segments(self, found: Sequence[dict[str, Any]]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Each is written once: a file that names one again and again is none of torch's."""
        _distinct(found)
        _distinct([block for segment in found for block in segment["blocks"]])
        segments: list[tuple[object, ...]] = []
        blocks: list[tuple[object, ...]] = []
        for number, segment in enumerate(found):
            device = _checked(segment.get("device", 0), MOST_DEVICES)
            at = _checked(segment["address"], 1 << 63)
            pool = self._pool(segment.get("segment_pool_id"))
            stack = self._stack(segment.get("frames"))
            expandable = bool(segment.get("is_expandable", False))
            size = _checked(segment["total_size"], LARGEST)
            segments.append((device, number, at, size, segment["stream"], pool, expandable, stack))
            for block in segment["blocks"]:
                state = STATE_NUMBERS[block["state"]]
                size = _checked(block["size"], LARGEST)
                requested = _checked(block.get("requested_size", size), LARGEST) if state != 2 else 0
                stack = self._stack(block.get("frames"))
                blocks.append((device, number, at, size, requested, state, stack))
                at += size
        return (
            pl.DataFrame(segments, schema=SEGMENTS, orient="row"),
            pl.DataFrame(blocks, schema=BLOCKS, orient="row"),
        )


def _annotations(found: Sequence[dict[str, Any]]) -> tuple[Annotation, ...]:
    read = [
        Annotation(one.get("device", 0), one["name"], one["time_us"], one["stage"] == "START")
        for one in found
    ]
    if any(tuple(map(type, one)) != (int, str, int, bool) for one in read):
        raise TypeError
    return tuple(sorted(read, key=lambda one: one.time_us))


def _checked(number: object, below: int) -> int:
    """A number that torch can have written; raises TypeError of another."""
    if type(number) is not int or not 0 <= number < below:
        raise TypeError
    return number


def _distinct(found: Sequence[object]) -> None:
    if len({id(one) for one in found}) != len(found):
        raise TypeError


class _Pools(dict[tuple[int, int], int]):
    """The numbers of pools, in the order in which they are met."""

    def __missing__(self, pool: tuple[int, int]) -> int:
        return self.setdefault(pool, len(self))
