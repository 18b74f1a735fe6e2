"""The phases of a recording, each with a state of its own; what they share is the :class:`Context`.

    Watch ▶ Settle ▶ Time ▶ Prepare ▶ Record ▶ (Inputs ▶) (Lines ▶) (Prepare ▶ Record ▶) Recover ▶
                              the full pass                             a light pass
    Time ▶ Time on ▶ Done

A phase is entered once. It decides what happens next: at a boundary of steps, where a named range is
left, and where it is cut short, by a profiler of the program's own or by the program's end. Its answer is
the phase that follows, or itself; which phase follows which is written nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinetoscope import numbers
from kinetoscope.capture.compiler.kernel_inputs import KernelInputs
from kinetoscope.capture.recorder.context import NO_LINES, Context
from kinetoscope.capture.recorder.profiler import KinetoSession, SessionKind
from kinetoscope.capture.steps.detector import Boundary
from kinetoscope.capture.steps.timing import (
    PATIENCE,
    QUEUE_PATIENCE,
    QUEUE_PATIENCE_S,
    TIMED,
    TIMED_LEAST,
    TIMED_LONG_S,
    StepTime,
    StepTimes,
    Timing,
    calm,
    is_long,
    long_enough,
    patience_spent,
    recorded_steps,
    recovered,
    takes_seconds,
    timed_steps,
    waiting,
)
from kinetoscope.errors import in_one_line

# An evaluation that comes sooner is waited for, and within such a part of the steps so far: a program that
# has made few may soon end.
EVALUATES_SOON_S, EVALUATES_SOON = 5.0, 0.25


class Phase:
    """One phase; what it does not say otherwise is as here."""

    name = ""  # by which a recording says later how far it had come
    leader_stays = False  # no other source may take over from the leader any more
    records_more = True  # something may still be recorded
    last = False  # no other phase follows

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

    def passed(self, boundary: Boundary) -> None:
        """A step ends at a moment at which nothing may be done, since another thread captures a graph: what
        is being timed does not count."""
        self.context.stopwatch.spoil()

    def ends_here(self) -> bool:
        """Whether what runs in this phase can be ended from this thread."""
        return True

    def given_up(self) -> None:
        """Something failed in this phase: end what it has begun, and write nothing."""

    def abandoned(self) -> None:
        """This process is a fork: what the phase has put into Python ends here, and nothing else."""

    def range_left(self) -> Phase:
        """The named range was left: its step ends here, not where the range is entered next."""
        self.context.stopwatch.end()
        return self

    def part(self, name: str) -> None:
        """A part of the step that is running begins."""

    def evaluated(self) -> None:
        """An evaluation ends, or whatever else took the place of a step: the next step begins here."""
        self.context.stopwatch.restart()

    def left(self) -> Phase:
        """The loop whose passes are the steps was left in the middle of one, which is none."""
        return self

    def cut_short(self, why: str) -> Phase:
        """No more can be recorded now: save what there is. Returns the phase for when the program goes on."""
        return (Done if self.context.measured.written else Settle)(self.context)


# Steps let pass after a pause where all ranks must let the same number pass, or where none settle.
RECOVERED = 2
AGREE = 2  # the latest of long steps that are found settled count as timed
# Two iterations, of acting and of training on what came of it, are waited for this long.
ITERATION_PATIENCE_S = 20.0
# Once all is recorded, steps are timed on this long.
TIMED_ON_S = 10.0
# Longer steps, those of a surer source, or faster ones are looked for this long: cuDNN's attention plans for
# some 50 ms for each length of a text, once for what was written and once for what is read, and there are
# hundreds of lengths.
STANDBY_S = 30.0
# The pace of that much of the program, and of so many steps, is looked at; steps that take this part of the
# time of those that were timed are other ones: the program had not warmed up.
PACE_S, PACE_STEPS, FASTER = 1.0, 10, 0.5
PASSED_OVER_S = 5e-3  # of shorter steps not each is looked at: a look takes some microseconds
# Looking at the place of a call takes microseconds: it ends where steps shorter than that are timed.
LOOKED_AT_S = 1e-3
UNDRAINED = "the loader's queue had not drained"


class Watch(Phase):
    """No source of steps has proved itself, or one has, and its first steps are still being recorded.

    A *provisional* recording runs, so that a program without steps, or one that ends early, is recorded all
    the same. It ends after the first two whole steps, or when it has used its budget.
    """

    name = "watching"

    def candidate(self, boundary: Boundary) -> None:
        self._tick(boundary)

    def passed(self, boundary: Boundary) -> None:
        self._tick(boundary)

    def _tick(self, boundary: Boundary, *, long: bool = False) -> None:
        provisional = self.context.provisional
        may_end = provisional.running and self.context.device.occupied() is None
        provisional.tick(boundary, may_end=may_end, long=long)

    def leads(self, boundary: Boundary) -> Phase:
        following = self.boundary(boundary)
        self.context.provisional.source = boundary.source
        return following

    def boundary(self, boundary: Boundary) -> Phase:
        step = self.context.stopwatch.next_step()
        self._tick(boundary, long=boundary.role == "step" and is_long(step))
        if self.context.provisional.running:
            return self
        context = self.context
        context.measured.slowed = context.provisional.began and not context.device.release()
        return Settle(context)

    def part(self, name: str) -> None:
        self.context.provisional.part(name)

    def evaluated(self) -> None:
        self.context.provisional.evaluated()

    def left(self) -> Phase:
        self.context.provisional.left()
        return self

    def cut_short(self, why: str) -> Phase:
        return self if self.context.detector.leader is None else Settle(self.context)


class Settle(Phase):
    """Steps are known; wait until nothing compiles, their time has settled, and no batch is left that was
    loaded while we had paused the program."""

    name = "settling"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.waited = StepTimes()  # in these nothing compiled
        self.drawn = context.decisions.count(0, PATIENCE)  # with a seed: so many steps are waited for

    def enter(self) -> None:
        self.began_s = self.context.stopwatch.now_s
        if self.context.lockstep:  # by the clock of one rank nothing may be decided
            self.context.detector.outer.stop()
        self.context.ledgers.install()
        self.context.stopwatch.restart(marking=True)
        # Of the steps of a --warmup only the last is timed.
        self.context.detector.pass_over((self.context.options.warmup or 0) - self.context.detector.index - 2)

    def boundary(self, boundary: Boundary) -> Phase:
        context = self.context
        if context.detector.index < (context.options.warmup or 0):
            context.stopwatch.restart(marking=True)
            return self
        step = context.stopwatch.next_step(context.ended)
        context.measured.warmup_s.append(step.seconds)
        self.waited.append(step)
        if step.compiled:
            self.waited.clear()
        if self._counts(step) and takes_seconds(step):
            return TimeBefore(context).takes([step])
        ready = self._ready(step)
        if ready and self._counts(step) and waiting(self.waited) is None:
            return TimeBefore(context).takes(self.waited[-AGREE:])
        usual = timed_steps(self.waited, context.ledgers.prefetch) if ready else 0
        timed = context.start_agreed(context.detector.index, ready, usual)
        if timed is None:
            return self
        context.measured.timed = timed
        return TimeBefore(context)

    def _counts(self, step: StepTime) -> bool:
        """Whether this step is one of few and counts as timed: a whole one came before it, and it was not fed
        from what a loader did while we had paused the program."""
        context = self.context
        warm = context.detector.index >= 2 or context.options.warmup is not None
        return warm and few(context, step) and not self._refilled() and not self._undecided()

    def _refilled(self) -> bool:
        """Whether a loader may have filled its queue while we had paused the program."""
        paused_s = self.context.measured.paused_s
        return self.context.ledgers.prefetch.batches > 0 and self.waited.seconds <= paused_s

    def cut_short(self, why: str) -> Phase:
        """Steps that were to settle are better than none that were timed."""
        if len(self.waited) >= TIMED_LEAST and not self._refilled():
            self.context.measured.before.keep(self.waited)
            if self.context.measured.before.falling():
                self.context.measured.before.forget_half()
        return super().cut_short(why)

    def _ready(self, step: StepTime) -> bool:
        measured = self.context.measured
        if self.context.options.warmup is not None:
            return True
        if self.context.decisions.seeded:
            return len(measured.warmup_s) >= self.drawn
        if self._undecided():
            return False
        prefetch, passed = self.context.ledgers.prefetch, len(measured.warmup_s)
        if len(self.waited) < prefetch.batches and not patience_spent(passed, self.waited.seconds):
            return False
        measured.settled = calm(self.waited, prefetch)
        enough = passed >= PATIENCE or long_enough(self.waited, few=few(self.context, step))
        return measured.settled or enough

    def _undecided(self) -> bool:
        """Whether longer steps than these may still show, and are worth waiting for."""
        detector, measured = self.context.detector, self.context.measured
        if not detector.undecided:
            return False
        iterations, endless = detector.iterations.looking, detector.wanted is not None
        patience_s = ITERATION_PATIENCE_S if iterations else QUEUE_PATIENCE_S
        if endless or self.context.lockstep or self.context.stopwatch.now_s - self.began_s < patience_s:
            return True
        if iterations:
            detector.decline(None)
            measured.note(
                "the program acts (calls what it trains without gradients) before it trains, but no two "
                f"iterations of that were over within {ITERATION_PATIENCE_S:.0f} s: a step is "
                f"{measured.levels[0].name} (--step iteration waits for them)"
            )
        return False


def few(context: Context, step: StepTime) -> bool:
    """Whether the program may have only a few steps like this one, which did not wait for its loader: not
    where ranks agree on each step."""
    chosen = context.lockstep or context.decisions.seeded
    return not chosen and is_long(step) and waiting([step]) is None


class Time(Phase):
    """Time steps while nothing records; a device that has no clock is waited for at both ends."""

    name = "timing"
    patience = TIMED  # at most so many steps pass while the program is still getting faster
    of_bursts = TIMED  # so many are enough where they wait for a loader
    taken: Sequence[StepTime] = ()  # timed before this phase began

    def __init__(self, context: Context, timing: Timing) -> None:
        super().__init__(context)
        self.timing = timing
        self.every = StepTimes()  # whether they count or not
        self.drawn = context.decisions.count(0, TIMED)  # with a seed: so many are timed

    def enter(self) -> None:
        self.timing.keep(self.taken)
        self._synchronize()
        self.context.stopwatch.restart(marking=True)

    def boundary(self, boundary: Boundary) -> Phase:
        if not self.context.stopwatch.stopped and self._complete(1):
            self._synchronize()
        step = self.context.stopwatch.next_step(self.context.ended)
        self.every.append(step)
        if not step.compiled:
            self.timing.times.append(step)
        following = self.following(step)
        compiled = sum(step.compiled for step in self.every)
        # A program that records a graph for each new size compiles in most steps: so it runs.
        if following is not self and not isinstance(following, Settle) and 2 * compiled > len(self.every):
            self.timing.keep(self.every)
        return following

    def complete(self) -> bool:
        """Whether enough is timed, and the program is as warm as it is waited for."""
        agreed = self.context.options.warmup is not None or self.context.lockstep
        if agreed or len(self.every) >= self.patience or not (self._complete() and self.timing.falling()):
            return self._complete()
        self.timing.forget_half()
        return False

    def following(self, step: StepTime) -> Phase:
        raise NotImplementedError

    def evaluated(self) -> None:
        self.context.stopwatch.leave_out()

    def range_left(self) -> Phase:
        if self._complete(1):
            self._synchronize()
        return super().range_left()

    def _complete(self, running: int = 0) -> bool:
        """Whether enough is timed with those ``running``; who compiles in every step is not waited for."""
        context, passed = self.context, len(self.every) + running
        if context.lockstep:
            return passed >= context.measured.timed
        if context.decisions.seeded:
            return passed >= self.drawn
        since = context.stopwatch.running_s if running else 0.0
        enough = self.timing.enough(context.ledgers.prefetch, running, since, of_bursts=self.of_bursts)
        return enough or passed >= QUEUE_PATIENCE

    def _synchronize(self) -> None:
        if not self.context.device.has_clock():
            self.context.device.synchronize()


class TimeBefore(Time):
    """Time the program before it is recorded. It may end soon, so that little may be waited for."""

    patience = TIMED + TIMED // 2

    def __init__(self, context: Context) -> None:
        super().__init__(context, context.measured.before)

    def enter(self) -> None:
        self.context.tell("timing steps while nothing records")
        warmup_s = self.context.measured.warmup_s
        if warmup_s and warmup_s[-1] < LOOKED_AT_S:
            self.context.detector.loop.stop()
        super().enter()

    def following(self, step: StepTime) -> Phase:
        self.context.measured.prefetch = self.context.ledgers.prefetch
        self.context.measured.padding = self.context.ledgers.padding
        self.context.measured.collects_at = self.context.ledgers.collects_at
        if step.compiled and self._may_wait():
            return Settle(self.context)
        suffices = self.taken and self.timing.times.seconds >= TIMED_LONG_S
        if few(self.context, step) and (suffices or takes_seconds(step)):
            return Prepare(self.context, "full").at_once()
        return Prepare(self.context, "full") if self.complete() else self

    def takes(self, steps: Sequence[StepTime]) -> Phase:
        """The phase after steps that were timed before this phase has begun."""
        self.taken = steps
        self.timing.keep(steps)
        return self.following(steps[-1])

    def _may_wait(self) -> bool:
        """Whether the start may still be put off."""
        patient = len(self.context.measured.warmup_s) < PATIENCE
        return patient and self.context.options.warmup is None and not self.context.lockstep


class Recover(Phase):
    """We have paused the program: let steps pass until they are again as they were.

    Their time settles, and where they waited for their loader before, they do so again: a pause fills its
    queue, and steps that live off it are not the program's.
    """

    name = "recovering"
    leader_stays = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.times = StepTimes()
        self.drained = True
        self.drawn = context.decisions.count(0, PATIENCE)  # with a seed: so many steps are let pass

    def enter(self) -> None:
        self.context.measured.released = self.context.device.release()
        self.context.stopwatch.restart()

    def boundary(self, boundary: Boundary) -> Phase:
        self.times.append(self.context.stopwatch.next_step())
        return self.following() if self._recovered() else self

    def following(self) -> Phase:
        if self.drained:
            return TimeAfter(self.context)
        self.context.measured.note(f"{UNDRAINED}: the program was not timed again after the recording")
        return finished(self.context, drained=False)

    def _recovered(self) -> bool:
        if self.context.lockstep:
            return len(self.times) >= RECOVERED
        if self.context.decisions.seeded:
            return len(self.times) >= self.drawn
        waited_s = self.context.measured.waited_before()
        if waited_s is None and not self.context.measured.settled and len(self.times) >= RECOVERED:
            return True
        if recovered(self.times, waited_s, self.context.ledgers.prefetch):
            return True
        self.drained = waited_s is None or not patience_spent(len(self.times), self.times.seconds)
        return not self.drained


class Prepare(Recover):
    """The profiler's buffers are made ready, which takes a while: recover before anything is recorded."""

    name = "preparing"

    def __init__(self, context: Context, kind: SessionKind) -> None:
        super().__init__(context)
        self.kind: SessionKind = kind
        self.is_ready = False

    def enter(self) -> None:
        self.session = self.context.device.session(kind=self.kind, any_thread=False)
        self.session.prepare()
        self.context.saved()  # what was timed so far, should the program not live to be recorded
        self.context.stopwatch.restart()

    def _recovered(self) -> bool:
        self.is_ready = self.is_ready or super()._recovered()
        return self.is_ready and not self._evaluates_soon()

    def _evaluates_soon(self) -> bool:
        """Whether to wait for the last step before an evaluation, so that it is recorded, too."""
        context = self.context
        if self.kind != "full" or context.lockstep or context.decisions.seeded or not self.drained:
            return False
        left, step_s = context.measured.evaluates_after(context.passed), context.measured.before.step_s
        if left is None or left <= 1 or left > EVALUATES_SOON * context.passed:
            return False
        return left * step_s < EVALUATES_SOON_S

    def following(self) -> Phase:
        if not self.drained:
            self.context.measured.note(f"{UNDRAINED}: for waits use the time without the profiler")
        return RecordSteps(self.context, self.session, self.kind)

    def at_once(self) -> Phase:
        """Record what begins here: of long steps none is let pass."""
        self.enter()
        return self.following()

    def given_up(self) -> None:
        self.session.start()  # a prepared session must be started before it can be ended
        self.session.stop()

    def cut_short(self, why: str) -> Phase:
        self.given_up()
        return super().cut_short(why)


class RecordSteps(Phase):
    """Record a few steps; of the device alone after one that is not marked, since the profiler has only just
    been started."""

    name = "recording"
    leader_stays = True

    def __init__(self, context: Context, session: KinetoSession, kind: SessionKind) -> None:
        super().__init__(context)
        self.session, self.full = session, kind == "full"
        self.wanted = self._wanted() if self.full else len(context.measured.recorded)
        self.times = context.measured.recorded if self.full else list[StepTime]()
        self.begun = False  # the first step has
        self.running = False  # a step is

    def _wanted(self) -> int:
        context = self.context
        if context.options.steps is not None:
            return context.options.steps
        if context.lockstep:
            return 3
        first = context.provisional
        pause_s = context.measured.paused_s / max(1, first.steps) if first.written else 0.0
        usual = recorded_steps(context.measured.before.times, context.ledgers.prefetch, pause_s)
        usual = min(usual, context.measured.most_recorded or usual)
        return context.decisions.count(usual, 8)

    def enter(self) -> None:
        alone = "" if self.full else " of the device alone, at less cost"
        self.context.tell(f"recording {self.wanted} steps{alone}{self._foreseen()}")
        if self.full:
            self.context.moment("before recording")
        self.context.device.synchronize()
        self.session.start()
        if self.full or self.context.options.range is not None:
            self._step_begins()  # tables count all that is recorded: it is the steps and nothing else

    def _foreseen(self) -> str:
        """The cost of the recording, by that of the first steps' recording."""
        paused_s = self.context.measured.paused_s
        if self.context.options.stacks:  # of which the first steps' recording has none
            return ""
        first = self.context.provisional
        # Of a call of a network it says nothing about an episode with thousands of them.
        same_kind = first.written and first.source == self.context.detector.leader
        known = self.full and same_kind and paused_s >= 0.05
        return f"; this will pause the program for about {paused_s:.1f} s" if known else ""

    def boundary(self, boundary: Boundary) -> Phase:
        if self.running and self.context.options.range is None:
            return self._step_ends(next_begins=True)
        self._step_begins()
        return self

    def passed(self, boundary: Boundary) -> None:
        if self.running and self.context.options.range is None:  # the recording ends with a later step
            self.times.append(self.context.stopwatch.next_step())
            self.session.mark(self.context.detector.index)

    def ends_here(self) -> bool:
        return self.session.ends_here()

    def given_up(self) -> None:
        self.session.stop()

    def _step_begins(self) -> None:
        context = self.context
        if not self.begun and self.full:
            # By the host's clock the sum of the steps is exact where the device is waited for at both ends.
            context.device.synchronize()
            context.measured.first_step = context.detector.index
        self.session.mark(context.detector.index)
        context.stopwatch.restart()
        self.begun = self.running = True

    def range_left(self) -> Phase:
        return self._step_ends(next_begins=False) if self.running else self

    def part(self, name: str) -> None:
        if self.running:
            self.session.part(name)

    def evaluated(self) -> None:
        if self.running:
            self.session.mark(self.context.detector.index)
            self.context.stopwatch.restart()
        elif self.begun:
            self._step_begins()

    def left(self) -> Phase:
        self.session.running, self.running = None, False
        return self

    def _step_ends(self, *, next_begins: bool) -> Phase:
        if len(self.times) + 1 >= self.wanted:
            self._last_ends()
            try:
                return self._write()
            except RuntimeError as error:
                return self._once_more(error)
        self.times.append(self.context.stopwatch.next_step())
        self.session.mark(self.context.detector.index if next_begins else None)
        self.running = next_begins
        return self

    def _once_more(self, error: RuntimeError) -> Phase:
        """Torch could not put together what it recorded, as where two calls had one number (2.11, after an
        earlier recording in a program with a thread that pins memory)."""
        context = self.context
        if context.measured.repeated or context.lockstep:
            raise error
        context.measured.repeated = True
        context.tell(f"recording again, since torch lost what it recorded: {in_one_line(error)}")
        self.times.clear()
        return Prepare(context, "full" if self.full else "light")

    def _last_ends(self) -> None:
        self.context.device.synchronize()
        self.times.append(self.context.stopwatch.next_step())

    def cut_short(self, why: str) -> Phase:
        context = self.context
        if self.running and context.detector.leads_at_beginnings():
            self._last_ends()  # it began at a call, and has no other end than this one
        elif self.times:
            self.session.running = None  # what came after the last step is none
        if self.times:
            steps = numbers.count(len(self.times), "step") + ("" if self.full else " of the device alone")
            context.measured.note(f"{why}: recorded {steps}, fewer than wanted")
            self._write()
        else:
            self.session.mark(None)
            self.session.stop()
        return super().cut_short(why)

    def _write(self) -> Phase:
        context = self.context
        self.session.mark(None)
        self.session.stop()
        if not context.write(self.session, full=self.full):
            return Recover(context) if context.measured.written else Done(context)
        context.saved()
        if not self.full:
            return Recover(context)
        return after_full_pass(context) if context.inputs is None else KeepInputs(context, context.inputs)


def after_full_pass(context: Context) -> Phase:
    """The phase after the recording of host and device, and of the inputs where they are kept.

    The lines come before the light pass, so that the device is being traced until CUPTI is detached: detached
    after a step in which it was attached and traced nothing, the next replay of a CUDA graph failed (PyTorch
    2.11, CUDA 13.0).
    """
    if context.options.lines and not context.options.careful:
        why = context.device.python_hindrance()
        if why is None:
            return NoteLines(context)
        context.measured.note(f"{NO_LINES}: {why}")
    return after_lines(context)


def after_lines(context: Context) -> Phase:
    if not context.two_passes:
        return Recover(context)
    light, timed = Prepare(context, "light"), context.measured.before.times
    return light.at_once() if timed and few(context, timed[-1]) else light


class KeepInputs(Phase):
    """One step more, in which what kernels are called with is kept."""

    name = "keeping inputs"
    leader_stays = True

    def __init__(self, context: Context, inputs: KernelInputs) -> None:
        super().__init__(context)
        self.inputs = inputs

    def enter(self) -> None:
        self.inputs.start()

    def boundary(self, boundary: Boundary) -> Phase:
        return self if self.context.options.range is not None else self.range_left()

    def range_left(self) -> Phase:
        self.inputs.stop()
        return after_full_pass(self.context)

    def given_up(self) -> None:
        self.inputs.stop()

    def cut_short(self, why: str) -> Phase:
        return self


class NoteLines(Phase):
    """One step more, in which the lines of the program are noted that call each op."""

    name = "noting lines"
    leader_stays = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.session: KinetoSession | None = None

    def enter(self) -> None:
        context = self.context
        context.tell("recording one more step, only to learn which lines of the program call the ops")
        self.session = context.device.session(kind="lines", any_thread=False)
        self.session.prepare()
        self.session.start()
        self.session.mark(context.detector.index)

    def boundary(self, boundary: Boundary) -> Phase:
        return self if self.context.options.range is not None else self.range_left()

    def range_left(self) -> Phase:
        session, self.session = self.session, None
        if session is not None:
            session.mark(None)
            session.stop()
            measured = self.context.measured
            padding, measured.labels, measured.same_calls, measured.uncounted_calls = session.given()
            measured.padding = measured.padding or padding
            self.context.write_lines(session)
        return after_lines(self.context)

    def left(self) -> Phase:
        return self.range_left()

    def ends_here(self) -> bool:
        return self.session is None or self.session.ends_here()

    def abandoned(self) -> None:
        if self.session is not None:
            self.session.abandoned()

    def given_up(self) -> None:
        if self.session is not None:
            self.session.stop()

    def cut_short(self, why: str) -> Phase:
        self.given_up()
        return super().cut_short(why)


class TimeAfter(Time):
    """Time the program again, after it was recorded."""

    name = "timing again"

    leader_stays = True
    patience = of_bursts = QUEUE_PATIENCE

    def __init__(self, context: Context) -> None:
        super().__init__(context, context.measured.after)

    def following(self, step: StepTime) -> Phase:
        return finished(self.context) if self.complete() else self


def finished(context: Context, *, drained: bool = True) -> Phase:
    """All that was to be recorded is, and the program goes on. Where it lives off what its loader made in our
    pauses, its steps are not timed on."""
    context.tell(
        f"recorded, which paused the program for {context.measured.paused_s:.1f} s; the program goes on "
        "(Ctrl-C ends it; the recording is kept)"
    )
    if context.detector.provisional or _paced(context):
        return Standby(context)
    return TimeOn(context) if drained else Done(context)


def _paced(context: Context) -> bool:
    """Whether the steps' pace alone may have them recorded again: not of those that wait for a loader, whose
    queue our pauses fill."""
    chosen = context.lockstep or context.decisions.seeded or context.options.warmup is not None
    return not chosen and context.measured.waited_before() is None


class TimeOn(Phase):
    """All is recorded and on disk, and nothing of ours is in the program but what its steps are known by:
    they are timed on for a while, by a reading of the host's clock where each ends."""

    name = "timing on"
    leader_stays = True
    records_more = False
    lasts_s = TIMED_ON_S

    def enter(self) -> None:
        context = self.context
        self.began_s = context.stopwatch.now_s
        context.ledgers.remove()
        context.measured.passed = context.passed
        context.saved()
        context.measured.later.begin(context.stopwatch, context.ended + 1)
        timed = context.measured.after.times or context.measured.before.times
        self.step_s = timed.seconds / len(timed) if timed else 0.0
        self._look()

    def _look(self) -> None:
        """Whether it is over is not looked at with each short step."""
        if 0 < self.step_s < PASSED_OVER_S:
            self.context.detector.pass_over(max(PACE_STEPS, int(PACE_S / self.step_s)) - 1)

    def boundary(self, boundary: Boundary) -> Phase:
        self.passed_over()
        return self.following()

    def following(self) -> Phase:
        if self.context.stopwatch.now_s - self.began_s >= self.lasts_s or self.context.measured.later.full:
            return Done(self.context)
        self._look()
        return self

    def passed(self, boundary: Boundary) -> None:
        self.passed_over()

    def passed_over(self) -> None:
        """A step ends, of which no more is looked at than the time."""
        self.context.measured.later.step_ended(self.context.stopwatch)

    def evaluated(self) -> None:
        self.context.measured.later.leave_out(self.context.stopwatch)

    def cut_short(self, why: str) -> Phase:
        return Done(self.context)


class Standby(TimeOn):
    """All is recorded, but steps were those of calls that wait for the device, or of an inner loop: a surer
    source, or a loop around them, may yet show. Or they get twice as fast, as a program does whose library
    plans for each new size. Then these are recorded in their place. After as long as others are timed on the
    recording is said to have ended all the same: who waits for that (``--stop``) is not held up."""

    name = "standing by"
    leader_stays = False
    records_more = True
    lasts_s = STANDBY_S

    def enter(self) -> None:
        super().enter()
        if not _paced(self.context):
            self.step_s = 0.0

    def _look(self) -> None:
        """The pace is that of the steps from here on; most of them are only counted."""
        context = self.context
        self.looked_s, self.index = context.stopwatch.now_s, context.detector.index
        if 0 < self.step_s < PASSED_OVER_S:
            context.detector.pass_over(max(PACE_STEPS, int(PACE_S / self.step_s)) - 1)

    def following(self) -> Phase:
        context = self.context
        now_s, steps = context.stopwatch.now_s, context.detector.index - self.index
        if now_s - self.began_s >= self.lasts_s:
            return Done(context)
        if self.records_more and now_s - self.began_s >= TIMED_ON_S:
            self.records_more = False
            context.saved()
        if steps < PACE_STEPS or now_s - self.looked_s < PACE_S * FASTER:
            return self
        pace_s = (now_s - self.looked_s) / steps
        if pace_s <= FASTER * self.step_s:
            context.measured.note(
                f"steps took {1e3 * self.step_s:.3g} ms where they were timed and {1e3 * pace_s:.3g} ms "
                "later, and the program ended before those were recorded (`--warmup N` records later ones)"
            )
            context.tell("steps take half of the time or less now: they are timed and recorded again")
            return Settle(context)
        self._look()
        return self


class Done(Phase):
    """Nothing of ours is left in the program but what counts its steps."""

    name = "done"
    records_more = False
    last = True

    def enter(self) -> None:
        self.context.provisional.end()
        self.context.ledgers.remove()
        if self.context.detector.leader is not None:
            measured, passed = self.context.measured, self.context.passed
            measured.passed = passed if measured.passed is None else measured.passed
            measured.stood_by = passed - measured.passed
        self.context.saved()

    def cut_short(self, why: str) -> Phase:
        return self
