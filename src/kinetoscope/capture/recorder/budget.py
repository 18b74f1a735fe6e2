"""Ending the recording of a program's beginning before it grows without bound."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from pathlib import Path

from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.decisions import Decisions

LIMIT_S = 60.0
LOOK_EVERY_S = 0.25


class Budget:
    """Looks at the clock and at the process's memory while the beginning is recorded, in its own thread.

    The number of events so far cannot be asked for, but each takes memory: an eager op about 400 bytes. Time
    in which something compiles does not count: hardly anything is recorded in it.

    Args:
        running: whether there is anything to end.
        compiling: whether something compiles.
        spent: called with the reason, again and again until nothing runs any more. It may stop nothing
            itself: the program's threads may be in the middle of a CUDA call.
    """

    def __init__(
        self,
        running: Callable[[], bool],
        compiling: Callable[[], bool],
        spent: Callable[[str], None],
        options: Options,
        decisions: Decisions,
    ) -> None:
        self.running, self.compiling, self.spent, self.options = running, compiling, spent, options
        self.limit_bytes = options.budget_mb * 1_000_000
        self.limit_s = decisions.seconds(LIMIT_S, 4.0)

    def watch(self) -> None:
        # A thread that `threading` does not list: the program's own count of its threads stays what it was.
        _thread.start_new_thread(self._look, ())

    def _look(self) -> None:
        before, recorded_s, looked = resident_bytes(), 0.0, time.monotonic()
        while self.running():
            time.sleep(min(LOOK_EVERY_S, self.limit_s))
            now = time.monotonic()
            if not self.compiling():
                recorded_s += now - looked
            looked = now
            if resident_bytes() - before > self.limit_bytes:
                self.spent(f"the process had grown by {self.options.budget_mb} MB (--budget)")
            elif not self.options.whole and recorded_s > self.limit_s:
                self.spent(f"no steps were found in {self.limit_s:.0f} s (--whole goes on)")


def resident_bytes() -> int:
    """The memory of this process that is in use and no file's; 0 where the system does not say."""
    try:
        resident, of_files = Path("/proc/self/statm").read_text().split()[1:3]
        return (int(resident) - int(of_files)) * 4096
    except (OSError, ValueError):
        return 0
