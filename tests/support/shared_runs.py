"""Runs that tests load again and again: read, and each of their analyses done, once a worker.

Runs and traces cannot be changed, and analyses are remembered for as long as their subject lives. So
``load`` gives the run that it gave before while its files hold what they held, and ``read`` the trace of a
recording of the project's own. In a test that changes the code (``monkeypatch.setattr``) both read anew.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kinetoscope.sources import run as runs
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace import read as reading
from kinetoscope.trace.model import Trace

MOST_EVENTS = 1_000_000  # of what is kept
MOST_BYTES = 20_000_000  # of files that are compared by their content


class Shared:
    """What was read, that which was last asked for the longest; ``off``: nothing is given twice."""

    def __init__(self) -> None:
        self.folders: tuple[Path, ...] = ()
        self.off = False
        self._kept: OrderedDict[object, tuple[Any, int]] = OrderedDict()

    def given(self, asked: str, inputs: Iterable[object], make: Callable[[], Any]) -> Any:
        if self.off:
            return make()
        paths = [Path(str(one)) for one in inputs]
        content = _content(paths)
        if content is None:
            return self._anew(make)
        settings = sorted(item for item in os.environ.items() if item[0].startswith("KINETOSCOPE_"))
        key = (asked, Path.cwd(), *map(str, paths), content, *settings)
        if key not in self._kept:
            made = self._anew(make)
            self._kept[key] = made, sum(one.source.events for one in getattr(made, "traces", (made,)))
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(events for _, events in self._kept.values()) > MOST_EVENTS:
            self._kept.popitem(last=False)
        return self._kept[key][0]

    def _anew(self, make: Callable[[], Any]) -> Any:
        """What is made of files read anew: one that a run names twice is two traces of it."""
        self.off = True
        try:
            return make()
        finally:
            self.off = False


def _content(paths: list[Path]) -> str | None:
    """A digest of all that lies in these files and folders; None of what is no file, or much."""
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    files = [file for file in files if not file.is_dir()]
    if not all(file.is_file() for file in files) or sum(file.stat().st_size for file in files) > MOST_BYTES:
        return None
    digest = hashlib.blake2b()
    for file in files:
        try:
            content = file.read_bytes()
        except OSError:
            return None
        digest.update(f"{file} {len(content)} ".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


shared = Shared()
_load, _read = runs.load, reading._read


def load(*inputs: str | Path, progress: runs.Progress | None = None, links: bool = True) -> LoadedRun:
    """``load``, with links whether these are asked for or not."""
    return shared.given("load", inputs, lambda: _load(*inputs, progress=progress))


def read(path: Path, progress: reading.Progress | None) -> Trace:
    if not any(folder in path.parents for folder in shared.folders):
        return _read(path, progress)
    return shared.given("read", [path], lambda: _read(path, progress))


def share(*folders: Path) -> None:
    """Share runs from now on, and the traces in these folders; before anything imports ``load``."""
    shared.folders = folders
    runs.load, reading._read = load, read
