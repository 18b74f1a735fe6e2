"""The process that reads one pickle of plain data on standard input, and writes what it holds on standard
output: ``python unpickler.py BYTES [columns]``, where BYTES is the pickle's length.

Python's own unpickler is quick. Nothing that a pickle names is looked up, so that none of it runs; and a
pickle that asks for much (memory for a number of its memo, years for a hash) ends this process and no other.
The output is JSON: ``{"wrong": …}``, or ``{"plain": …}``; of a snapshot's ``columns``, a line of JSON, and
behind it the columns of its history, one after another (``COLUMNS``).
"""

from __future__ import annotations

import gc
import json
import pickle
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NoReturn

# What is allowed: a snapshot takes six to eight times its bytes, and 0.02 s of a slow core for a MB.
MEMORY, TIMES = 256 << 20, 32
SECONDS, SECONDS_A_MB = 2, 0.3
TOGETHER = 1000  # entries: so many stay in a core's cache until each of their columns is taken
# What torch calls its entries; an entry of any other action is counted and left out.
ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "snapshot", "oom", "workspace_snapshot",
)  # fmt: skip
NUMBERS = {name: number for number, name in enumerate(ACTIONS)}
COLUMNS = {
    "action": "b", "address": "q", "bytes": "q", "stream": "q", "time_us": "q", "stack": "i", "pool": "i",
    "context": "i",
}  # fmt: skip
# torch's default is to write the C++ frames as well, the interpreter's between Python's: not the program's.
NATIVE = re.compile(r"^(\?\?)?$|\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|inl|S|so[.\d]*)$|/include/c\+\+/")
MALFORMED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)


Contexts = dict[tuple[str, str], int]


class ForeignError(pickle.UnpicklingError):
    """A name that plain data has no need of."""


class Unpickler(pickle.Unpickler):
    """Python's, which finds no class and no function."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise ForeignError(f"{module_name}.{global_name}")


class Stacks:
    """The stacks that are met, by number; the first is empty."""

    def __init__(self) -> None:
        self.frames: dict[tuple[str, str, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {(): 0}
        self.by_frames: dict[tuple[int, ...], int] = {}  # by the frames' identities
        self.last: dict[tuple[int, ...], tuple[Sequence[object], int]] = {}  # by those of three, and how many

    def number(self, frames: Sequence[dict[str, Any]] | None) -> int:
        """The number of a list of frames, without the C++ ones."""
        if not frames:
            return 0
        size = len(frames)
        ends = id(frames[0]), id(frames[size // 2]), id(frames[-1]), size
        if (last := self.last.get(ends)) and last[0] == frames:  # frames are shared: compared by identity
            return last[1]
        key = tuple(map(id, frames))
        if (found := self.by_frames.get(key)) is None:
            own = (self._frame(one) for one in frames if not NATIVE.search(one["filename"]))
            found = self.by_frames[key] = self.stacks.setdefault(tuple(own), len(self.stacks))
        self.last[ends] = frames, found
        return found

    def _frame(self, frame: dict[str, Any]) -> int:
        known = text(frame.get("name", "")), text(frame["filename"]).replace("\\", "/"), frame["line"]
        if type(known[2]) is not int or abs(known[2]) >= 1 << 31:
            raise TypeError
        return self.frames.setdefault(known, len(self.frames))


def text(value: str) -> str:
    """A text with what is no character replaced."""
    return value.encode("utf-8", "replace").decode()


def snapshot(content: Any) -> tuple[dict[str, object], list[array[int]]]:
    """A snapshot's segments, names and settings, and its history in columns. Raises MALFORMED."""
    content = {"segments": content} if isinstance(content, list) else content  # as memory_snapshot() gives it
    stacks, pools, contexts = Stacks(), {(0, 0): 0}, {("", ""): 0}
    segments, blocks = content["segments"], [block for one in content["segments"] for block in one["blocks"]]
    traces = content.get("device_traces", ())
    for listed in (segments, blocks, [trace for trace in traces if trace]):  # each is written once by torch
        if len({*map(id, listed)}) != len(listed):
            raise TypeError
    columns: list[array[int]] = [array(code) for code in COLUMNS.values()]
    for trace in traces:
        for begin in range(0, len(trace), TOGETHER):
            some = entries(trace[begin : begin + TOGETHER], stacks, pools, contexts)
            for column, values in zip(columns, some, strict=True):
                column.fromlist(values)
    found: dict[str, object] = {
        "segments": [[*segment(one, pools), stacks.number(one.get("frames"))] for one in segments],
        "blocks": [
            [[*block(one), stacks.number(one.get("frames"))] for one in segment["blocks"]]
            for segment in segments
        ],
        "sizes": [len(trace) for trace in traces],
        "stacks": [*stacks.stacks],
        "frames": [*stacks.frames],
        "pools": [*pools],
        "contexts": [*contexts],
        "settings": content.get("allocator_settings", {}),
        "annotations": [
            [one.get("device", 0), one["name"], one["time_us"], one["stage"] == "START"]
            for one in content.get("external_annotations", ())
        ],
    }
    return found, columns


def entries(
    trace: Sequence[dict[str, Any]], stacks: Stacks, pools: dict[Any, int], contexts: Contexts
) -> Iterable[list[int]]:
    """The columns of some entries of one device's history."""
    yield [NUMBERS.get(action, -1) for action in column(trace, "action")]
    yield column(trace, "addr", "device_free")
    for key in ("size", "stream", "time_us"):
        yield column(trace, key)
    yield [*map(stacks.number, column(trace, "frames"))]
    named = column(trace, "pool_id")
    yield [pool(one, pools) for one in named] if any(named) else [0] * len(trace)
    sides = [column(trace, key) for key in ("user_metadata", "compile_context")]
    said = [{value: noted(value) for value in {*side}} for side in sides]  # a few texts, of many entries
    if all(set(texts.values()) <= {""} for texts in said):
        yield [0] * len(trace)
        return
    yield [
        contexts.setdefault((said[0][metadata], said[1][compiling]), len(contexts))
        for metadata, compiling in zip(*sides, strict=True)
    ]


def noted(value: Any) -> str:
    """The text of a note; empty where torch noted nothing."""
    return "" if value is None or value == "N/A" else text(str(value))


def column(trace: Sequence[dict[str, Any]], key: str, other: str = "") -> list[Any]:
    """A value of each entry; without it that of another name, or None, which is no number."""
    try:
        return [*map(itemgetter(key), trace)]
    except KeyError:
        return [one.get(key, one.get(other)) for one in trace]


def pool(value: Any, pools: dict[Any, int]) -> int:
    """The number of a pool, by torch's pair of numbers."""
    return 0 if value is None else pools.setdefault(tuple(value), len(pools))


def segment(one: dict[str, Any], pools: dict[Any, int]) -> list[object]:
    number = pool(one.get("segment_pool_id"), pools)
    place = one.get("device", 0), one["address"], one["total_size"], one["stream"]
    return [*place, number, bool(one.get("is_expandable", False))]


def block(one: dict[str, Any]) -> list[object]:
    return [one["size"], one.get("requested_size", one["size"]), one["state"]]


def confine(size: int) -> None:
    """Have the system end this process if it takes more than a pickle of so many bytes needs."""
    try:
        import resource
    except ImportError:  # Windows: the parent alone watches the time
        return
    seconds = int(SECONDS + SECONDS_A_MB * size / 1e6)
    for limit, most in (
        (resource.RLIMIT_AS, MEMORY + TIMES * size),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(limit, (most, hard))


def main(size: int, *, columns: bool) -> None:
    confine(size)
    gc.disable()  # nothing is released before the end
    out = sys.stdout.buffer
    try:
        content = Unpickler(sys.stdin.buffer).load()
    except ForeignError as error:
        wrong = f"the pickle holds more than plain data, and is not opened: it names {error}"
    except (*MALFORMED, pickle.UnpicklingError, EOFError, MemoryError, RecursionError, ImportError) as error:
        wrong = f"the pickle is damaged: {type(error).__name__}"
    else:
        try:
            found, values = snapshot(content) if columns else ({"plain": content}, [])
            line = json.dumps(found).encode()
        except (*MALFORMED, MemoryError, RecursionError) as error:
            what = "no snapshot of torch's allocator" if columns else "no plain data"
            wrong = f"the pickle is {what}: {type(error).__name__}"
        else:
            out.write(line + b"\n")
            for one in values:
                out.write(memoryview(one).cast("B"))
            out.flush()
            return
    out.write(json.dumps({"wrong": wrong}).encode())
    out.flush()


if __name__ == "__main__":
    import os

    main(int(sys.argv[1]), columns=sys.argv[2:] == ["columns"])
    os._exit(0)  # what was read is not taken apart object by object
