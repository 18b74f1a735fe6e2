"""The recording that runs before anything is known of the program's steps, so that there always is one."""

from __future__ import annotations

from kinetoscope.capture.recorder.profiler import Device, ProfilerSession
from kinetoscope.capture.steps.detector import Boundary, Source, surer

# Ticks after which the first two whole steps are in the recording.
TICKS_RECORDED = 3


class Provisional:
    """A profiler's session from the start on, its steps marked by whichever source seems surest so far.

    Args:
        whole: it is to hold the whole program, not only the first steps.

    Attributes:
        session: running, or ended and not yet written; None before and after.
        source: whose ticks mark its steps.
    """

    def __init__(self, device: Device, *, whole: bool) -> None:
        self.device, self.whole = device, whole
        self.session: ProfilerSession | None = None
        self.running = False
        self.source: Source | None = None
        self.steps = 0

    def start(self) -> None:
        session = self.device.session(kind="full", any_thread=True)
        session.prepare()
        session.start()
        self.session, self.running = session, True

    def stop(self) -> None:
        if self.session is not None and self.running:
            self.session.mark(None)
            self.running = False
            self.session.stop()

    def tick(self, boundary: Boundary) -> None:
        """Mark a step, unless a surer source marks them; the first whole steps are enough."""
        if self.session is None or not self.running:
            return
        if self.source is None or surer(boundary.source[0], self.source[0]):
            self.source = boundary.source
        if boundary.source == self.source:
            self.session.mark(self.steps)
            self.steps += 1
            if boundary.ticks >= TICKS_RECORDED and not self.whole:
                self.stop()

    def part(self, name: str) -> None:
        """Mark a part of the leader's step."""
        if self.session is not None and self.running:
            self.session.part(name)

    def evaluated(self) -> None:
        """An evaluation, which is a step of its own, has ended."""
        if self.session is not None and self.running:
            self.session.mark(self.steps)
            self.steps += 1

    def drop(self) -> None:
        self.session = None


def notes(*, cold: bool, steps: int, whole: bool) -> list[str]:
    """What a user must know of a provisional recording that became the recording.

    Args:
        cold: it was ended after the first steps, which a better recording was to follow.
        steps: how many boundaries its source ticked at.
        whole: everything was to be recorded.
    """
    if cold and steps >= 2:
        return [
            "the program ended before its step time had settled and been recorded: "
            "this recording holds its first steps, cold start and all"
        ]
    if not whole and steps < 2:
        return [
            "no steps were found (no optimizer, module, compiled function or named range was called "
            "repeatedly): the program was recorded whole; kinetoscope.profile's step() marks them"
        ]
    return []
