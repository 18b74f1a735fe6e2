"""CUDA graphs: how each is captured, recorded once with its ops and lines, and which is replayed when.

A replay's kernels say nothing of the ops that put them into the graph; its capture does, launch for launch
(see ``trace.captures``). A capture is recorded in a session of the profiler of its own, which starts before
the capture begins and ends after it has ended. One that falls into the recording of the program's first steps
is in that, which is kept: to end a session inside the ops and backward passes that it records, where Inductor
captures, crashes the process.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from kinetoscope.capture.recorder.lines import Lines, hindrance, is_model_code
from kinetoscope.capture.recorder.profiler import KinetoSession, Replay, TorchDevice

# Engines capture some seventy batches; what is beyond this much time or so many stays without its ops.
MOST, LONGEST_S = 256, 8.0
# Calls that put work into a graph, as Kineto writes them.
LAUNCHED = re.compile(rb'"name": *"(?:cu|cuda|hip)(?:Ext)?(?:Module)?(?:LaunchKernel|Memcpy|Memset)')
# Engines capture before they serve. A program that captures anew again and again, and replays between, would
# have no step that no capture is recorded in.
ANEW = 8


class GraphCaptures:
    """Records captures, one after the other, into numbered files next to the ``trace`` of the steps."""

    def __init__(self, device: TorchDevice, trace: Path) -> None:
        self.device, self.trace = device, trace
        self.replayed = self.anew = 0
        # by the numbers of their captures; one that holds several stands there several times
        self.paths: list[Path] = []
        self.missed = 0  # captures that were not recorded
        self.launches: dict[int, int] = {}  # in each capture, where that was asked
        self.first = trace.with_suffix(".first.json")
        self.session: KinetoSession | None = None
        self.noting: tuple[KinetoSession, Lines] | None = None  # lines of a capture in another's recording
        self.spent_s = 0.0
        self.numbers: WeakKeyDictionary[Any, int] = device.captures.numbers

    def wanted(self) -> bool:
        """Whether one more capture may be recorded; it counts as missed otherwise."""
        replayed = self.device.captures.replayed()
        self.anew += replayed > self.replayed
        self.replayed = replayed
        if len(self.paths) < MOST and self.spent_s < LONGEST_S and self.anew <= ANEW:
            return True
        self.missed += 1
        return False

    def seen(self, graph: Any, session: KinetoSession | None) -> None:
        """A capture of the first steps' recording begins; its lines go into the ``session``, if any."""
        self.numbers[graph] = len(self.paths)
        self.paths.append(self.first)
        if session is not None and hindrance() is None:
            self.noting = session, Lines(is_model_code)
            self.noting[1].start(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def keep_first(self) -> None:
        """The recording of the first steps is written: keep it, if captures are in it."""
        if self.first in self.paths:
            shutil.copyfile(self.trace, self.first)

    def begin(self, graph: Any) -> None:
        """Record the capture that is about to begin in this thread."""
        began = time.perf_counter()
        session = self.device.session(kind="capture", any_thread=False)
        session.prepare()
        session.start()
        self.session = session
        self.numbers[graph] = len(self.paths)
        self.spent_s += time.perf_counter() - began

    def end(self, graph: Any) -> bool:
        """The capture has ended: write it. Returns whether it had a session of its own."""
        if self.noting is not None:
            (session, lines), self.noting = self.noting, None
            lines.stop()
            session.steps += lines.events()
        session, self.session = self.session, None
        if session is None:
            return False
        began = time.perf_counter()
        session.stop()
        path = self.trace.with_suffix(f".capture{len(self.paths)}.json")
        try:
            session.export(path)
            self.paths.append(path)
        except OSError:  # the disk is full: its kernels stay without their ops
            self.numbers.pop(graph, None)
            self.missed += 1
        self.spent_s += time.perf_counter() - began
        return True

    def launched(self, replays: Sequence[Replay]) -> int:
        """How many launches of recorded captures these replays are of."""
        each = Counter(replay.number for replay in replays)
        return sum(self._launches(number) * count for number, count in each.items())

    def _launches(self, number: int) -> int:
        if number not in self.launches:
            with suppress(OSError):
                self.launches[number] = len(LAUNCHED.findall(self.paths[number].read_bytes()))
        return self.launches.get(number, 0)

    def kept_with(self, session: KinetoSession, trace: Path) -> list[Path]:
        """Put the captures that were replayed in a session next to its trace, and number its replays by them.
        Raises OSError where the disk is full."""
        numbers = sorted({replay.number for replay in session.replays})
        session.replays = [one._replace(number=numbers.index(one.number)) for one in session.replays]
        kept = [trace.with_suffix(f".capture{place}.json") for place in range(len(numbers))]
        for number, path in zip(numbers, kept, strict=True):
            _linked(self.paths[number], path)
        return kept

    def removed(self) -> None:
        """Remove the files, whose links in recordings stay."""
        with suppress(OSError):
            for path in self.paths:
                path.unlink(missing_ok=True)
            self.trace.parent.rmdir()

    def notes(self) -> list[str]:
        """A sentence on captures that were not recorded."""
        if not self.missed:
            return []
        return [f"{self.missed} captures of CUDA graphs were not recorded: their kernels have no op"]


def _linked(path: Path, to: Path) -> None:
    try:
        os.link(path, to)
    except OSError:  # a file system without links
        shutil.copyfile(path, to)
