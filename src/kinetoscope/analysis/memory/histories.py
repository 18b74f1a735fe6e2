"""Every device's memory that a run recorded."""

from __future__ import annotations

from typing import NamedTuple

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.memory.peak import DeviceHistory, devices
from kinetoscope.analysis.run import Run
from kinetoscope.recording.memory import Held


class RankHistory(NamedTuple):
    """One device of one rank's snapshot, and what the program said beside it."""

    rank: int
    held: Held | None
    history: DeviceHistory


@remembered
def histories(run: Run) -> list[RankHistory]:
    """By rank and device; of a rank whose allocation failed, that moment as well.

    Raises:
        InputError: a snapshot cannot be used.
    """
    return [
        RankHistory(files.rank, files.held, history)
        for files in run.memory
        for history in devices(files.snapshot, files.held)
    ]
