"""One request: the steps of this process timed, recorded, written and timed again, while it serves.

A thread of ours does all of it. The threads that serve do no more than note the time at the boundaries of
their steps, and nothing before a request or after it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Protocol

from kinetoscope.capture import torch_private
from kinetoscope.capture.hooks.imports import ImportWatch
from kinetoscope.capture.live import batches
from kinetoscope.capture.live.channel import LiveRequest
from kinetoscope.capture.options import Options
from kinetoscope.capture.process import environment
from kinetoscope.capture.recorder.graphs import GraphCaptures
from kinetoscope.capture.recorder.profiler import Captures, ForeignProfilers, KinetoSession
from kinetoscope.capture.recorder.provisional import resident_bytes
from kinetoscope.capture.recorder.unlocked import first_used_here, unlocked
from kinetoscope.capture.steps.detector import Boundary, Signal, StepDetector
from kinetoscope.capture.steps.levels import ONE_STEP
from kinetoscope.capture.steps.sources import Sources
from kinetoscope.capture.steps.timing import TIMED, TIMED_S
from kinetoscope.recording import folder as folders
from kinetoscope.recording.folder import RankReport
from kinetoscope.recording.manifest import RankRecord, StepLevel, StepTimings, TimedSteps

# Ranges that serving engines put around each step: vLLM, SGLang, ATOM, xDiT, TensorRT-LLM.
ENGINE_STEP = re.compile(
    r"(transformers_)?execute_(\d+_)?context_|execute_new_\d|execute_diffusion_|step\["
    r"|(dummy_)?(prefill|(eager_)?decode)\[|\[Executor\] _forward_step"
)
# So many boundaries show what the steps are; on a GPU they are waited for so long, in seconds.
PASSED, UNSEEN_S = 3, 10.0
LOOK_S = 0.1  # between two looks at the process's memory, and at whether the request still stands, in seconds
# The last step may still be running, on a device and in other threads, when the step after it has begun: so
# many boundaries later it is not, nor so many seconds later.
DRAINS, DRAINS_S, MOST_DRAINS_S = 2, 0.1, 1.0
STOPS_NS = 500_000_000  # the device is recorded for so long, at most, after a session was to end
WHOLE_S = 2.0  # a process without steps of a known kind is recorded for so long
# Kineto's events take so many times the memory, once a session is ended, that they took while it ran (144 MB
# became 850 MB: 140,000 operators, torch 2.13 on a CPU).
SWELLS = 6
# Who asks for a recording waits until it is written, which takes a second for each 11 MB of that memory
# (75 MB took 6.4 s on an H100's host, PyTorch 2.11): this part of the usual budget takes five seconds. What
# kernels of replayed graphs take has little to do with memory: Kineto works out the C++ name of each anew,
# twice (148,700 took 6.5 s, 167,700 took 8.6 s). Of graphs whose captures were not recorded it is not known
# how many there are: half of the memory then.
SLOW, MOST_REPLAYED, SLOWER_REPLAYED = 18, 105_000, 2
# What is said of a server from which CUPTI cannot be detached.
STAYS = "; it replays CUDA graphs, so that CUPTI stays attached and slows its steps until it ends"
# What Kineto writes of an operator that had not ended, so many bytes after its name at most.
UNFINISHED, NAME, EVENT = re.compile(rb'"finished": *false'), re.compile(rb'"name": *"([^"]{1,200})'), 1 << 12


class ServedSession(KinetoSession):
    """A session that any thread may end, and that ends and is written without Python's lock.

    An operator or range that is open when a session ends writes its end into that session's memory if the
    next session runs by then (PyTorch 2.13). So the session first hears of none that begins, and of those
    that are open until they end.
    """

    result: int | None = None
    unfinished: tuple[str, ...] = ()  # names of those that were open for longer: no other session may follow

    def begin_no_more(self) -> None:
        """Hear of no operator that begins from now on, and go on with those that are open."""
        if (functions := unlocked()) is not None:
            functions.begin_no_more()

    def stop(self) -> None:
        self.unfinished = ("an operator",)  # until what was recorded says more
        functions = unlocked()
        if functions is None:
            super().stop()
            return
        stopped_ns = time.time_ns() + STOPS_NS
        self.result = functions.disable()
        if self.captures is not None:
            self.replays = [one for one in self.captures.replays_seen() if one.at_ns < stopped_ns]
        torch_private.profiler_stopped()

    def _write(self, path: Path) -> None:
        functions, result = unlocked(), self.result
        if functions is None or result is None:
            super()._write(path)
            return
        self.result = None
        try:
            functions.save(result, os.fsencode(path))
        finally:
            functions.free(result)

    def export(self, path: Path) -> None:
        super().export(path)
        self.unfinished = unfinished(path)


def unfinished(trace: Path) -> tuple[str, ...]:
    """The operators and ranges in a trace that had not ended when its session did."""
    found: dict[str, None] = {}
    before = b""
    with trace.open("rb") as file:
        while piece := file.read(1 << 20):
            text = before + piece
            for mark in UNFINISHED.finditer(text):
                name = [*NAME.finditer(text, max(0, mark.start() - EVENT), mark.start())]
                found[name[-1][1].decode(errors="replace") if name else "?"] = None
            before = text[-EVENT:]
    return tuple(found)


class Boundaries:
    """Where the steps of the threads that serve begin, by the host's clock."""

    def __init__(
        self,
        captures: Captures,
        wanted: str | None,
        module_leads: Callable[[Hashable], None] = lambda key: None,
    ) -> None:
        self.module_leads = module_leads
        # Prefill and decode call a model from two places: each call is a step, not a round of them.
        self.captures, self.detector = captures, StepDetector(rounds=False, wanted=wanted)
        self.lock = threading.RLock()
        self.thread: int | None = None  # that has the engine's steps
        self.times_ns: list[int] = []  # of the boundaries so far, by the clock that is counted on
        self.name, self.kind = "", "whole"  # of what ticks
        self.session: KinetoSession | None = None  # marks the steps, while it runs
        self.enough, self.reached = 1, threading.Event()  # so many boundaries set it
        self.inside = False

    def tick(self, signal: Signal, key: Hashable, name: str) -> None:
        """Called by the sources of steps, in the thread whose step it is."""
        now_ns, thread = time.perf_counter_ns(), threading.get_ident()
        if signal == "request" or self.captures.threads.get(thread):
            return  # a call of generate has as many steps as it makes tokens
        with self.lock:
            if self.inside:
                return
            self.inside = True
            try:
                if signal == "range" and ENGINE_STEP.match(name):
                    self._engine(now_ns, thread, name)
                elif self.thread is None:
                    # Whichever thread: a server may have a new one for every request.
                    boundary = self.detector.tick(signal, key, 0, name)
                    if boundary is not None and boundary.role in ("leads", "step", "end"):
                        self._of_leader(boundary, now_ns, name)
            finally:
                self.inside = False

    def _engine(self, now_ns: int, thread: int, name: str) -> None:
        if self.thread is None:
            self.thread, self.name, self.kind = thread, re.split(r"[\d(\[]", name)[0], "range"
            self.times_ns.clear()
        if thread == self.thread:
            self._boundary(now_ns)
            if self.session is not None and name.startswith(batches.PREFIX):
                self.session.part(name)  # all of the step, which no range in the trace names

    def _of_leader(self, boundary: Boundary, now_ns: int, name: str) -> None:
        if boundary.role == "leads":
            self.name, self.kind = name, boundary.source[0]
            if self.session is None:
                self.times_ns.clear()
            if self.kind == "module":
                self.module_leads(boundary.source[1])
        self._boundary(now_ns)

    def _boundary(self, now_ns: int) -> None:
        self.times_ns.append(now_ns)
        if self.session is not None:
            self.session.mark(len(self.times_ns) if len(self.times_ns) < self.enough else None)
        if len(self.times_ns) >= self.enough and not self.reached.is_set():
            self.reached.set()

    def expect(self, more: int, session: KinetoSession | None = None) -> None:
        """Set ``reached`` after so many boundaries more, which ``session`` marks."""
        with self.lock:
            self.enough, self.session = len(self.times_ns) + more, session
            self.reached.clear()

    def seconds(self, since: int) -> tuple[float, ...]:
        """The steps since so many boundaries."""
        times = self.times_ns[since:]
        return tuple((ended - began) / 1e9 for began, ended in pairwise(times))


class Tell(Protocol):
    """Sends progress; ``steps``: those of the process are known now."""

    def __call__(self, text: str, *, steps: bool = False) -> None: ...


class LiveRecording:
    """Records some steps of this process, in a thread of its own."""

    def __init__(
        self,
        folder: Path,  # of the recording, made by who requested it
        request: LiveRequest,
        options: Options,  # of `run`
        graphs: GraphCaptures,  # the captures of CUDA graphs so far
        tell: Tell,  # sends progress to who requested it
        stands: Callable[[], bool],  # whether the request still does
        imported_torch: int,  # the thread that did
    ) -> None:
        self.folder, self.request, self.options = folder, request, options
        self.tell, self.stands, self.imported_torch = tell, stands, imported_torch
        self.trace = folder / "trace" / f"rank{request.rank}.json"
        self.own_trace = self.trace.with_suffix(".program.json")
        self.graphs, self.device = graphs, graphs.device
        self.captures: list[Path] = []  # of what was replayed
        self.boundaries = Boundaries(self.device.captures, options.step, self._module_leads)
        self.imports = ImportWatch()
        self.sources = Sources(self.boundaries.tick, self.imports, wanted=options.step)
        self.batches: Callable[[], None] | None = None  # ends the watching of them
        self.began_s = time.monotonic()
        self.notes: list[str] = []
        self.why = ""  # it is to end before its end
        self.stopping = threading.Lock()
        self.session: ServedSession | None = None  # that runs
        self.ended: ServedSession | None = None  # that has run
        self.before: tuple[float, ...] = ()
        self.recorded: tuple[float, ...] = ()
        self.after: tuple[float, ...] = ()
        self.grown_bytes = 0
        self.ended_s = self.written_s = 0.0
        self.since = 0

    def _module_leads(self, key: Hashable) -> None:
        if self.options.step is None:
            self.sources.follow_every_call(key)

    def _watch_batches(self) -> None:
        self.batches = batches.watch(lambda name: self.boundaries.tick("range", name, name))

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Operators and ranges that began in it and had not ended when it did."""
        return self.ended.unfinished if self.ended is not None else ()

    def cut(self, why: str) -> None:
        """End it soon, and keep what there is; from any thread."""
        self.why = self.why or why
        self.boundaries.reached.set()

    def run(self) -> RankRecord | None:
        """Record, write and report; None where nothing was recorded, the reason of which is the last note."""
        if torch_private.profiler_runs():
            self.notes.append("the program's own profiler is running; only one can at a time")
            return None
        self.trace.parent.mkdir(exist_ok=True)
        foreign = ForeignProfilers(self._foreign_began, lambda: None, self.own_trace)
        self.sources.install()
        self.imports.when_imported(batches.MODULE, self._watch_batches)
        try:
            return self._record()
        finally:
            self._stop()
            if self.batches is not None:
                self.batches()
            self.sources.remove()
            foreign.remove()
            self.imports.stop()

    def _record(self) -> RankRecord | None:
        self.tell("waiting for the server's steps")
        found = self._found()
        if self.why or not (found or self.device.has_clock()):
            self.notes.append(
                self.why
                or f"no steps were seen in {self.request.seconds:g} s: has the server requests to answer?"
            )
            return None
        if found:
            self._say_steps()
            since = len(self.boundaries.times_ns)
            self._await(TIMED + 1, TIMED_S)
            self.before = self.boundaries.seconds(since)
        if not self._start():
            return None
        self._run_session(steps=self.request.steps if found else None)
        if not self._write():
            return None
        if found and not self.why:
            since = len(self.boundaries.times_ns)
            self._await(TIMED + 1, TIMED_S / 2)
            self.after = self.boundaries.seconds(since)
        return self._report(found)

    def _found(self) -> bool:
        """Whether steps are known. Waits for them as long as the request allows; on a GPU, where a server may
        replay graphs and call nothing else, less long."""
        patience_s = min(UNSEEN_S, self._left_s()) if self.device.has_clock() else self._left_s()
        self._await(PASSED, patience_s)
        return len(self.boundaries.times_ns) >= PASSED

    def _say_steps(self) -> None:
        found_by = f"steps are found by {self.boundaries.kind}: {self.boundaries.name}"
        self.tell(found_by, steps=True)

    def _await(self, boundaries: int, seconds: float) -> None:
        self.boundaries.expect(boundaries)
        until = time.monotonic() + seconds
        while not self._over() and (left_s := until - time.monotonic()) > 0:
            if self.boundaries.reached.wait(min(LOOK_S, left_s)):
                return

    def _left_s(self) -> float:
        return self.began_s + self.request.seconds - time.monotonic()

    def _over(self) -> bool:
        if not self.why and not self.stands():
            self.cut("the request was withdrawn")
        return bool(self.why)

    def _start(self) -> bool:
        """Start the profiler, while no graph is captured."""
        session = self.device.session(kind="full", any_thread=True, of=ServedSession)
        assert isinstance(session, ServedSession)
        with self.device.captures.lock:
            if self.graphs.session is not None or self.device.occupied() is not None:
                self.notes.append("a CUDA graph is being captured: try again when the server has warmed up")
                return False
            with first_used_here(self.imported_torch):
                session.prepare()
            with self.stopping:
                if self.why:
                    session.start()
                    session.stop()
                    self.notes.append(self.why)
                    return False
                session.start()
                self.session = session
        return True

    def _run_session(self, steps: int | None) -> None:
        """Let the profiler run for so many steps; None: for a while."""
        session, since, resident = self.session, len(self.boundaries.times_ns), resident_bytes()
        budget, replays, kernels = self.options.budget_mb / 1000, self.sources.replays, 0
        if steps is None:
            self.tell(f"no steps of a known kind: recording {WHOLE_S:g} s")
            self.boundaries.expect(1 << 60)
        else:
            self.tell(f"recording {steps} steps")
            # The step that runs is not recorded whole.
            self.boundaries.expect(steps + 1, session)
        until = time.monotonic() + WHOLE_S if steps is None else self.began_s + self.request.seconds
        while not self.boundaries.reached.wait(LOOK_S):
            self.grown_bytes = max(self.grown_bytes, resident_bytes() - resident)
            kernels = self.graphs.launched(self.device.captures.replays)
            steps_replay = 2 * (self.sources.replays - replays) > len(self.boundaries.times_ns) - since
            most_bytes = 1e9 * budget / SLOW / (SLOWER_REPLAYED if steps_replay and not kernels else 1)
            if self.grown_bytes > most_bytes or kernels > MOST_REPLAYED * budget:
                self.notes.append(
                    f"the process had grown by {self.grown_bytes / 1e6:.0f} MB, and {kernels:,} kernels of "
                    "graphs had run: more takes longer than five seconds to write, and up to "
                    f"{SWELLS} times that memory (`run --budget` allows for more)"
                )
                break
            if time.monotonic() > until or self._over():
                break
        self.ended_s = time.monotonic()
        self.grown_bytes = max(self.grown_bytes, resident_bytes() - resident)
        self.recorded = self.boundaries.seconds(since)[:steps] if steps else ()
        self.since = since
        if steps is not None and len(self.recorded) < steps:
            why = self.why or ("" if self.notes else f"{self.request.seconds:g} s had passed (--seconds)")
            self.notes.append(f"recorded {len(self.recorded)} of {steps} steps{f': {why}' if why else ''}")
        with self.stopping:
            if self.session is not None:
                self.session.begin_no_more()
        self.boundaries.expect(DRAINS)
        time.sleep(DRAINS_S)
        if steps is not None:
            self.boundaries.reached.wait(MOST_DRAINS_S - DRAINS_S)

    def _foreign_began(self) -> None:
        """The program starts a profiler itself, in this thread: it is its turn, at once."""
        self.cut("the program started a profiler of its own")
        self._stop()

    def _stop(self) -> None:
        """End the session that runs; the first call counts."""
        with self.stopping:
            session, self.session = self.session, None
            if session is not None:
                with self.boundaries.lock:
                    self.boundaries.session = None
                    session.running = None  # a step that is cut short is none
                session.stop()
                self.device.captures.untraced = True  # the server goes on until this is written
                self.ended = session

    def _write(self) -> bool:
        self.tell("writing")
        with self.device.captures.lock:
            self._stop()
        try:
            assert self.ended is not None
            self.captures = self.graphs.kept_with(self.ended, self.trace)
            self.ended.export(self.trace)
        except OSError as error:
            self.notes.append(f"the recording could not be written: {error.strerror or error}")
            return False
        self.written_s = time.monotonic()
        return True

    def _report(self, found: bool) -> RankRecord:
        record = RankRecord(
            rank=self.request.rank,
            pid=os.getpid(),
            host=os.uname().nodename,
            trace=self.trace.relative_to(self.folder).as_posix(),
            captures=tuple(path.relative_to(self.folder).as_posix() for path in self.captures),
            steps=StepTimings(
                found_by=self.boundaries.kind,
                step_name=self.boundaries.name or None,
                levels=self._levels(),
                unprofiled_s=self.before,
                profiled_s=self.recorded,
                first_step=self.since if self.recorded else None,
                warmup_steps=self.since,
                before=_timed(self.before),
                recorded=_timed(self.recorded),
                after=_timed(self.after),
            ),
            recording_ended=True,
            exit="ok" if not self.why else "running",
            wall_s=time.monotonic() - self.began_s,
            notes=(*self.notes, *self.graphs.notes()),
        )
        with suppress(OSError):
            folders.write_rank(self.folder, RankReport(record=record, environment=environment.describe()))
        return record

    def _levels(self) -> tuple[StepLevel, ...]:
        kind, name = self.boundaries.kind, self.boundaries.name
        return tuple(
            StepLevel(kind=kind, name=words.format(name)) for own, words in ONE_STEP.items() if own == kind
        )

    def summary(self) -> str:
        """The steps' times before, during and after the recording, and its price in time and memory."""
        times = (("before", self.before), ("recorded", self.recorded), ("after", self.after))
        steps = ", ".join(f"{1e3 * median(seconds):.2f} ms {name}" for name, seconds in times if seconds)
        return (
            f"{len(self.recorded)} steps{f', a step {steps}' if steps else ''}; written "
            f"{self.written_s - self.ended_s:.1f} s after the last, "
            f"{self.trace.stat().st_size / 1e6:.1f} MB; "
            f"memory grew by {self.grown_bytes / 1e6:.0f} MB while they ran"
            f"{STAYS if self.device.captures.seen and self.device.has_clock() else ''}"
        )


def _timed(seconds: Sequence[float]) -> TimedSteps | None:
    return TimedSteps(step_s=tuple(seconds), host_s=tuple(seconds)) if seconds else None
