"""``whole_run/rank0.json`` of a recording: what a process did from its start to its end, as samples of a
thread's stack found it.

The samples are kept as a tree. A node is a function that its parent called, a line at which its parent stood,
or something that torch or Python does there and that has a name, such as ``importing``: the functions in
which they do it are no nodes. Where a sample was taken is a node, its stack the path to it from the root.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, get_args

import msgspec

from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file
from kinetoscope.recording.manifest import UNREADABLE

SCHEMA = "kinetoscope.whole_run/1"
# before: until steps are known; settling: steps are known, and their time settles; timed: steps are timed and
# recorded, the recorder's own work left out; after: nothing is recorded any more.
Period = Literal["before", "settling", "timed", "after"]
PERIODS: tuple[Period, ...] = get_args(Period)
MOST_NODES = 4000
LONGEST_S = 1e9


class SampledPlace(msgspec.Struct, frozen=True, array_like=True):
    """A function by file, name and first line; ``file`` is empty where torch or Python does ``name``."""

    file: str
    name: str
    line: int


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A node of the tree; seconds and samples are those of paths that end here."""

    parent: int  # its number, which is less than the node's own; -1: none
    place: int  # the number of the function, or of what torch or Python does; -1: a line of the parent
    line: int  # the line, where it is one
    seconds: tuple[float, float, float, float]  # by period
    samples: tuple[int, int, int, int]  # by period
    # how many times in a row the node was on the stack: of calls that are shorter than the distance between
    # samples, those that were seen
    stays: int
    longest_s: float  # from the first to the last sample of the longest of those
    # when it was first and last on the stack, in seconds since sampling began; 0 where that is not known
    first_s: float = 0.0
    last_s: float = 0.0


class WholeRun(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    # seconds before the first sample: the interpreter's start, and the import of torch
    earlier_s: float = 0.0
    ours_s: float = 0.0  # seconds in which the program stood still for the recording, or was recorded
    unseen_s: float = 0.0  # seconds without samples: while a profiler of the program's own ran
    cpu_s: float = 0.0  # what sampling took of the processor
    places: tuple[SampledPlace, ...] = ()
    nodes: tuple[Node, ...] = ()
    tick: int | None = None  # where a step was found to begin or end; None before one was


def read(path: Path) -> WholeRun:
    """Raises:
    InputError: the file is damaged, or no tree.
    """
    try:
        found = msgspec.json.decode(plain_file.content(path), type=WholeRun)
    except (OSError, *UNREADABLE) as error:
        raise InputError(f"the watch over the whole run is damaged: {error}", where=str(path)) from error
    if not _is_sound(found):
        raise InputError("the watch over the whole run is damaged: it is no tree of samples", where=str(path))
    return found


def _is_sound(found: WholeRun) -> bool:
    nodes = found.nodes
    seconds = [found.earlier_s, found.ours_s, found.unseen_s, found.cpu_s]
    seconds += [
        value for node in nodes for value in (*node.seconds, node.longest_s, node.first_s, node.last_s)
    ]
    counts = [value for node in nodes for value in (*node.samples, node.stays, node.line)]
    return (
        len(nodes) <= MOST_NODES
        and all(math.isfinite(value) and 0 <= value <= LONGEST_S for value in seconds)
        and all(0 <= value < 1 << 53 for value in counts)
        and all(-1 <= node.parent < number for number, node in enumerate(nodes))
        and all(-1 <= node.place < len(found.places) for node in nodes)
        and (found.tick is None or 0 <= found.tick < len(nodes))
    )
