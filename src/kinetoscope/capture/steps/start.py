"""At which step all ranks begin to time and record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from kinetoscope.capture.steps.steady import PATIENCE


class Start(Protocol):
    """Agrees with the other ranks, if there are any, on the step at which all start to time and record."""

    def __call__(self, index: int, settled: bool) -> bool: ...


def at_once(index: int, settled: bool) -> bool:
    """What a process that is alone agrees on."""
    return settled


class StartAgreement:
    """All ranks start at the step that rank 0 names, a few steps ahead, in a file of the recording.

    Ranks of a data-parallel program reach a step together, give or take the launches the host runs ahead. One
    that does not see the file (another machine, another file system) goes by its own clock after a while.
    """

    AHEAD = 4

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / "ranks" / "start"
        self.rank = rank
        self.first: int | None = None

    def __call__(self, index: int, settled: bool) -> bool:
        if self.first is None:
            if self.rank == 0 and settled:
                self.first = index + self.AHEAD
                temporary = self.path.with_suffix(".tmp")
                temporary.write_text(str(self.first))
                os.replace(temporary, self.path)
            elif self.rank != 0 and self.path.exists():
                self.first = int(self.path.read_text())
            elif index >= 3 * PATIENCE:
                return settled
        return self.first is not None and index >= self.first
