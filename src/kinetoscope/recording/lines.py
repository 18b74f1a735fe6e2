"""``lines/rank0.json`` of a recording: from which lines of the program one step's ops were called.

Of each thread it has all ops in the order in which they began, so that another step's ops can be compared
with them; times are left out, since Python's hook makes them longer.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file

SCHEMA = "kinetoscope.lines/1"
NONE = -1  # an op of no Python function (autograd's own threads), or of no module


class CallFrame(msgspec.Struct, frozen=True, array_like=True):
    """A Python function on the way to an op.

    ``line`` is that of the call; where ``exact`` is false, the function's first one: an operator
    (``a + b``) calls its op without a call that Python reports. ``is_own``: the file is of the program, and
    of no installed library.
    """

    file: str
    line: int
    function: str
    exact: bool = True
    is_own: bool = False


class ThreadOps(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of one thread, one entry each: ``names`` a row of the file's ``names``, ``stacks`` of its
    ``stacks``, ``modules`` of its ``modules``; ``depths`` counts the ops around it."""

    names: list[int]
    depths: list[int]
    stacks: list[int]
    modules: list[int]


class StepLines(msgspec.Struct, frozen=True, kw_only=True):
    """One step's ops and their lines.

    ``stacks``: (the stack of the caller or -1, a row of ``frames``), callers before those whom they call.
    ``step_s``: seconds that the step took with Python's hook, which no other figure includes.
    """

    schema: str = SCHEMA
    step: int = 0
    step_s: float = 0.0
    names: list[str] = []
    modules: list[str] = []
    frames: list[CallFrame] = []
    stacks: list[tuple[int, int]] = []
    threads: list[ThreadOps] = []


def read(path: Path) -> StepLines:
    """Read the file.

    Raises:
        InputError: it cannot be read, or names rows that it does not have.
    """
    try:
        lines = msgspec.json.decode(plain_file.content(path), type=StepLines)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the lines of the program are damaged: {error}", where=str(path)) from error
    if not _is_whole(lines):
        raise InputError("the lines of the program are damaged: rows are missing", where=str(path))
    return lines


def _is_whole(lines: StepLines) -> bool:
    if not all(
        NONE <= parent < row and 0 <= frame < len(lines.frames)
        for row, (parent, frame) in enumerate(lines.stacks)
    ):
        return False
    return all(
        len(thread.names) == len(thread.depths) == len(thread.stacks) == len(thread.modules)
        and all(0 <= name < len(lines.names) for name in thread.names)
        and all(NONE <= stack < len(lines.stacks) for stack in thread.stacks)
        and all(NONE <= module < len(lines.modules) for module in thread.modules)
        for thread in lines.threads
    )
