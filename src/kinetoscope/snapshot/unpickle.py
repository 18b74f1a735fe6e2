"""Pickles of plain data, read in a process of their own (``unpickler``), without running anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from kinetoscope.errors import InputError
from kinetoscope.snapshot import unpickler

HINT = "name what torch.cuda.memory._dump_snapshot wrote"
PATIENCE = 20  # times the seconds that its process may compute: the machine may be busy
TOO_MUCH = "the pickle is damaged: it asks for more memory or time than pickles of its size need"


class _Answer(msgspec.Struct):
    wrong: str | None = None
    plain: object = None


def load(data: bytes, where: str) -> object:
    """The plain data that a pickle holds, as JSON would have them. Raises InputError where it is damaged, or
    holds more than plain data."""
    return _checked(asked(data, where), where).plain


def columns(source: bytes | Path, where: str) -> tuple[bytes, memoryview]:
    """The head of a snapshot, as JSON, and the columns of its history, one after another. Raises InputError
    where it is damaged, is no snapshot, or holds more than plain data."""
    found = asked(source, where, "columns")
    end = found.find(b"\n")
    if end < 0:
        _checked(found, where)
    return found[:end], memoryview(found)[end + 1 :]


def asked(source: bytes | Path, where: str, *words: str) -> bytes:
    """The answer of the process that reads a pickle."""
    size = source.stat().st_size if isinstance(source, Path) else len(source)
    command = [sys.executable, "-I", "-S", unpickler.__file__, str(size), *words]
    seconds = PATIENCE * (unpickler.SECONDS + unpickler.SECONDS_A_MB * size / 1e6)
    try:
        if isinstance(source, bytes):
            done = subprocess.run(command, input=source, capture_output=True, timeout=seconds, check=False)
        else:
            with source.open("rb") as file:
                done = subprocess.run(command, stdin=file, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise InputError(TOO_MUCH, where=where, hint=HINT) from error
    if done.returncode or not done.stdout:
        raise InputError(TOO_MUCH, where=where, hint=HINT)
    return done.stdout


def _checked(answer: bytes, where: str) -> _Answer:
    """Raises InputError where a pickle could not be read."""
    found = msgspec.json.decode(answer, type=_Answer)
    if found.wrong is not None:
        raise InputError(found.wrong, where=where, hint=HINT)
    return found
