"""Progress on a terminal's stderr while a large trace is read: how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import TextIO

from kinetoscope import numbers
from kinetoscope.render import names
from kinetoscope.sources.run import LoadedRun, load

PATIENCE = 1.0  # seconds that pass in silence
EVERY = 0.1  # seconds between two lines on a terminal


def load_shown(inputs: str | Sequence[str], meanwhile: Callable[[], object] | None = None) -> LoadedRun:
    """``load`` for a command: what takes long, and what was left out, shows on stderr.

    Args:
        meanwhile: done on a thread of its own while other processes decode the first trace.

    Raises:
        InputError: an input cannot be used.
    """
    started = meanwhile is None
    with ReadingProgress(sys.stderr) as shown:

        def progress(path: Path, done: int, size: int) -> None:
            nonlocal started
            if not started:
                started = True
                Thread(target=meanwhile).start()
            shown(path, done, size)

        run = load(*([inputs] if isinstance(inputs, str) else inputs), progress=progress)
    for sentence in run.remarks:
        sys.stderr.write(f"kinetoscope: {names.plain(sentence)}\n")
    return run


class ReadingProgress:
    """Called with each trace's path, the bytes read of it and its size; silent for the first second.

    As a context it shows on ``stream`` what is read inside of the block.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._began = self._last = clock()
        self._done: dict[Path, int] = {}
        self._shown = False

    def __call__(self, path: Path, done: int, size: int) -> None:
        self._done[path] = done
        now = self._clock()
        if now - self._began < PATIENCE or now - self._last < EVERY or not self._stream.isatty():
            return
        self._last, self._shown = now, True
        share = numbers.percent(done / size) if size else ""
        self._stream.write(f"\r\x1b[Kreading {names.shorten(path.name, 40)}  {share}")
        self._stream.flush()

    def __enter__(self) -> ReadingProgress:
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
