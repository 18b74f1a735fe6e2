"""Whether a file holds memory: found out before a trace is read, so nothing heavy is loaded here."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

_SNAPSHOTS = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_TIMELINES = (".json", ".json.gz")


def is_snapshot(path: Path) -> bool:
    """Whether a file is a pickle, by its name and its first byte."""
    begin = _begin(path, _SNAPSHOTS)
    # What cannot be read is one by its name: ``read`` says what is wrong with it.
    return begin is None or begin.startswith(b"\x80")


def is_timeline(path: Path) -> bool:
    """Whether a file is a list of lists of numbers; a trace is none."""
    begin = _begin(path, _TIMELINES)
    # The reader of traces says what is wrong with what cannot be read.
    return begin is not None and begin.replace(b" ", b"").startswith(b"[[")


def _begin(path: Path, suffixes: tuple[str, ...]) -> bytes | None:
    """The first bytes of a file with one of these suffixes, empty of others; None where it cannot be read."""
    if not path.name.endswith(suffixes) or not path.is_file():
        return b""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(64)
    except (OSError, EOFError, zlib.error):
        return None
