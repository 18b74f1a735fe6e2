"""Records one process: hands what the detector makes of ticks to one phase after the other."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Collection, Hashable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from kinetoscope.capture import torch_private
from kinetoscope.capture.compiler.kernel_inputs import KernelInputs
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.context import Context, MeasuredSteps
from kinetoscope.capture.recorder.graphs import GraphCaptures
from kinetoscope.capture.recorder.memory import NoMemoryHistory
from kinetoscope.capture.recorder.phases import (
    Done,
    NoteLines,
    Phase,
    Prepare,
    RecordSteps,
    Recover,
    Settle,
    Standby,
    Time,
    TimeOn,
    Watch,
)
from kinetoscope.capture.recorder.profiler import Occupied, TorchDevice
from kinetoscope.capture.recorder.provisional import Decisions, MainThread, Provisional, notes
from kinetoscope.capture.steps.call_sites import UNKNOWN_STACK, CallStack
from kinetoscope.capture.steps.detector import (
    ACTING,
    CALLED,
    ITERATION,
    SIGNALS,
    Boundary,
    Evaluation,
    Signal,
    Source,
    StepDetector,
)
from kinetoscope.capture.steps.ledgers import NoLedgers
from kinetoscope.capture.steps.levels import Candidates, calls_in_a_loop, levels
from kinetoscope.capture.steps.loops import Loop
from kinetoscope.capture.steps.start import Start, at_once
from kinetoscope.capture.steps.timing import Stopwatch, Timing
from kinetoscope.capture.steps.updates import Updates
from kinetoscope.errors import in_one_line
from kinetoscope.recording.manifest import StepTimings

# The source that leads, the kinds of others that show where its steps end, and whether these are looked for.
Following = Callable[[Source, Collection[str], bool], None]
# An iteration may launch 100,000 ops a second, of 1 kB each in memory and on disk: what --budget allows for.
MB_PER_SECOND = 100.0
LONGEST_PASS_S = 1.0  # longer passes of a loop are no steps: three are recorded, of 100 MB each for a second
ELSEWHERE = (
    "requests generated in other threads than the one that was recorded: neither their ops nor lines are in "
    "the recording (`kinetoscope run --on-request` records all threads)"
)
# A leader is silent after so long without a tick, and after so many of its steps; what is being recorded is
# given up after so long: requests come when they come.
SILENT_S, SILENT_STEPS, GIVEN_UP_S = 2.0, 20, 30.0
FEWEST_ITERATIONS = 2  # whole iterations that a recording holds at least


class Recorder:
    """Records one process. A profiler of the program's own ends whatever of ours runs, and is waited for."""

    def __init__(
        self,
        options: Options,  # what to record
        device: TorchDevice,  # torch's profiler and device, behind a few verbs
        trace: Path,  # the file to write
        *,
        # keeps what kernels are called with in the step after the recorded ones
        inputs: KernelInputs | None = None,
        ledgers: NoLedgers | None = None,  # what the host waits for while steps are timed
        memory: NoMemoryHistory | None = None,  # the allocator's history
        graphs: GraphCaptures | None = None,  # records how CUDA graphs are captured
        compilations: Callable[[], int] = lambda: 0,  # a number that grows while something compiles
        stack: CallStack = UNKNOWN_STACK,  # the program's, at a tick
        # called with the source that leads, the kinds of others that show where its steps end, and whether
        # these are still looked for
        following: Following = lambda source, also, looking: None,
        loads: Callable[[], int] = lambda: 0,  # grows where the program takes a batch from a data loader
        widen: Callable[[], None] = lambda: None,  # has all sources watched again
        updates: Callable[[], Updates] = Updates,  # the program's first
        # moment, saved, start_agreed, lockstep, tell, entered, decisions: see :class:`Context`
        moment: Callable[[str], None] = lambda name: None,
        saved: Callable[[], None] = lambda: None,
        start_agreed: Start = at_once,
        lockstep: bool = False,
        tell: Callable[[str], None] = lambda text: None,
        entered: Callable[[str], None] = lambda phase: None,
        decisions: Decisions | None = None,
        lock: threading.RLock | None = None,  # taken while the device is touched
        clock: Callable[[], float] = time.perf_counter,  # seconds
    ) -> None:
        self.options, self.following, self.clock, self.graphs = options, following, clock, graphs
        self.widen, self.updates = widen, updates
        self.detector = StepDetector(
            may_lead=not options.whole, rounds=options.range is None, wanted=options.step, loads=loads
        )
        self.stack, self.candidates = stack, Candidates()
        self.evaluation = Evaluation()
        self.evaluating_s = 0.0  # when the latest evaluation began
        self.trained_in: list[Loop] | None = None  # the loops around a call of the model that is trained
        self.name = ""  # of the leader
        self.kept: StepTimings | None = None  # of recorded steps, while others are to take their place
        self.led: Source | None = None  # the leader whose steps are timed and recorded
        self.heard_s = clock()  # when it ticked last
        self.pass_s = self.pass_began_s = 0.0  # how long the latest pass of the loop around its calls took
        self.optimizer: Source | None = None  # that led last
        self.acting: Source | None = None  # the module that was called last without gradients
        self.watching_all = False  # the sources that show where a step of several calls ends are looked for
        decisions = decisions or Decisions()
        self.provisional = Provisional(
            device, trace, self._first_saved, whole=options.whole, decisions=decisions
        )
        self.main_thread = MainThread(self._in_main_thread)
        ledgers = ledgers or NoLedgers()
        self.context = Context(
            options=options,
            device=device,
            trace=trace,
            inputs=inputs,
            start_agreed=start_agreed,
            lockstep=lockstep,
            tell=tell,
            entered=entered,
            decisions=decisions,
            moment=moment,
            saved=saved,
            detector=self.detector,
            stopwatch=Stopwatch(clock, compilations, ledgers.read, device.mark),
            ledgers=ledgers,
            memory=memory or NoMemoryHistory(),
            provisional=self.provisional,
            measured=MeasuredSteps(before=Timing(device.elapsed_s), after=Timing(device.elapsed_s)),
        )
        self.measured = self.context.measured
        self.phase: Phase = Watch(self.context)
        self.lock = lock or threading.RLock()
        self.inside = False  # what we do ourselves ticks, too
        self.foreign = 0  # profilers of the program's own that are running

    @property
    def done(self) -> bool:
        return self.phase.last

    @property
    def records_more(self) -> bool:
        """Something may still be recorded."""
        return self.phase.records_more

    def begin(self) -> None:
        """Start the provisional recording, unless the program is to be recorded with care."""
        if not self.options.careful:
            self.context.entered("beginning")
            self.provisional.start()

    def restart(self) -> None:
        """The program has begun to use a device: record anew, with the device."""
        if self.provisional.running:
            self._guarded(self._restart)

    def _restart(self) -> None:
        self.provisional.stop()
        self.provisional.start()

    def capture_begins(self, graph: Any) -> None:
        """A graph is about to be captured in this thread, and no other is: record how, unless steps are being
        timed, or a backward pass is running."""
        busy, graphs = self.inside or self.foreign or self.options.careful, self.graphs
        if graphs is None or busy or not isinstance(self.phase, (Watch, Settle)):
            return
        if self.provisional.session is not None:
            graphs.seen(graph, self.provisional.session if self.options.graphs else None)
        elif self.options.graphs and not torch_private.in_backward() and graphs.wanted():
            self._guarded(lambda: graphs.begin(graph))

    def capture_ended(self, graph: Any) -> None:
        graphs = self.graphs
        if graphs is not None and (graphs.session is not None or graphs.noting is not None):
            self._guarded(lambda: self._end_capture(graphs, graph))

    def _end_capture(self, graphs: GraphCaptures, graph: Any) -> None:
        if graphs.end(graph):
            self.context.stopwatch.spoil()
            self.context.device.release()

    def _first_saved(self) -> None:
        if self.graphs is not None:
            self.graphs.keep_first()
        self.context.saved()

    def budget_spent(self, why: str) -> None:
        """Ends the provisional recording once that harms nothing; called by a thread until it has."""
        self.provisional.why = why
        self.main_thread.soon()

    def _in_main_thread(self) -> None:
        """The program's main thread is between two of its instructions."""
        if self.lock.acquire(blocking=False):  # who has it may wait for something that we keep from happening
            try:
                if not self.inside and self.context.device.occupied() is None:
                    self._guarded(self._end_provisional)
                    if self.silent():
                        self._guarded(self._leader_silent)
            finally:
                self.lock.release()

    def _end_provisional(self) -> None:
        # The first steps of a leader are soon over; a request may take minutes.
        leader = self.detector.leader or ("request",)
        if self.provisional.why and self.provisional.running and leader[0] == "request":
            self.provisional.end()

    def tick(self, signal: Signal, key: Hashable, name: str) -> None:
        if self.inside or self.done:
            return
        index = self.detector.index
        if not self.detector.passes(signal, key, self.stack):
            self._guarded(lambda: self._tick(signal, key, name))
        elif self.detector.index > index and isinstance(self.phase, TimeOn):
            if self.evaluation.stepped():
                self._guarded(self._evaluated)
            else:
                self.phase.passed_over()

    def part(self, name: str) -> None:
        """A part of the leader's step begins."""
        if self._listening():
            self._guarded(lambda: self.phase.part(name))
        elif isinstance(self.phase, RecordSteps) and not (self.inside or self.foreign):
            # As of a server that streams: each request generates in a thread of its own.
            self.measured.note(ELSEWHERE)

    def model_called(self, training: bool) -> bool:
        """The model whose optimizer leads is called, to be trained or not: whether further calls are of no
        matter until the optimizer has stepped."""
        if not self._listening():
            return False
        if training and self.trained_in is None:
            self.trained_in = self.stack.loops()
        change = self.evaluation.called(training)
        if change == "begins":
            self.evaluating_s = self.clock()
            self._guarded(lambda: self.phase.part("evaluate"))
        elif change == "ends":
            self._guarded(self._evaluated)
        return training

    def _evaluated(self) -> None:
        self.detector.index += 1  # it had the number of a step
        self.measured.evaluations += 1
        self.measured.evaluated.append((self.context.passed, self.clock() - self.evaluating_s))
        self.phase.evaluated()

    def _listening(self) -> bool:
        """Whether what the running step is made of matters, here in this thread."""
        return not (self.inside or self.foreign or self.done) and self.detector.leads_in(
            threading.get_ident()
        )

    def _guarded(self, act: Callable[[], None]) -> None:
        with self.lock:
            began, self.inside = self.clock(), True
            try:
                act()
            except (
                Exception
            ) as error:  # whatever fails in here is ours to bear: the program goes on without us
                self._step_aside(f"recording stopped: {in_one_line(error)}")
            except BaseException:  # the program is interrupted, and we with it
                self._step_aside("recording stopped: the program was interrupted in the middle of it")
                raise
            finally:
                self.inside = False
                self.measured.paused_s += self.clock() - began

    def _step_aside(self, why: str) -> None:
        self.measured.failed(why)
        with contextlib.suppress(Exception):
            self.phase.given_up()
        self.phase = Done(self.context)
        with contextlib.suppress(Exception):
            self.phase.enter()

    def _tick(self, signal: Signal, key: Hashable, name: str) -> None:
        occupied = self.context.device.occupied()
        if occupied == "here":
            return  # what is captured runs later, and what is called in a backward pass is a part of a step
        passes = self.detector.outer.passes
        boundary = self.detector.tick(signal, key, threading.get_ident(), name, self.stack)
        if self.detector.outer.passes > passes:
            self.pass_began_s, began_s = self.clock(), self.pass_began_s
            self.pass_s = self.pass_began_s - began_s
        if boundary is not None and boundary.role != "candidate":
            if self.phase.leader_stays and self.silent(GIVEN_UP_S):  # from elsewhere it could not be ended
                self._given_up(f"{self.name} was not called for long")
            self.heard_s = self.clock()
        self._act(boundary, signal, key, name, occupied)
        decided = self.watching_all and not self.detector.outer.undecided
        if decided and boundary is not None and boundary.source == self.detector.leader:
            self._follow(boundary.source)

    def _act(
        self, boundary: Boundary | None, signal: Signal, key: Hashable, name: str, occupied: Occupied | None
    ) -> None:
        if not self.detector.fixed and self.detector.loop.round is None:
            self._ticked(signal, key, name)
        if boundary is None:
            return
        if occupied is None:
            self._end_provisional()
        if boundary.role == "candidate":
            if signal not in ("early loop", "closure's loop"):  # too early to say that these are steps
                self.phase.candidate(boundary)
        elif boundary.role == "leads":
            self._leads(boundary, name)
        elif self.evaluation.stepped():
            self._evaluated()  # no call showed where training went on: no step of training alone ends here
        elif occupied is not None:
            self.phase.passed(boundary)
        elif not self.foreign and boundary.role == "again":
            self.phase.evaluated()
        elif not self.foreign and boundary.role == "left":
            self._go(self.phase.left())
        elif not self.foreign:
            ended = boundary.role == "end"
            following = self.phase.range_left() if ended else self.phase.boundary(boundary)
            if isinstance(self.phase, Standby) and isinstance(following, Settle):
                self._records_anew()
            self._go(following)

    def _ticked(self, signal: Signal, key: Hashable, name: str) -> None:
        if signal not in ("range end", "between"):
            source = self.detector.sign((SIGNALS[signal].kind, key))
            self.candidates.ticked(source, name, self.clock())
            if signal in ACTING:
                self.acting = source

    def _leads(self, boundary: Boundary, name: str) -> None:
        measured, source = self.measured, boundary.source
        if source != self.led and self.phase.leader_stays:
            self._given_up(f"{self.name} was called no more")
            if self.done:
                return
        self.led = source
        if self.detector.passes_lead and self.pass_s > LONGEST_PASS_S:
            self.detector.inner_leads()
            if isinstance(self.phase, Standby):
                self._go(Done(self.context))
                return
        if isinstance(self.phase, Standby):
            self._records_anew()
        place = self.stack.place() if source[0] in CALLED else ""
        found = levels(self.detector, self.candidates, name, self.acting, place)
        if source == ITERATION:
            seconds = sum(part.calls * (part.seconds or 0.0) for part in found[1:])
            most = int(self.options.budget_mb / MB_PER_SECOND / seconds) if seconds else None
            if most is not None and most < FEWEST_ITERATIONS:
                measured.note(
                    f"{found[0].name}, takes about {seconds:.1f} s, more than --budget lets "
                    f"{FEWEST_ITERATIONS} of them be recorded: a step is {measured.levels[0].name}"
                )
                self.detector.decline(self.optimizer)
                return
            measured.most_recorded = most
        if source[0] == "optimizer":
            self.optimizer = source
        self.evaluation, measured.evaluations, self.trained_in = Evaluation(), 0, None
        measured.evaluated.clear()
        self.name = measured.step_name = name
        measured.found_by, measured.levels = source[0], found
        measured.warmup_s.clear()
        self._follow(source)
        self.context.tell(f"a step is {found[0].name}")
        self._go(self.phase.leads(boundary))

    def _records_anew(self) -> None:
        """Other steps are to take the place of the recorded ones, which count until these are written."""
        self.kept = self.timings()
        self.measured.anew()
        self.measured.warmup_s.clear()

    def _follow(self, source: Source) -> None:
        outer = self.detector.outer
        self.watching_all = outer.undecided
        also = sorted(outer.shown_by) if outer.found else ["batch", "loop"] if outer.looking else ()
        self.following(source, also, outer.undecided)

    def silent(self, seconds: float = SILENT_S) -> bool:
        """Whether the leader has not ticked for so long that another source may have taken its place."""
        if self.done or self.foreign or self.led is None or self.led[0] not in CALLED:
            return False
        step_s = (self.measured.warmup_s or [0.0])[-1]
        return self.clock() - self.heard_s > max(seconds, SILENT_STEPS * step_s)

    def look_for_silence(self) -> None:
        """Called now and then, from a thread of its own: a leader may have fallen silent."""
        if self.silent() and (not self.watching_all or self.silent(GIVEN_UP_S)):
            self.main_thread.soon()

    def _leader_silent(self) -> None:
        """The leader has not ticked for long: watch all sources again; what is recorded must not grow."""
        if not self.watching_all:
            self.watching_all = True
            self.widen()
        if self.silent(GIVEN_UP_S) and isinstance(self.phase, Standby):
            self._go(Done(self.context))
        elif self.silent(GIVEN_UP_S) and self.phase.leader_stays and self.phase.ends_here():
            self._given_up(f"{self.name} was called no more")

    def _given_up(self, why: str) -> None:
        """End what runs and write nothing of it: its steps do not end any more."""
        self.phase.given_up()
        if self.measured.written:
            self._go(Done(self.context))
            return
        self.measured.note(f"a recording was given up: {why}")
        self.measured.recorded.clear()
        self._go(Settle(self.context))

    def _go(self, phase: Phase) -> None:
        if phase is not self.phase:
            self.phase = phase
            self.context.entered(phase.name)
            self.detector.fixed = phase.leader_stays
            # Nothing of ours is in steps that are timed, and in a light pass hardly more.
            timed = isinstance(phase, (Time, Recover)) or (isinstance(phase, RecordSteps) and not phase.full)
            self.context.memory.keep(not timed)
            phase.enter()

    def foreign_began(self) -> None:
        """The program starts a profiler itself: there can be one at a time, and it is the program's turn."""
        with self.lock:
            self.foreign += 1
            if self.foreign > 1 or self.done:
                return
            self.inside = True
            try:
                self.provisional.end()
                self._go(self.phase.cut_short("the program started a profiler of its own"))
            finally:
                self.inside = False

    def foreign_ended(self) -> None:
        with self.lock:
            self.foreign = max(0, self.foreign - 1)
            self.context.stopwatch.restart()

    @property
    def recording(self) -> bool:
        """A session of the profiler is running, or about to."""
        return self.provisional.running or isinstance(self.phase, (Prepare, RecordSteps, NoteLines))

    def abandon(self) -> None:
        """This process is a fork of the recorded one: what runs is its parent's to end, and nothing is to be
        taken down here, since destroying a CUDA event aborts a fork."""
        self.phase.abandoned()
        for kept in (self, self.phase, self.provisional.session):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        self.provisional.session, self.provisional.why = None, None
        self.phase = Done(self.context)

    def end(self) -> None:
        """The program ends: write what there is, the best first."""
        with self.lock:
            if self.done:
                return
            self.inside = True
            self.phase.cut_short("the program ended")
            self.provisional.end(cut=False)
            if not self.measured.written:
                self.context.memory.write()
            self._go(Done(self.context))

    def _describe(self) -> None:
        """Describe the steps, and what else they could have been, as far as is known now."""
        measured, leader, wanted = self.measured, self.detector.leader, self.options.step
        updates = self.updates()
        measured.candidates, measured.updates = self.candidates.listed(), updates.of_a_step(leader)
        if leader is not None and leader[0] == "optimizer" and leader == self.led and not self.detector.turn:
            calls = updates.calls_of_a_step(leader)
            parts = calls_in_a_loop(self.detector.around, updates.model, calls, self.trained_in)
            measured.levels = (*measured.levels[:1], *parts)
        calls = leader is not None and leader == self.led and leader[0] in CALLED
        if calls and not self.detector.outer.found and not self.detector.loop.regular:
            whole = self.detector.loop.round is not None  # else its calls come from several places
            measured.levels = measured.levels if whole else levels(self.detector, self.candidates, self.name)
        if wanted is not None and leader is None:
            seen = ", ".join(dict.fromkeys(one.name for one in measured.candidates)) or "nothing"
            measured.note(f"--step {wanted}: no such steps were seen; what could have been one: {seen}")
        elif wanted == "iteration" and leader is not None and leader[0] == "optimizer":
            measured.note("--step iteration: no two iterations of acting and training were seen")

    def timings(self) -> StepTimings:
        """How the steps were found and timed, as far as is known now."""
        measured, kept = self.measured, self.kept
        if kept is not None and not measured.written:
            # A loop around the steps of before may be known by the same calls.
            same = all(
                getattr(kept, of) == getattr(measured, of) for of in ("found_by", "step_name", "levels")
            )
            passed, after = (measured.passed, measured.steps_after) if same else (None, None)
            return msgspec.structs.replace(kept, passed=passed, steps_after=after)
        self._describe()
        timings, provisional = measured.timings(), self.provisional
        source = self.detector.leader or provisional.source
        if self.measured.written or not provisional.written:
            notes_ = (*timings.notes, *provisional.failures, *(self.graphs.notes() if self.graphs else ()))
            return msgspec.structs.replace(timings, notes=notes_)
        if self.detector.leader is not None and provisional.steps >= 2:
            timings = self._of_first_steps(timings, self.detector.leader)
            source = provisional.source
        # The detector forgets the ticks of a source that led and leads no more; those recorded are marked.
        steps = max(self.detector.count(source), provisional.steps) if source is not None else 0
        steps += source is not None and source[0] == "request"  # one is a step, which the program's end ends
        said = notes(
            cold=provisional.cut,
            steps=steps,
            whole=self.options.whole,
            stacks=self.options.stacks,
            why=provisional.why,
        )
        return msgspec.structs.replace(
            timings,
            cold=True,
            first_step=0 if source is not None else None,
            warmup_steps=0,
            found_by=source[0] if source is not None and steps >= 2 else timings.found_by,
            notes=(*timings.notes, *said),
        )

    def _of_first_steps(self, timings: StepTimings, leader: Source) -> StepTimings:
        """The timings where only first steps were recorded: times of other, later found steps are not theirs,
        and what is recorded is no part of such a step."""
        first = self.provisional.source
        name = self.candidates.name(first) if first is not None else ""
        if first is None or (first[0], name) == (leader[0], self.name):
            return timings
        found = timings.levels[0].name if timings.levels else f"{leader[0]} {self.name}"
        takes = f" of {median(timings.before.step_s):.3g} s" if timings.before else ""
        calls = f"what is recorded are calls of {name or first[0]}"
        said = f"a step is {found}{takes}, and none was recorded: {calls}"
        return msgspec.structs.replace(
            timings, found_by=first[0], step_name=name or None, levels=(), unprofiled_s=(), before=None,
            after=None, settled=False, notes=(*timings.notes, said),
        )  # fmt: skip
