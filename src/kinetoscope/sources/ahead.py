"""Read a recording whose program goes on, so that its tables are kept when the report asks for them.

    python -m kinetoscope.sources.ahead FOLDER

The program comes first: this process gets only the time in which a core has nothing else to do, and is the
one that is ended where memory runs out.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from kinetoscope.errors import KinetoscopeError
from kinetoscope.sources.run import load


def _ended(number: int, frame: FrameType | None) -> None:
    """Leave no half of a table behind."""
    sys.exit(0)


def main(folder: str) -> None:
    """Read all of the recording and drop it."""
    os.nice(19)
    with suppress(OSError, AttributeError):  # Linux alone has it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    signal.signal(signal.SIGTERM, _ended)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # who started us has it blocked
    with suppress(KinetoscopeError, OSError, MemoryError):  # the report will say it
        load(folder)


if __name__ == "__main__":
    main(sys.argv[1])
