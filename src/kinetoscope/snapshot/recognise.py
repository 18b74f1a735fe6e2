"""Whether a file holds memory: found out before a trace is read, so nothing heavy is loaded here."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

_SNAPSHOTS = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_TIMELINES = (".json", ".json.gz")


def is_snapshot(path: Path) -> bool:
    """Whether a file is a pickle, by its name and its first byte."""
    if not path.name.endswith(_SNAPSHOTS) or not path.is_file():
        return False
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(1) == b"\x80"
    except (OSError, EOFError, zlib.error):
        return True  # by its name: ``read`` says what is wrong with it


def is_timeline(path: Path) -> bool:
    """Whether a file is a list of lists of numbers; a trace is none."""
    if not path.name.endswith(_TIMELINES) or not path.is_file():
        return False
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(64).replace(b" ", b"").startswith(b"[[")
    except (OSError, EOFError, zlib.error):
        return False  # the reader of traces says what is wrong with it
