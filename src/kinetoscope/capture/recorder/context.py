"""The state that the phases of one recording share, and what they measure."""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kinetoscope.capture.compiler.kernel_inputs import KernelInputs
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.memory import NoMemoryHistory
from kinetoscope.capture.recorder.profiler import KinetoSession, TorchDevice
from kinetoscope.capture.recorder.provisional import Decisions, Provisional
from kinetoscope.capture.steps.detector import StepDetector
from kinetoscope.capture.steps.ledgers import NoLedgers, Prefetch
from kinetoscope.capture.steps.start import Start
from kinetoscope.capture.steps.timing import (
    TIMED,
    WAITS,
    StepTime,
    Stopwatch,
    Timing,
    TimingOn,
    by_host,
    near,
)
from kinetoscope.recording.folder import RANKS
from kinetoscope.recording.manifest import (
    BatchPadding,
    LossLabels,
    OptimizerStep,
    StepCandidate,
    StepLevel,
    StepTimings,
)

EVALUATES = 0.1  # of the time: evaluations that take less need not be recorded
EVALUATION_S = 1.0  # longer ones are not
PATIENCE_S = 5.0  # other ranks may wait for this one in a collective, so that it waits no longer
AT_ONCE = max(1, (os.cpu_count() or 1) // 2)


@contextmanager
def turn(folder: Path, at_once: int = AT_ONCE, patience_s: float = PATIENCE_S) -> Generator[bool]:
    """At most so many ranks of a host write their traces at once: each takes a core, and all the same disk.

    Yields whether this is one of the processes that write now; after ``patience_s`` it goes ahead all the
    same. ``folder``: where the ranks of a recording meet. Where files cannot be locked there are no turns.
    """
    taken = _taken(folder, at_once, time.monotonic() + patience_s)
    try:
        yield taken is not None
    finally:
        if taken is not None:
            os.close(taken)


def _taken(folder: Path, at_once: int, deadline: float) -> int | None:
    """The locked file of a place; the lock ends with it."""
    try:
        import fcntl
    except ImportError:
        return None
    names = [folder / f"writes-{platform.node()}-{place}" for place in range(at_once)]
    while True:
        for name in names:
            try:
                place = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError:
                return None
            with suppress(OSError):
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return place
            os.close(place)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)


SLOWED = (
    "CUPTI could not be detached safely before steps were timed without a profiler: where the host sets the "
    "pace, they are up to 1.4 times as fast without it (--careful times them so)"
)
NO_LINES = "the lines of the program that call each op were not recorded"


@dataclass
class MeasuredSteps:
    """Results of the phases; the fields of :class:`StepTimings`, and whether the full pass is written."""

    before: Timing
    after: Timing
    later: TimingOn = field(default_factory=TimingOn)  # the steps after all of these
    found_by: str = "whole"
    step_name: str | None = None
    levels: tuple[StepLevel, ...] = ()
    candidates: tuple[StepCandidate, ...] = ()
    updates: tuple[OptimizerStep, ...] = ()  # the optimizers' steps that a step has
    most_recorded: int | None = None  # so many steps may be recorded at most; None: as many as are wanted
    first_step: int | None = None
    # passed, steps_after: see :class:`StepTimings`
    passed: int | None = None
    steps_after: int | None = None
    stood_by: int = 0  # steps since, in which faster ones, or those of a surer source, were looked for
    evaluations: int = 0  # of the model, each of which had the number of a step
    # after how many steps the latest evaluations came, and the seconds that each took
    evaluated: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=2))
    warmup_s: list[float] = field(default_factory=list[float])
    settled: bool = True
    timed: int = TIMED  # so many steps are timed where ranks agreed on it
    # how far the loader works ahead that the steps timed before waited for
    prefetch: Prefetch = field(default_factory=Prefetch)
    padding: BatchPadding | None = None  # how much of the batches is padding
    labels: LossLabels | None = None  # of a step's losses
    same_calls: tuple[tuple[int, int], ...] = ()  # of models, with the same inputs and weights …
    uncounted_calls: tuple[int, ...] = ()  # … as far as is counted
    collects_at: str | None = None  # the line of the program that requests collections of garbage
    recorded: list[StepTime] = field(default_factory=list[StepTime])  # the steps that the full pass recorded
    notes: list[str] = field(default_factory=list[str])
    written: bool = False
    released: bool = False  # nothing of the profiler is left in the process where the last steps are timed
    slowed: bool = False  # something of the profiler is in the process where the first steps are timed
    repeated: bool = False  # a pass was recorded once more, since torch lost it
    paused_s: float = 0.0  # seconds in which the program stood still for us

    def waited_before(self) -> float | None:
        """Seconds that a step waited for its loader before the recording; None where it did not."""
        return self.before.waited_s

    def waiting_notes(self) -> list[str]:
        """Says so where the recorded steps did not wait for the loader as those before, by so much of a step
        as makes waiting matter."""
        before_s = self.waited_before()
        if before_s is None or not self.recorded:
            return []
        recorded_s = sum(step.data_s for step in self.recorded) / len(self.recorded)
        if near(recorded_s, before_s) or abs(recorded_s - before_s) < WAITS * self.before.step_s:
            return []
        return [
            f"waits for the data loader changed while recording ({1e3 * before_s:.1f} → "
            f"{1e3 * recorded_s:.1f} ms per step): use the time without the profiler"
        ]

    def evaluates_after(self, passed: int) -> int | None:
        """After how many steps more the next evaluation that is worth recording comes; None: that is not
        known."""
        if len(self.evaluated) < 2:
            return None
        (before, _), (last, took_s) = self.evaluated
        every = last - before
        is_rare = took_s < EVALUATES * (took_s + every * self.before.step_s)
        left = last + every - passed
        return None if is_rare or took_s > EVALUATION_S or left < 1 else left

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def anew(self) -> None:
        """Other steps are timed and recorded in the place of those so far."""
        self.before.clear()
        self.after.clear()
        self.later.clear()
        self.recorded = []
        self.notes.clear()
        self.written = self.released = False
        self.settled, self.first_step, self.passed = True, None, None

    def failed(self, why: str) -> None:
        """Recording ended before its end: steps that no trace holds do not count."""
        self.note(why)
        if not self.written:
            self.recorded.clear()

    def timings(self) -> StepTimings:
        """How the steps were found and timed. The device's clock is read here, once steps are over."""
        before, recorded = self.before.steps(), by_host(self.recorded) if self.recorded else None
        loads = before is not None and any(before.data_s)
        after = self.after.steps()
        # Steps that were timed again once it was gone show how fast they are.
        hindered = self.slowed and before is not None and not (self.released and after is not None)
        return StepTimings(
            found_by=self.found_by,
            step_name=self.step_name or None,
            first_step=self.first_step,
            passed=self.passed,
            steps_after=self.steps_after,
            warmup_steps=self.first_step or 0,
            settled=self.settled and bool(self.recorded),
            warmup_s=tuple(self.warmup_s),
            unprofiled_s=before.step_s if before else (),
            profiled_s=recorded.step_s if recorded else (),
            before=before,
            after=after,
            later=self.later.steps(),
            recorded=recorded,
            released=self.released,
            slowed=self.slowed,
            paused_s=self.paused_s,
            loader_workers=self.prefetch.workers if loads else None,
            padding=self.padding,
            labels=self.labels,
            same_calls=self.same_calls,
            uncounted_calls=self.uncounted_calls,
            collects_at=self.collects_at,
            levels=self.levels,
            updates=self.updates,
            candidates=self.candidates,
            notes=(*self.notes, *self.waiting_notes(), *([SLOWED] if hindered else [])),
        )


@dataclass(frozen=True)
class Context:
    """The state that all phases of one recording share."""

    options: Options
    device: TorchDevice
    trace: Path  # the file to write; a light pass has one next to it
    inputs: KernelInputs | None
    start_agreed: Start  # agrees on the step at which to start
    lockstep: bool  # other ranks record the same steps, so that their number must not depend on our clock
    tell: Callable[[str], None]  # called with what there is to tell the user while the program runs
    entered: Callable[[str], None]  # called with the name of each phase when it begins
    decisions: Decisions  # what there is to choose
    # called with the names of the moments worth a reading of the device's clocks
    moment: Callable[[str], None]
    # called when something that there is to write is on disk, or known: traces, inputs, timings
    saved: Callable[[], None]
    detector: StepDetector
    stopwatch: Stopwatch
    ledgers: NoLedgers  # installed from the time that steps are known until the last was timed
    memory: NoMemoryHistory  # the allocator's history, where it is wanted
    provisional: Provisional
    measured: MeasuredSteps

    @property
    def passed(self) -> int:
        """How many steps there were so far."""
        return self.detector.index + 1 - self.measured.evaluations

    @property
    def ended(self) -> int:
        """The number of the step that the leader's latest tick ended, counted from 0 as ``first_step``."""
        return self.passed - 2

    @property
    def light_trace(self) -> Path:
        return self.trace.with_suffix(".device.json")

    @property
    def lines(self) -> Path:
        """The trace of the step in which the program's lines were noted."""
        return self.trace.with_suffix(".lines.json")

    def write_lines(self, session: KinetoSession) -> None:
        """Write the lines of the program; without them, with a note, where that fails."""
        try:
            session.export(self.lines)
        except OSError as error:
            self.measured.note(f"{NO_LINES}: {error.strerror or error}")
            return
        self.saved()

    def write(self, session: KinetoSession, *, full: bool) -> bool:
        """Write the trace of a pass; False, with a note, where the disk does not take it."""
        if full:
            self.memory.write()
            self.light_trace.unlink(missing_ok=True)  # of other steps, recorded before
        try:
            with turn(self.trace.parent.parent / RANKS) if self.lockstep else nullcontext():
                session.export(self.trace if full else self.light_trace)
        except OSError as error:
            what = "the recorded steps" if full else "the pass of the device alone"
            self.measured.failed(f"{what} could not be written: {error.strerror or error}")
            return False
        if full:
            self.measured.written = True
            self.moment("after recording")
        return True

    @property
    def two_passes(self) -> bool:
        """Whether a light pass follows the full one."""
        return self.device.has_light_pass() and not self.options.one_pass
