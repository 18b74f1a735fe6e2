"""Standard input as a file: readers of traces and logs go back and forth in theirs."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from kinetoscope.errors import UsageError

NAME = "standard-input"


@contextmanager
def standard_input() -> Generator[Path, None, None]:
    """A file that holds all of standard input, for the length of a ``with`` block.

    Raises:
        UsageError: it is a terminal, or closed.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "there is nothing on standard input", where="-", mend="zcat trace.json.gz | kinetoscope report -"
        )
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        path = Path(folder) / NAME
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
        yield path
