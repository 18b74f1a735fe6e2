"""The runs that a command reads, or what it found in them before; on a terminal's stderr: how far it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from msgspec import Struct

from kinetoscope import numbers
from kinetoscope.analysis.memo import SHELVES
from kinetoscope.errors import InputError
from kinetoscope.render import names
from kinetoscope.sources import kept
from kinetoscope.sources.paths import are_small
from kinetoscope.sources.paths import find as find_files
from kinetoscope.trace.cache import WORTH_KEEPING

if TYPE_CHECKING:
    from kinetoscope.sources.run import LoadedRun

Found = TypeVar("Found", bound=Struct | None)

PATIENCE = 1.0  # seconds that pass in silence
EVERY = 0.1  # seconds between two lines on a terminal
PROCESSOR = 36  # field of /proc/thread-self/stat after the name: the core that the thread is on


class Reader:
    """``load_shown``, as a command that is answered calls it; it may know other commands' answers by then."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self.inputs = inputs
        self.remarks: list[str] = []
        self.known: list[tuple[str, dict[str, object], Struct]] = []

    def __call__(
        self, inputs: str | Sequence[str], meanwhile: Callable[[], object] | None = None
    ) -> LoadedRun:
        given = [inputs] if isinstance(inputs, str) else inputs
        place = kept.shelf(given)
        run = load_shown(given, meanwhile, links=False)
        self.remarks.extend(run.remarks)
        large = {at: trace for at, trace in enumerate(run.traces) if trace.source.events >= WORTH_KEEPING}
        if large and place is not None and place == kept.shelf(given):  # nothing changed meanwhile
            SHELVES[run] = kept.KeptTables(place, "run")
            SHELVES.update((trace, kept.KeptTables(place, str(at))) for at, trace in large.items())
        return run

    def knows(self, kind: str, found: Struct, /, **options: object) -> None:
        """Keep this too, as what ``answered`` finds of this kind with these options in the same inputs."""
        self.known.append((kind, options, found))

    def knew(self, kind: str, /, **options: object) -> Any:
        """An answer of this kind, with these options, that was found in all inputs before; None where
        none is known. Inputs are still read, so that what is remarked of them is said."""
        entry = kept.entry(self.inputs, _asked(kind, options))
        found = None if entry is None else kept.recall(entry, kind)
        return None if found is None else found[1]


def answered(
    inputs: Sequence[str], kind: str, find: Callable[[Reader], Found], /, **options: object
) -> Found:
    """Give what ``find`` finds in the runs that it reads; or what it found before, if nothing has changed.

    Args:
        inputs: all that ``find`` reads.
        kind: ``module:name`` of the struct that it gives. A command that reads loads no such module before.
        options: whatever else the answer depends on.

    Raises:
        InputError: an input cannot be used.
    """
    asked = _asked(kind, options)
    entry = kept.entry(inputs, asked)
    known = None if entry is None else kept.recall(entry, kind)
    if known is not None:
        _say(known[0])
        return known[1]
    read = Reader(inputs)
    with _on_one_core(inputs):
        found = find(read)
    if entry is not None and entry == kept.entry(inputs, asked):  # nothing changed while it was read
        kept.keep(entry, kind, read.remarks, found)
        for another, its_options, answer in read.known:
            if (place := kept.entry(inputs, _asked(another, its_options))) is not None:
                kept.keep(place, another, read.remarks, answer)
    return found


def _asked(kind: str, options: dict[str, object]) -> str:
    return f"{kind} {sorted(options.items())}"


@contextmanager
def _on_one_core(inputs: Sequence[str]) -> Generator[None]:
    """Keep this process to the core that it runs on, where traces are small and cores idle.

    Python's thread waits whenever Polars' one works, so that both fill one core; to wake an idle one takes
    longer than most calls. Where much else runs, cores are awake, and who cannot move waits longer. At the
    end every thread has all cores again, and so has a browser that one starts.
    """
    cores: set[int] = set()
    with suppress(AttributeError, OSError, InputError):  # another system; who reads them says it
        every = os.sched_getaffinity(0)
        if os.getloadavg()[0] < len(every) and are_small(find_files(inputs).traces):
            core = Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[PROCESSOR]
            os.sched_setaffinity(0, {int(core)})
            cores = every
    try:
        yield
    finally:
        for thread in Path("/proc/self/task").iterdir() if cores else ():
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread.name), cores)


def load_shown(
    inputs: str | Sequence[str], meanwhile: Callable[[], object] | None = None, *, links: bool = True
) -> LoadedRun:
    """``load`` for a command: what takes long, and what was left out, shows on stderr.

    Args:
        meanwhile: done on a thread of its own while other processes decode the first trace.
        links: see ``load``.

    Raises:
        InputError: an input cannot be used.
    """
    started = meanwhile is None
    from kinetoscope.sources.run import load  # no answer that was kept needs it

    with ReadingProgress(sys.stderr) as shown:

        def progress(path: Path, done: int, size: int) -> None:
            nonlocal started
            if not started:
                started = True
                Thread(target=meanwhile).start()
            shown(path, done, size)

        run = load(*([inputs] if isinstance(inputs, str) else inputs), progress=progress, links=links)
    _say(run.remarks)
    return run


def _say(remarks: Sequence[str]) -> None:
    for sentence in remarks:
        sys.stderr.write(f"kinetoscope: {names.plain(sentence)}\n")


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
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
