"""The phases of a recording, each with a state of its own; what they share is the :class:`Context`.

    Watch ▶ Settle ▶ Time ▶ Warm ▶ Record ▶ (Inputs ▶) Done

A phase is entered once. What happens next is asked of it: at a boundary of steps, where a named range is
left, and where it is cut short, by a profiler of the program's own or by the program's end. Its answer is
the phase that follows, or itself; which phase follows which is written nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from kinetoscope.capture.compiler.kernel_inputs import KernelInputs
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.profiler import Device, ProfilerSession
from kinetoscope.capture.recorder.provisional import Provisional
from kinetoscope.capture.steps.detector import Boundary, StepDetector
from kinetoscope.capture.steps.start import Start
from kinetoscope.capture.steps.steady import PATIENCE, recorded_steps, settled, timed_steps
from kinetoscope.capture.steps.stopwatch import Stopwatch
from kinetoscope.recording.manifest import StepTimings


@dataclass
class Measured:
    """What the phases find out; the fields of :class:`StepTimings`, and whether a trace is written."""

    found_by: str = "whole"
    step_name: str | None = None
    first_step: int | None = None
    warmup_s: list[float] = field(default_factory=list[float])
    settled: bool = True
    unprofiled_s: list[float] = field(default_factory=list[float])
    profiled_s: list[float] = field(default_factory=list[float])
    notes: list[str] = field(default_factory=list[str])
    written: bool = False

    def timings(self) -> StepTimings:
        """How the steps were found and timed."""
        return StepTimings(
            found_by=self.found_by,
            step_name=self.step_name or None,
            first_step=self.first_step,
            warmup_steps=self.first_step or 0,
            settled=self.settled and bool(self.profiled_s),
            cold=self.written and not self.profiled_s,
            warmup_s=tuple(self.warmup_s),
            unprofiled_s=tuple(self.unprofiled_s),
            profiled_s=tuple(self.profiled_s),
            notes=tuple(self.notes),
        )


@dataclass(frozen=True)
class Context:
    """What all phases of one recording share.

    Attributes:
        trace: the file to write.
        start_agreed: agrees on the step at which to start.
        lockstep: other ranks record the same steps, so that their number must not depend on our clock.
        moment: called with the names of the moments worth a reading of the device's clocks.
        saved: called when the trace is on disk, and again when all is that was asked for.
    """

    options: Options
    device: Device
    trace: Path
    inputs: KernelInputs | None
    start_agreed: Start
    lockstep: bool
    moment: Callable[[str], None]
    saved: Callable[[], None]
    detector: StepDetector
    stopwatch: Stopwatch
    provisional: Provisional
    measured: Measured = field(default_factory=Measured)

    def write(self, session: ProfilerSession) -> None:
        """End a session that is recording, and write its trace."""
        session.mark(None)
        session.stop()
        session.export(self.trace)
        self.measured.written = True


class Phase:
    """One phase; what it does not say otherwise is as here.

    Attributes:
        leader_stays: no other source of steps may take over now: the leader's are being recorded.
        last: no other phase follows.
    """

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
        return Settle(self.context)

    def boundary(self, boundary: Boundary) -> Phase:
        """A step ends, or begins, or both."""
        return self

    def range_left(self) -> Phase:
        """The named range was left: its step ends here, not where the range is entered next."""
        self.context.stopwatch.end()
        return self

    def cut_short(self, why: str) -> Phase:
        """No more can be recorded now: save what there is. Returns the phase for when the program goes on."""
        return Settle(self.context)


class Watch(Phase):
    """No source of steps has proved itself, or one has, and its first steps are still being recorded.

    A *provisional* recording runs, so that a program without steps, or one that ends early, is recorded all
    the same. It ends after the first two whole steps, or when it has used its budget.
    """

    def candidate(self, boundary: Boundary) -> None:
        self.context.provisional.tick(boundary)

    def leads(self, boundary: Boundary) -> Phase:
        following = self.boundary(boundary)
        self.context.provisional.source = boundary.source
        return following

    def boundary(self, boundary: Boundary) -> Phase:
        self.context.provisional.tick(boundary)
        return self if self.context.provisional.running else Settle(self.context)

    def cut_short(self, why: str) -> Phase:
        return self if self.context.detector.leader is None else Settle(self.context)


class Settle(Phase):
    """Steps are known; wait until nothing compiles and their time has settled."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.waited: list[float] = []  # of consecutive steps in which nothing compiled

    def enter(self) -> None:
        self.context.stopwatch.restart()
        # Of the steps of a --warmup only the last is timed.
        self.context.detector.pass_over((self.context.options.warmup or 0) - self.context.detector.index - 2)

    def boundary(self, boundary: Boundary) -> Phase:
        context = self.context
        if context.detector.index < (context.options.warmup or 0):
            context.stopwatch.restart()
            return self
        step = context.stopwatch.lap()
        context.measured.warmup_s.append(step.seconds)
        self.waited = [] if step.compiled else [*self.waited, step.seconds]
        if context.start_agreed(context.detector.index, self._ready()):
            return Time(context, self.waited)
        return self

    def _ready(self) -> bool:
        measured = self.context.measured
        if self.context.options.warmup is not None:
            return True
        measured.settled = settled(self.waited)
        return measured.settled or len(measured.warmup_s) >= PATIENCE


class Time(Phase):
    """Time a few steps without the profiler, waiting for the device before the first and after the last."""

    def __init__(self, context: Context, waited: list[float]) -> None:
        super().__init__(context)
        self.wanted = timed_steps(median(waited)) if waited and not context.lockstep else 3

    def enter(self) -> None:
        self.context.device.synchronize()
        self.context.measured.unprofiled_s.clear()
        self.context.stopwatch.restart()

    def boundary(self, boundary: Boundary) -> Phase:
        context, last = self.context, self._last()
        if last and not context.stopwatch.stopped:
            context.device.synchronize()
        step = context.stopwatch.lap()
        context.measured.unprofiled_s.append(step.seconds)
        if step.compiled and self._may_wait():
            return Settle(context)
        return Warm(context) if last else self

    def range_left(self) -> Phase:
        if self._last():
            self.context.device.synchronize()
        return super().range_left()

    def _last(self) -> bool:
        return len(self.context.measured.unprofiled_s) + 1 >= self.wanted

    def _may_wait(self) -> bool:
        """Whether the start may still be put off."""
        patient = len(self.context.measured.warmup_s) < PATIENCE
        return patient and self.context.options.warmup is None and not self.context.lockstep


class Warm(Phase):
    """One step with the profiler's buffers ready, not recorded."""

    leader_stays = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.session = context.device.session(any_thread=False)

    def enter(self) -> None:
        self.session.prepare()

    def boundary(self, boundary: Boundary) -> Phase:
        return Record(self.context, self.session)

    def cut_short(self, why: str) -> Phase:
        self.session.start()  # a prepared session must be started before it can be ended
        self.session.stop()
        return Settle(self.context)


class Record(Phase):
    """Record a few steps."""

    leader_stays = True

    def __init__(self, context: Context, session: ProfilerSession) -> None:
        super().__init__(context)
        self.session = session
        unprofiled_s = context.measured.unprofiled_s
        usual = 3 if context.lockstep or not unprofiled_s else recorded_steps(median(unprofiled_s))
        self.wanted = context.options.steps or usual
        self.running = False  # a step is

    def enter(self) -> None:
        context = self.context
        context.moment("before recording")
        context.device.synchronize()
        self.session.start()
        context.measured.first_step = context.detector.index
        self._step_begins()

    def boundary(self, boundary: Boundary) -> Phase:
        if self.context.options.range is None:
            return self._step_ends(next_begins=True)
        self._step_begins()
        return self

    def range_left(self) -> Phase:
        return self._step_ends(next_begins=False)

    def _step_begins(self) -> None:
        self.session.mark(self.context.detector.index)
        self.context.stopwatch.restart()
        self.running = True

    def _step_ends(self, *, next_begins: bool) -> Phase:
        context, profiled_s = self.context, self.context.measured.profiled_s
        if len(profiled_s) + 1 < self.wanted:
            profiled_s.append(context.stopwatch.lap().seconds)
            self.session.mark(context.detector.index if next_begins else None)
            self.running = next_begins
            return self
        context.device.synchronize()
        profiled_s.append(context.stopwatch.lap().seconds)
        context.write(self.session)
        context.moment("after recording")
        return self._written()

    def cut_short(self, why: str) -> Phase:
        context, profiled_s = self.context, self.context.measured.profiled_s
        if self.running and context.detector.leads_at_beginnings():
            # The step began at a call, and has no other end than this one.
            context.device.synchronize()
            profiled_s.append(context.stopwatch.lap().seconds)
        if not profiled_s:
            self.session.mark(None)
            self.session.stop()
            return Settle(context)
        context.measured.notes.append(f"{why}: recorded {len(profiled_s)} steps, fewer than wanted")
        context.write(self.session)
        return self._written()

    def _written(self) -> Phase:
        inputs = self.context.inputs
        return Done(self.context) if inputs is None else Inputs(self.context, inputs)


class Inputs(Phase):
    """One step more, in which what kernels are called with is kept."""

    leader_stays = True

    def __init__(self, context: Context, inputs: KernelInputs) -> None:
        super().__init__(context)
        self.inputs = inputs

    def enter(self) -> None:
        self.inputs.start()
        self.context.saved()

    def boundary(self, boundary: Boundary) -> Phase:
        return self if self.context.options.range is not None else self.range_left()

    def range_left(self) -> Phase:
        self.inputs.stop()
        return Done(self.context)

    def cut_short(self, why: str) -> Phase:
        return self


class Done(Phase):
    """Nothing of ours is left in the program."""

    last = True

    def enter(self) -> None:
        self.context.provisional.drop()
        self.context.saved()

    def cut_short(self, why: str) -> Phase:
        return self
