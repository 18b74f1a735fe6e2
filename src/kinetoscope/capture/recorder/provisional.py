"""The recording that runs before anything is known of the program's steps, so that there always is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kinetoscope.capture.recorder.decisions import Decisions
from kinetoscope.capture.recorder.profiler import Device, ProfilerSession
from kinetoscope.capture.steps.detector import Boundary, Source, surer

# Ticks after which the first two whole steps are in the recording; with a seed, at most so many.
TICKS_RECORDED, TICKS_AT_MOST = 3, 40


class Provisional:
    """A profiler's session from the start on, its steps marked by whichever source seems surest so far.

    It is written where it ends, not where it turns out to be the best there is: whatever becomes of the
    program later, a kill that nothing can answer included, its first steps are on disk. The pause falls
    between a cold step and steps that have yet to settle.

    Args:
        trace: the file to write.
        saved: called when it is written.
        whole: it is to hold the whole program, not only the first steps.
        decisions: how many steps are the first ones.

    Attributes:
        session: the one that is running.
        began: there has been one.
        written: it lies in ``trace``.
        cut: it ended before the program did.
        failures: why it is not written.
        why: why it was ended before its steps were over.
        source: whose ticks mark its steps.
    """

    def __init__(
        self,
        device: Device,
        trace: Path,
        saved: Callable[[], None],
        *,
        whole: bool,
        decisions: Decisions | None = None,
    ) -> None:
        self.device, self.trace, self.saved, self.whole = device, trace, saved, whole
        self.ticks = (decisions or Decisions()).count(TICKS_RECORDED, TICKS_AT_MOST)
        self.why: str | None = None
        self.session: ProfilerSession | None = None
        self.began = self.written = self.cut = False
        self.failures: list[str] = []
        self.source: Source | None = None
        self.steps = 0

    def start(self) -> None:
        session = self.device.session(kind="full", any_thread=True)
        session.prepare()
        session.start()
        self.session, self.began = session, True

    @property
    def running(self) -> bool:
        return self.session is not None

    def stop(self) -> ProfilerSession | None:
        """End it and write nothing."""
        session, self.session = self.session, None
        if session is not None:
            session.mark(None)
            session.stop()
        return session

    def end(self, *, cut: bool = True) -> None:
        """End it and write it; the first call counts."""
        if not self.running:
            return
        self.cut = cut
        try:
            if (session := self.stop()) is not None:
                session.export(self.trace)
        except Exception as error:  # ours to bear: the program goes on, and a better recording may follow
            why = getattr(error, "strerror", None) or error
            self.failures.append(f"the first steps could not be written: {why}")
            return
        self.written = True
        self.saved()

    def tick(self, boundary: Boundary, *, may_end: bool = True) -> None:
        """Mark a step, unless a surer source marks them; the first whole steps are enough.

        Args:
            may_end: the profiler may be stopped here.
        """
        if self.session is None:
            return
        if self.source is None or surer(boundary.source[0], self.source[0]):
            self.source = boundary.source
        if boundary.source == self.source:
            self.session.mark(self.steps)
            self.steps += 1
            if may_end and boundary.ticks >= self.ticks and not self.whole:
                self.end()

    def part(self, name: str) -> None:
        """Mark a part of the leader's step."""
        if self.session is not None:
            self.session.part(name)

    def evaluated(self) -> None:
        """An evaluation, which is a step of its own, has ended."""
        if self.session is not None:
            self.session.mark(self.steps)
            self.steps += 1


def notes(*, cold: bool, steps: int, whole: bool, why: str | None = None) -> list[str]:
    """What a user must know of a provisional recording that became the recording.

    Args:
        cold: it was ended after the first steps, which a better recording was to follow.
        steps: how many boundaries its source ticked at.
        whole: everything was to be recorded.
        why: the reason for which it was ended, if the program did not end first.
    """
    if cold and steps >= 2:
        return [
            "no steps were recorded once their time had settled: "
            "this recording holds its first steps, cold start and all"
        ]
    ended = [] if why is None else [f"only the program's beginning is recorded, until {why}"]
    if not whole and steps < 2:
        much = "beginning" if why else "whole run"
        ended.insert(
            0,
            "no steps were found (no optimizer, module, compiled function or named range was called "
            f"repeatedly): the program's {much} was recorded; kinetoscope.profile's step() marks them",
        )
    return ended
