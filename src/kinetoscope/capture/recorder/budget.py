"""Ending a recording of the whole program before it grows without bound."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from pathlib import Path

from kinetoscope.capture.options import Options

LIMIT_S = 60.0
LOOK_EVERY_S = 0.25


class Budget:
    """Looks at the clock and at the process's memory while a provisional recording runs.

    The number of events so far cannot be asked for, but each takes memory: an eager op about 400 bytes.
    """

    def __init__(self, running: Callable[[], bool], spent: Callable[[str], None], options: Options) -> None:
        self.running, self.spent, self.options = running, spent, options
        self.limit_bytes = options.budget_mb * 1_000_000

    def watch(self) -> None:
        # A thread that `threading` does not list: the program's own count of its threads stays what it was.
        _thread.start_new_thread(self._look, ())

    def _look(self) -> None:
        began, before = time.monotonic(), resident_bytes()
        while self.running():
            time.sleep(LOOK_EVERY_S)
            if resident_bytes() - before > self.limit_bytes:
                self.spent(
                    f"recording stopped when the process had grown by {self.options.budget_mb} MB (--budget)"
                )
            elif not self.options.whole and time.monotonic() - began > LIMIT_S:
                self.spent(
                    f"no steps were found in the first {LIMIT_S:.0f} s: "
                    "recording stopped there (--whole goes on)"
                )


def resident_bytes() -> int:
    """The memory of this process that is in use; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0
