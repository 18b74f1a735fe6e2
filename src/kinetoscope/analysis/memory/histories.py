"""Every device's memory that a run recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.memory.ops import buffers, ops, unseen
from kinetoscope.analysis.memory.peak import DeviceHistory, devices
from kinetoscope.errors import InputError
from kinetoscope.recording.memory import Held
from kinetoscope.sources.run import MemoryFiles, Run


@dataclass(frozen=True, eq=False)
class RankHistory:
    """One device of one rank's snapshot, and what the program said beside it."""

    rank: int
    files: MemoryFiles
    held: Held | None
    history: DeviceHistory


@dataclass(frozen=True, eq=False)
class Histories:
    """By rank and device; of a rank whose allocation failed, that moment as well. ``unread`` names the
    snapshots that cannot be used, and why."""

    found: tuple[RankHistory, ...]
    unread: tuple[InputError, ...]

    def failure(self, of: RankHistory) -> RankHistory | None:
        """The same device when an allocation failed."""
        place = of.rank, of.history.device
        mine = (one for one in self.found if (one.rank, one.history.device) == place)
        return next((one for one in mine if one.history.failed_bytes), None)


@remembered
def histories(run: Run) -> Histories:
    found: list[RankHistory] = []
    unread: list[InputError] = []
    made, traces = buffers(run), {trace.rank: trace for trace in run.traces}
    for files in run.snapshots:
        try:
            traced = partial(ops, traces[files.rank]) if files.rank in traces else unseen
            read = devices(files.snapshot, files.held, made, traced)
        except InputError as error:
            unread.append(error)
            continue
        found += [RankHistory(files.rank, files, files.held, history) for history in read]
    return Histories(tuple(found), tuple(unread))
