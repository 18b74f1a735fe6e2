"""At which step all ranks begin to time and record, and how many they time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from kinetoscope.capture.steps.timing import PATIENCE, QUEUE_PATIENCE
from kinetoscope.recording.folder import agreements


class Start(Protocol):
    """Agrees with the other ranks, if there are any, on the step at which all start to time and record.

    Args:
        index: the step that begins.
        settled: this rank's step time has settled.
        timed: how many steps this rank would time.

    Returns:
        How many steps to time from here on; None: not yet.
    """

    def __call__(self, index: int, settled: bool, timed: int) -> int | None: ...


def at_once(index: int, settled: bool, timed: int) -> int | None:
    """The agreement of a process that is alone."""
    return timed if settled else None


class StartAgreement:
    """All ranks start at the step that one of them names, a few steps ahead, in a file of the recording.

    Ranks of several hosts agree where those have one ``--out``, on a disk that they share.
    Ranks of a data-parallel program reach a step together, give or take the launches the host runs ahead. One
    that does not see the file (another machine, another file system) goes by its own clock after a while.
    """

    AHEAD = 4
    UNSEEN = 3 * PATIENCE + QUEUE_PATIENCE

    def __init__(self, folder: Path, *, leads: bool) -> None:
        self.path = agreements(folder) / "start"
        self.leads = leads
        self.agreed: tuple[int, int] | None = None  # the first step, and how many are timed

    def __call__(self, index: int, settled: bool, timed: int) -> int | None:
        if self.agreed is None:
            if self.leads and settled:
                self._name(index + self.AHEAD, timed)
            elif not self.leads and self.path.exists():
                first, timed = map(int, self.path.read_text().split())
                self.agreed = first, timed
            elif index >= self.UNSEEN:
                return timed if settled else None
        return self.agreed[1] if self.agreed is not None and index >= self.agreed[0] else None

    def _name(self, first: int, timed: int) -> None:
        self.agreed = first, timed
        self.path.parent.mkdir(exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(f"{first} {timed}")
        os.replace(temporary, self.path)
