"""What a phase of a recording is asked, and what it answers unless it says otherwise."""

from __future__ import annotations

from types import ModuleType

from kinetoscope.capture.recorder.context import Context
from kinetoscope.capture.steps.detector import Boundary


def phases() -> ModuleType:
    """The phases, which are made from this one."""
    from kinetoscope.capture.recorder import phases

    return phases


class Phase:
    """One phase; what it does not say otherwise is as here.

    Attributes:
        name: by which a recording says later how far it had come.
        leader_stays: no other source may take over from the leader any more.
        last: no other phase follows.
    """

    name = ""
    leader_stays = False
    last = False

    def __init__(self, context: Context) -> None:
        self.context = context

    def enter(self) -> None:
        """The phase begins."""

    def candidate(self, boundary: Boundary) -> None:
        """A source ticked that does not lead."""

    def leads(self, boundary: Boundary) -> Phase:
        """A source took the lead."""
        return phases().Settle(self.context)

    def boundary(self, boundary: Boundary) -> Phase:
        """A step ends, or begins, or both."""
        return self

    def passed(self, boundary: Boundary) -> None:
        """A step ends at a moment at which nothing may be done, since another thread captures a graph: what
        is being timed does not count."""
        self.context.stopwatch.spoil()

    def given_up(self) -> None:
        """Something failed in this phase: end what it has begun, and write nothing."""

    def range_left(self) -> Phase:
        """The named range was left: its step ends here, not where the range is entered next."""
        self.context.stopwatch.end()
        return self

    def part(self, name: str) -> None:
        """A part of the step that is running begins."""

    def evaluated(self) -> None:
        """An evaluation ends, which took the place of a step: the next step begins here."""
        self.context.stopwatch.restart()

    def cut_short(self, why: str) -> Phase:
        """No more can be recorded now: save what there is. Returns the phase for when the program goes on."""
        return (phases().Done if self.context.measured.written else phases().Settle)(self.context)
