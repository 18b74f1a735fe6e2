"""The state machine of one process: watch for steps, wait for steady state, time without the profiler, record with it.

    WATCH    no source of steps has proved itself. A *provisional* recording runs meanwhile, so that a program
             without steps, or one that ends early, is recorded all the same; it ends after the first two whole
             steps, or when it has used its budget.
    SETTLE   steps are known; wait until nothing compiles and their time has settled.
    TIME     time a few steps without the profiler, waiting for the device before the first and after the last.
    WARM     one step with the profiler's buffers ready, not recorded.
    RECORD   record a few steps.
    DONE     the trace is on disk; nothing of ours is left in the program.

A profiler of the program's own ends whatever of ours runs; we wait until it is through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from statistics import median

from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.profiler import Device, Session
from kinetoscope.capture.recorder.provisional import ORDER, Provisional, Source, notes
from kinetoscope.capture.steps.ranks import Start, at_once
from kinetoscope.capture.steps.steady import PATIENCE, recorded_steps, settled, timed_steps
from kinetoscope.recording.manifest import StepTimings

WATCH, SETTLE, TIME, WARM, RECORD, DONE = "watch", "settle", "time", "warm", "record", "done"

# How often a source must tick before its ticks are taken for steps: the surer sign of a step needs fewer. A module
# that is being trained waits for its optimizer, through as many calls as gradients are commonly accumulated over.
TICKS_NEEDED = {"user": 1, "optimizer": 1, "module": 3, "training module": 17, "compiled": 5, "range": 6}
# Sources that tick where a step begins; the others tick where one ends.
BEGINNINGS = ("module", "compiled", "range")
PROVISIONAL_TICKS = 3
# Ranges named after a running number would otherwise be remembered for ever.
KEYS_WATCHED = 500


class Recorder:
    """Records one process; see the module's docstring.

    Args:
        options: what to record.
        device: torch's profiler and device, behind a few verbs.
        trace: the file to write.
        compilations: a number that grows while something compiles.
        following: told which source leads, once that is decided.
        moment: told of the moments worth a reading of the device's clocks.
        finished: told when nothing more is recorded.
        start: agrees on the step at which to start.
        lockstep: other ranks record the same steps, so that their number must not depend on our clock.
        clock: seconds.
    """

    def __init__(
        self,
        options: Options,
        device: Device,
        trace: Path,
        *,
        compilations: Callable[[], int] = lambda: 0,
        following: Callable[[str, Hashable], None] = lambda kind, key: None,
        moment: Callable[[str], None] = lambda name: None,
        finished: Callable[[], None] = lambda: None,
        start: Start = at_once,
        lockstep: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.options, self.device, self.trace, self.clock = options, device, trace, clock
        self.compilations, self.following, self.moment = compilations, following, moment
        self.finished, self.start_agreed, self.lockstep = finished, start, lockstep
        self.phase = WATCH
        self.lock = threading.RLock()
        self.inside = False
        self.counts: dict[Source, int] = {}
        self.leader: Source | None = None
        self.leader_name = ""
        self.leader_thread = 0
        self.index = 0  # boundaries of the leader seen so far, its step number
        self.skipping = 0  # ticks of the leader to let pass
        self.last = 0.0
        self.range_ended: float | None = None
        self.compiled_before = 0
        self.waited: list[float] = []
        self.all_waited: list[float] = []
        self.settled = True
        self.unprofiled: list[float] = []
        self.profiled: list[float] = []
        self.session: Session | None = None
        self.provisional = Provisional(device)
        self.first_step: int | None = None
        self.foreign = 0
        self.written = False
        self.notes: list[str] = []

    def begin(self) -> None:
        """Start the provisional recording."""
        self.provisional.start()

    def restart(self) -> None:
        """The program has begun to use a device: record anew, with the device."""
        with self.lock:
            if self.provisional.running:
                self.provisional.stop()
                self.provisional.start()

    def budget_spent(self, why: str) -> None:
        """End the provisional recording; called from a thread of its own."""
        with self.lock:
            if self.provisional.running and self.phase == WATCH:
                self.provisional.stop()
                self.notes.append(why)

    # Ticks

    def tick(self, kind: str, key: Hashable, name: str) -> None:
        """A step boundary was seen by one of the sources."""
        if self.phase == DONE or self.inside:
            return
        if self.skipping and (kind, key) == self.leader:  # the short way through a long --warmup
            self.skipping -= 1
            self.index += 1
            return
        with self.lock:
            self.inside = True
            try:
                if kind == "range end":
                    self._range_end()
                else:
                    self._tick("module" if kind == "training module" else kind, kind, key, name)
            except Exception as error:
                self._give_up(error)
            finally:
                self.inside = False

    def _give_up(self, error: Exception) -> None:
        """Whatever fails in here is ours to bear: the program goes on without us."""
        self.notes.append(f"recording stopped: {type(error).__name__}: {error}")
        self.session = None
        self.phase = DONE
        self.finished()

    def _tick(self, kind: str, patience: str, key: Hashable, name: str) -> None:
        source = (kind, key)
        if self.leader is None or (
            ORDER.index(kind) < ORDER.index(self.leader[0]) and self.phase in (SETTLE, TIME)
        ):
            self._count(source, patience, name)
        elif source == self.leader and threading.get_ident() == self.leader_thread:
            self.index += 1
            self._step()

    def _count(self, source: Source, patience: str, name: str) -> None:
        if source not in self.counts and len(self.counts) >= KEYS_WATCHED:
            return
        count = self.counts[source] = self.counts.get(source, 0) + 1
        if self.provisional.running:
            self._mark_provisional(source, count)
        if self.options.whole:
            return
        if count >= TICKS_NEEDED[patience]:
            self.leader, self.leader_name, self.leader_thread = source, name, threading.get_ident()
            self.provisional.source = source
            self.index, self.phase = count - 1, SETTLE
            self.waited, self.all_waited = [], []
            self.following(*source)
            self._forget()
            self._skip()

    def _skip(self) -> None:
        """Let the steps of a long --warmup pass without looking at each."""
        if not self.provisional.running and self.options.warmup is not None:
            self.skipping = max(0, self.options.warmup - self.index - 1)

    def _mark_provisional(self, source: Source, count: int) -> None:
        self.provisional.tick(source)
        if count >= PROVISIONAL_TICKS and not self.options.whole and self.provisional.source == source:
            self.provisional.stop()

    def _forget(self) -> None:
        """The time to the next boundary starts here: what went before was not a step of the program alone."""
        self.last, self.compiled_before, self.range_ended = self.clock(), self.compilations(), None

    def _interval(self) -> tuple[float, bool]:
        """Seconds since the last boundary, and whether something compiled meanwhile."""
        now, compiled = self.clock(), self.compilations()
        end = now if self.range_ended is None else self.range_ended
        seconds, compiling = end - self.last, compiled != self.compiled_before
        self.range_ended, self.last, self.compiled_before = None, now, compiled
        return seconds, compiling

    def _step(self) -> None:
        if self.foreign:
            return
        if self.provisional.running:
            self._mark_provisional(self.leader or ("user", 0), self.index + 1)
            self._forget()
            self._skip()
        elif self.phase == SETTLE:
            self._settle()
        elif self.phase == TIME:
            self._time()
        elif self.phase == WARM:
            self._record()
        elif self.phase == RECORD:
            self._recorded()

    def _settle(self) -> None:
        seconds, compiling = self._interval()
        self.all_waited.append(seconds)
        self.waited = [] if compiling else [*self.waited, seconds]
        if self.options.warmup is not None:
            ready = self.index >= self.options.warmup
        else:
            gave_up = len(self.all_waited) >= PATIENCE
            ready = settled(self.waited) or gave_up
            self.settled = settled(self.waited)
        if self.start_agreed(self.index, ready):
            self.device.synchronize()
            self.unprofiled, self.phase = [], TIME
            self._forget()

    def _last_timed(self) -> bool:
        wanted = timed_steps(median(self.waited)) if self.waited and not self.lockstep else 3
        return len(self.unprofiled) + 1 >= wanted

    def _time(self) -> None:
        last = self._last_timed()
        if last and self.range_ended is None:
            self.device.synchronize()
        seconds, compiling = self._interval()
        self.unprofiled.append(seconds)
        if (
            compiling
            and len(self.all_waited) < PATIENCE
            and self.options.warmup is None
            and not self.lockstep
        ):
            self.waited, self.phase = [], SETTLE
        elif last:
            self.session = self.device.session(any_thread=False)
            self.session.prepare()
            self.phase = WARM

    def _record(self) -> None:
        assert self.session is not None
        self.moment("before recording")
        self.device.synchronize()
        self.session.start()
        self.first_step, self.phase = self.index, RECORD
        self.session.mark(self.index)
        self._forget()

    def _last_recorded(self) -> bool:
        alone = recorded_steps(median(self.unprofiled)) if self.unprofiled and not self.lockstep else 3
        wanted = self.options.steps or alone
        return len(self.profiled) + 1 >= wanted

    def _recorded(self) -> None:
        assert self.session is not None
        if self.options.range is not None:
            self.session.mark(self.index)
            self._forget()
        elif self._last_recorded():
            self._finish_recording()
        else:
            self.profiled.append(self._interval()[0])
            self.session.mark(self.index)

    def _range_end(self) -> None:
        """The named range was left: its step ends here, not where the range is entered next."""
        if self.phase == TIME and self._last_timed():
            self.device.synchronize()
        if self.phase != RECORD or self.session is None:
            self.range_ended = self.clock()
        elif self._last_recorded():
            self._finish_recording()
        else:
            self.profiled.append(self._interval()[0])
            self.session.mark(None)

    def _finish_recording(self) -> None:
        assert self.session is not None
        self.device.synchronize()
        self.profiled.append(self._interval()[0])
        self._write(self.session, running=True)
        self.moment("after recording")
        self._done()

    def _write(self, session: Session, *, running: bool) -> None:
        if running:
            session.mark(None)
            session.stop()
        session.export(self.trace)
        self.written = True

    def _done(self) -> None:
        self.phase = DONE
        self.session = None
        self.provisional.drop()
        self.finished()

    # A profiler of the program's own

    def foreign_began(self) -> None:
        """The program starts a profiler itself: there can be one at a time, and it is the program's turn."""
        with self.lock:
            self.foreign += 1
            if self.foreign == 1 and self.phase != DONE:
                self._stand_aside()

    def foreign_ended(self) -> None:
        with self.lock:
            self.foreign = max(0, self.foreign - 1)
            self.waited = []
            self._forget()

    def _stand_aside(self) -> None:
        self.inside = True
        try:
            self.provisional.stop()
            if self.phase == RECORD:
                self._cut_short("the program started a profiler of its own")
            elif self.phase == WARM:
                self._drop_prepared()
            if self.phase in (TIME, WARM):
                self.unprofiled = []
                self.phase, self.waited = SETTLE, []
        finally:
            self.inside = False

    def _drop_prepared(self) -> None:
        """A prepared session must be started before it can be ended."""
        assert self.session is not None
        self.session.start()
        self.session.stop()
        self.session = None

    def _cut_short(self, why: str) -> None:
        assert self.session is not None
        if self.leader is not None and self.leader[0] in BEGINNINGS:
            # The step that is running began at a call, and has no other end than this one.
            self.device.synchronize()
            self.profiled.append(self._interval()[0])
        if self.profiled:
            self.notes.append(f"{why}: recorded {len(self.profiled)} steps, fewer than wanted")
            self._write(self.session, running=True)
            self._done()
        else:
            self.session.mark(None)
            self.session.stop()
            self.session, self.phase = None, SETTLE

    # The end

    def end(self) -> None:
        """The program ends: write what there is, the best first."""
        with self.lock:
            if self.phase == DONE:
                return
            self.inside = True
            if self.phase == RECORD:
                self._cut_short("the program ended")
            elif self.phase == WARM:
                self._drop_prepared()
            if self.phase != DONE:
                self._end_provisional()
                self._done()

    def _end_provisional(self) -> None:
        provisional = self.provisional
        if provisional.session is None:
            return
        cold = not provisional.running
        provisional.stop()
        self._write(provisional.session, running=False)
        source = provisional.source
        steps = self.counts.get(source, 0) if source is not None else 0
        self.notes += notes(cold=cold, steps=steps, whole=self.options.whole)
        if self.leader is None and source is not None and steps >= 2:
            self.leader = source
        self.first_step = 0 if source is not None else None

    def timings(self) -> StepTimings:
        """How the steps were found and timed."""
        return StepTimings(
            found_by=self.leader[0] if self.leader else "whole",
            step_name=self.leader_name or None,
            first_step=self.first_step,
            warmup_steps=self.first_step or 0,
            settled=self.settled and bool(self.profiled),
            cold=self.written and not self.profiled,
            warmup_s=tuple(self.all_waited),
            unprofiled_s=tuple(self.unprofiled),
            profiled_s=tuple(self.profiled),
            notes=tuple(self.notes),
        )
