"""Writing step annotations into a trace that Kineto exported without any, in one go, whatever its size."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

# Kineto writes what it says of the whole trace before the events or after them, and no more than this of it.
SURROUNDINGS = 1 << 16
OPENING = re.compile(rb'"traceEvents"\s*:\s*\[\s*')
BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')


class MarkedStep(NamedTuple):
    """A step, or the ``part`` of one: its beginning and end on the wall clock in nanoseconds, and the thread
    that marked it."""

    number: int
    began_ns: int
    ended_ns: int
    pid: int
    tid: int
    part: str | None = None

    def event(self, base_ns: int) -> dict[str, Any]:
        """The annotation as torch.profiler would have exported it, in microseconds after ``base_ns``."""
        return {
            "ph": "X",
            "cat": "user_annotation",
            "name": self.part or f"ProfilerStep#{self.number}",
            "pid": self.pid,
            "tid": self.tid,
            "ts": (self.began_ns - base_ns) / 1000,
            "dur": (self.ended_ns - self.began_ns) / 1000,
        }


def annotate(exported: Path, steps: Sequence[MarkedStep], path: Path) -> None:
    """Write the trace ``exported`` to ``path`` with annotations of ``steps``, whole or not at all.

    Raises:
        ValueError: it is no trace of Kineto's.
        OSError: it cannot be written.
    """
    temporary = path.with_suffix(".tmp.json")
    try:
        _copy(exported, temporary, steps)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _copy(exported: Path, path: Path, steps: Sequence[MarkedStep]) -> None:
    with exported.open("rb") as source, path.open("wb") as target:
        start = source.read(SURROUNDINGS)
        opening = OPENING.search(start)
        if opening is None:
            raise ValueError("the exported trace has no events to add the steps to")
        base = BASE.search(start[: opening.start()]) or BASE.search(_ending(source))
        events = [json.dumps(step.event(int(base[1]) if base else 0)).encode() for step in steps]
        target.write(start[: opening.end()])
        target.write(b",\n".join(events))
        if events and start[opening.end() : opening.end() + 1] != b"]":
            target.write(b",\n")
        source.seek(opening.end())
        shutil.copyfileobj(source, target, 1 << 20)


def _ending(source: BinaryIO) -> bytes:
    size = source.seek(0, 2)
    source.seek(max(0, size - SURROUNDINGS))
    return source.read()
