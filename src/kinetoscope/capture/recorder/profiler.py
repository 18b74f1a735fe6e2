"""torch.profiler behind a few verbs, here and nowhere else: our sessions, the steps that are marked in their
traces, and profilers that the program starts itself.

There can be one profiling session at a time, and the program's comes first. Its trace, written by the program
for its own ends, is copied: for a program that profiles itself it is the best recording there is.

The device must be left alone where a CUDA graph is being captured, or a backward pass is running: while a
stream captures, a call that synchronizes, or that starts or stops a profiler, makes the capture invalid, in
the default mode (``global``) from any thread. CUDA reports only whether the *current* stream captures, so
that captures of other threads are noticed where torch begins and ends them. Captures without torch's classes,
from C++ for instance, are seen in their own thread alone.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from kinetoscope.capture import torch_private
from kinetoscope.capture.hooks.calls import CallWatch, EveryCallWatch, ReturnWatch
from kinetoscope.capture.hooks.imports import with_variables
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder import cupti
from kinetoscope.capture.recorder.memory import NoMemoryHistory
from kinetoscope.capture.recorder.unlocked import unlocked
from kinetoscope.capture.steps.timing import Mark
from kinetoscope.recording.manifest import BatchPadding, LossLabels

Occupied = Literal["here", "elsewhere"]


# Who has begun to touch the device has done so by then, unless it waits for what the capture is to do.
PATIENCE_S = 5.0
# Operators of other threads that are open when a session is to end have so long to end before it.
DRAINS_S = 0.02


class Captures:
    """Watches the graph classes of torch; installed until the recording is over."""

    def __init__(self) -> None:
        # whoever touches the device has it, and keeps other threads from beginning a capture meanwhile
        self.lock = threading.RLock()
        self.threads: Counter[int] = Counter()  # captures that each thread has begun and not ended
        self.watches: list[CallWatch] = []
        # called with the graph whose capture is about to begin while no other runs; when the last has ended
        self.before: Callable[[Any], None] = lambda graph: None
        self.after: Callable[[Any], None] = lambda graph: None
        self.numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of the graphs that were recorded
        self.replays: list[Replay] = []  # which of them was replayed when, and where, since `watch_replays`
        # the graph whose replay is about to begin, where that is what `replay_begins` is called at
        self.replaying: Callable[[], Any] = lambda: None
        self.replay_watches: list[CallWatch] = []
        self.seen = False  # whether a graph was captured at all
        # whether one may have been replayed while CUPTI was attached and traced nothing: once it is detached
        # after that, the next replay fails (PyTorch 2.11, CUDA 13.0)
        self.untraced = False
        self.replayed: Callable[[], int] = lambda: 0  # how many replays there have been of all graphs
        self.replayed_traced = 0

    def install(self) -> None:
        for graph in torch_private.graph_classes():
            self.watches += [
                CallWatch(graph, "capture_begin", self._began),
                ReturnWatch(graph, "capture_end", self._ended),
            ]
        for watch in self.watches:
            watch.install()

    def remove(self) -> None:
        for watch in (*self.watches, *self.replay_watches):
            watch.remove()
        self.watches.clear()
        self.replay_watches.clear()

    def watch_replays(self) -> None:
        """Note which recorded capture each replay is of, from now on."""
        self.replays = []
        if self.numbers and not self.replay_watches:
            self.replay_watches = [
                EveryCallWatch(graph, "replay", self._replayed) for graph in torch_private.graph_classes()
            ]
            for watch in self.replay_watches:
                watch.install()

    def replay_begins(self) -> None:
        """Note the replay that is about to begin in this thread, if any: its call was before the watch."""
        self._replayed(self.replaying())

    def replays_seen(self) -> list[Replay]:
        """The replays since then, which are no longer watched."""
        for watch in self.replay_watches:
            watch.remove()
        self.replay_watches.clear()
        return self.replays

    def _replayed(self, graph: Any) -> None:
        if graph is not None and (number := self.numbers.get(graph)) is not None:
            self.replays.append(Replay(number, time.time_ns(), os.getpid(), threading.get_native_id()))

    def occupied(self) -> Occupied | None:
        """Whether this thread captures or runs a backward pass (``here``), or another one captures."""
        if (
            self.threads.get(threading.get_ident())
            or torch_private.captures_now()
            or torch_private.in_backward()
        ):
            return "here"
        return "elsewhere" if self.threads else None

    def tracing_ends(self) -> None:
        """Take note that replays from now on are not traced."""
        self.replayed_traced = self.replayed()

    def survive_detaching(self) -> bool:
        """Whether replays do, once CUPTI is detached, as far as is known."""
        self.untraced |= self.replayed() != self.replayed_traced
        return not (self.seen and self.untraced)

    def _began(self, graph: Any) -> None:
        self.seen = True
        locked = self.lock.acquire(timeout=PATIENCE_S)
        try:
            if locked and not self.threads:
                self.before(graph)
        finally:
            self.threads[threading.get_ident()] += 1
            if locked:
                self.lock.release()

    def _ended(self, graph: Any) -> None:
        thread = threading.get_ident()
        self.threads[thread] -= 1
        if self.threads[thread] <= 0:
            del self.threads[thread]
        if not self.threads:
            self.after(graph)


class Replay(NamedTuple):
    """The replay of a graph whose capture was recorded, as ``MarkedStep`` has its steps."""

    number: int
    at_ns: int
    pid: int
    tid: int

    def event(self, base_ns: int) -> dict[str, Any]:
        """An event of a category of its own, which begins just before the launch of the graph."""
        return {
            "ph": "X",
            "cat": "graph_replay",
            "name": f"capture {self.number}",
            "pid": self.pid,
            "tid": self.tid,
            "ts": (self.at_ns - base_ns) / 1000,
            "dur": 0.001,
        }


# Kineto writes what it says of the whole trace before the events or after them, and no more than this of it.
SURROUNDINGS = 1 << 16
OPENING = re.compile(rb'"traceEvents"\s*:\s*\[\s*')
BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')


class GivenToModels(NamedTuple):
    """Inputs of the models and losses of one step; the fields of :class:`StepTimings`. None: not known."""

    padding: BatchPadding | None = None
    labels: LossLabels | None = None
    same_calls: tuple[tuple[int, int], ...] = ()
    uncounted_calls: tuple[int, ...] = ()


class MarkedStep(NamedTuple):
    """A step, or the ``part`` of one, or another event of that name and ``category``: its begin and end on
    the wall clock in nanoseconds, and the thread that marked it."""

    number: int
    began_ns: int
    ended_ns: int
    pid: int
    tid: int
    part: str | None = None
    category: str = "user_annotation"

    def event(self, base_ns: int) -> dict[str, Any]:
        """The annotation as torch.profiler would have exported it, in microseconds after ``base_ns``."""
        return {
            "ph": "X",
            "cat": self.category,
            "name": self.part or f"ProfilerStep#{self.number}",
            "pid": self.pid,
            "tid": self.tid,
            "ts": (self.began_ns - base_ns) / 1000,
            "dur": (self.ended_ns - self.began_ns) / 1000,
        }


def annotate(exported: Path, steps: Sequence[MarkedStep | Replay], path: Path) -> None:
    """Write the trace ``exported`` to ``path`` with annotations of ``steps``, whole or not at all, in one go.
    Raises ValueError where it is no trace of Kineto's, OSError where it cannot be written."""
    temporary = path.with_suffix(".tmp.json")
    try:
        _copy(exported, temporary, steps)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _copy(exported: Path, path: Path, steps: Sequence[MarkedStep | Replay]) -> None:
    with exported.open("rb") as source, path.open("wb") as target:
        start = source.read(SURROUNDINGS)
        opening = OPENING.search(start)
        if opening is None:
            raise ValueError("the exported trace has no events to add the steps to")
        base = BASE.search(start[: opening.start()]) or BASE.search(_ending(source))
        events = [json.dumps(step.event(int(base[1]) if base else 0)).encode() for step in steps]
        target.write(start[: opening.end()])
        target.write(b",\n".join(events))
        if events and start[opening.end() : opening.end() + 1] != b"]":
            target.write(b",\n")
        source.seek(opening.end())
        shutil.copyfileobj(source, target, 1 << 20)


def _ending(source: BinaryIO) -> bytes:
    size = source.seek(0, 2)
    source.seek(max(0, size - SURROUNDINGS))
    return source.read()


# full: the host's ops and what the device does.
# light: what the device does, and the runtime calls that give it its work.
# lines: the host's ops, and the lines of the program that call them.
# capture: how a graph is captured, with shapes and lines.
SessionKind = Literal["full", "first", "light", "lines", "capture"]

# Kineto reports its stages on stderr, which is the program's own; it reads this when it is first used.
QUIET = {"KINETO_LOG_LEVEL": "99"}
ENDING = 1 << 13  # bytes, at least, that hold what Kineto writes last: the trace's name
_OURS: WeakSet[Any] = WeakSet()


def is_ours(inner: Any) -> bool:
    """True for the ``torch.autograd.profiler.profile`` inside one of our sessions."""
    return any(profile.profiler is inner for profile in _OURS)


class ThreadEnd:
    """Calls ``act`` as its thread ends, whose own data go while it can still run Python; not in a fork."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.pid = act, os.getpid()

    def __del__(self) -> None:
        if self.pid == os.getpid():
            with suppress(Exception):
                self.act()


class KinetoSession:
    """A session of torch's profiler; its steps are marked by the wall clock, which Kineto's times are of.

    The marks are written into the exported file. A ``record_function`` would mark them as well, but it is an
    op: what the program has put between itself and its ops (a ``TorchDispatchMode``, NVTX) would see it.
    """

    # It records one thread, which alone can end it: from another, torch finds no session to end, and crashes
    # where its result is asked for. It crashes as well where that thread ends before it.
    confined = False
    graphs: Captures | None = None  # of graphs in this process
    of_thread = threading.local()

    def __init__(
        self,
        memory: NoMemoryHistory | None,  # the allocator's history, which notes where steps begin and end
        *,
        stacks: bool,  # Python's are recorded
        captures: Captures | None = None,  # watches which graphs are replayed; None: that is of no matter
        **arguments: Any,  # torch.profiler.profile's
    ) -> None:
        from torch.profiler import profile

        self.memory, self.stacks, self.captures = memory, stacks, captures
        self.replays: list[Replay] = []
        with torch_private.warnings_kept_in():
            self.profile = profile(**arguments)
        _OURS.add(self.profile)
        self.steps: list[MarkedStep] = []
        self.running: tuple[int, int] | None = None
        self.running_part: tuple[str, int] | None = None
        self.thread: int | None = None
        self.stopped = self.left = False  # it recorded its last event; another thread was to end it

    def prepare(self) -> None:
        """Allocate buffers and switch the device's tracing on, before recording starts."""
        # torch reminds us that events of earlier cycles are gone, of which there are none.
        with (
            torch_private.warnings_kept_in(),
            torch_private.said_once_no_more(),
            torch_private.compiler_left_alone(stacks=self.stacks),
            torch_private.profiler_variables_kept_in(),
        ):
            with_variables(QUIET, self.profile.prepare_trace)

    def start(self) -> None:
        self.thread = threading.get_ident()
        if self.captures is not None:
            self.captures.watch_replays()  # other threads go on with theirs while this starts
        with torch_private.warnings_kept_in(), torch_private.profiler_variables_kept_in():
            self.profile.start_trace()
        if self.confined and threading.current_thread() is not threading.main_thread():
            self.of_thread.ends = ThreadEnd(self.thread_ends)
        if self.captures is not None:
            self.captures.replay_begins()

    def mark(self, step: int | None) -> None:
        """End the step that is running, and begin step number ``step`` (None: none)."""
        if self.running_part is not None:
            self._part_ends(time.time_ns())  # before the step ends, of which it is a part
        now = time.time_ns()
        if self.running is not None:
            number, began = self.running
            self._keep(number, began, now)
        if self.memory is not None:
            self.memory.boundary()
            now = time.time_ns()
        self.running = None if step is None else (step, now)

    def part(self, name: str) -> None:
        """End the part of the step that is running, and begin the next, which so ends with the step."""
        now = time.time_ns()
        self._part_ends(now)
        if self.running is not None:
            self.running_part = (name, now)

    def _part_ends(self, now: int) -> None:
        if self.running_part is not None and self.running is not None:
            name, began = self.running_part
            self._keep(self.running[0], began, now, name)
        self.running_part = None

    def _keep(self, number: int, began: int, ended: int, part: str | None = None) -> None:
        thread = threading.get_native_id()
        self.steps.append(MarkedStep(number, began, ended, os.getpid(), thread, part))

    def ends_here(self) -> bool:
        return not self.confined or self.thread in (None, threading.get_ident())

    def stop(self) -> None:
        if self.captures is not None:
            self.replays = self.captures.replays_seen()
        if self.stopped or self.ends_here():
            self._stop()
            return
        self.left = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def thread_ends(self) -> None:
        """End it with its thread, once no other thread captures a graph, which that would make invalid."""
        until = time.monotonic() + PATIENCE_S
        while self.graphs is not None and self.graphs.threads and time.monotonic() < until:
            time.sleep(0.001)
        locked = self.graphs is not None and self.graphs.lock.acquire(timeout=PATIENCE_S)
        try:
            self._stop()
        finally:
            if self.graphs is not None and locked:
                self.graphs.lock.release()

    def _stop(self) -> None:
        """End it, in a thread that can; the first call counts.

        An operator of another thread that ends just then writes its end into memory that is freed meanwhile:
        one session in 470 of four busy threads crashed (PyTorch 2.13 on two cores), none in 3,300 in which
        those that were open could end first.
        """
        if not self.stopped:
            self.stopped = True
            # `threading.active_count` takes a lock, which a thread that a signal interrupted here may hold.
            alone = len(getattr(threading, "_active", ())) < 2
            if not self.confined and not alone and (functions := unlocked()) is not None:
                functions.begin_no_more()
                time.sleep(DRAINS_S)
            try:
                with torch_private.warnings_kept_in():
                    self.profile.stop_trace()
            finally:
                torch_private.profiler_stopped()  # torch says so only where it could put all together
                if self.graphs is not None:
                    self.graphs.tracing_ends()
                vars(self.of_thread).pop("ends", None)

    def abandoned(self) -> None:
        """This process is a fork of the one with the session, and nothing of it may be taken down here."""

    def given(self) -> GivenToModels:
        """Inputs of the models and losses of a step, once the session is over."""
        return GivenToModels()

    def export(self, path: Path) -> None:
        """Write the trace to ``path``, whole or not at all. Raises OSError where the disk is full, gone, or
        may not be written to; or what was recorded was left where it is, since its thread did not end it."""
        if self.left:
            why = "only the thread that they ran in could end their recording, and it did nothing more"
            raise OSError(errno.EBUSY, why, str(path))
        exported = _exported(self._write, path)
        try:
            annotate(exported, [*self.steps, *self.replays], path)
        finally:
            exported.unlink()

    def _write(self, path: Path) -> None:
        """Write what was recorded to ``path`` and drop it."""
        with torch_private.warnings_kept_in():
            self.profile.export_chrome_trace(str(path))
        torch_private.result_dropped(self.profile)


def _exported(write: Callable[[Path], None], path: Path) -> Path:
    """The trace that ``write`` writes, in a file next to ``path``, whole.

    Kineto says on stderr only, if at all, that it could not write. What it leaves then is removed: it would
    keep room from a program whose disk is full. Raises OSError where it is not whole.
    """
    exported = path.with_suffix(".part.json")
    exported.open("wb").close()  # Kineto would complain on the program's stderr
    write(exported)
    if _is_whole(exported):
        return exported
    for left in (exported, exported.with_name(f"{exported.name}.tmp")):
        left.unlink(missing_ok=True)
    raise OSError(errno.EIO, "the disk is full or gone, or files may not be as large", str(path))


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - ENDING))
            ending = file.read()
    except OSError:
        return False
    return b'"traceName"' in ending and ending.rstrip().endswith(b"}")


class TorchDevice:
    """The devices of this process, through torch."""

    def __init__(self, options: Options, memory: NoMemoryHistory | None = None) -> None:
        self.options, self.memory = options, memory
        self.cuda = False  # set when CUDA is being initialized: torch says so only afterwards
        self.captures = Captures()
        self.all_threads = False  # how the last session records
        # No thread of ours runs within it.
        self.undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext

    def session(
        self, *, kind: SessionKind, any_thread: bool, of: type[KinetoSession] | None = None
    ) -> KinetoSession:
        """A session of that kind, which records all threads or those that the steps' thread starts work in.

        The two take turns. An op that is open while a session ends, as a range around several steps is,
        writes its end through a pointer into that session's memory, which is freed by then, unless it finds
        no session of its own session's sort (seen on PyTorch 2.13: the next session crashed, or the end).
        ``any_thread``: record every thread, so that any may end the recording; costs a little more an event.
        ``of``: the class of a full session.
        """
        self.all_threads = any_thread or not self.all_threads
        made = self._session(kind, of)
        made.confined, made.graphs = not self.all_threads, self.captures
        return made

    def _session(self, kind: SessionKind, of: type[KinetoSession] | None) -> KinetoSession:
        import torch
        from torch.profiler import ProfilerActivity

        of_capture = kind == "capture"
        if kind == "light":
            configuration = torch_private.profiler_configuration(any_thread=self.all_threads)
            alone = [ProfilerActivity.CUDA]
            return KinetoSession(None, stacks=False, activities=alone, experimental_config=configuration)
        activities, options = [ProfilerActivity.CPU], self.options
        if self.cuda or torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        elif hasattr(torch, "xpu") and torch.xpu.is_initialized():
            activities.append(ProfilerActivity.XPU)
        if kind == "lines":
            return self._lines_session(activities)
        lined = kind == "full" and options.whole and options.lines
        if (of_capture or (lined and not options.stacks)) and self.python_hindrance() is None:
            from kinetoscope.capture.recorder.lines import CaptureSession, LinedSession

            of, lined = CaptureSession if of_capture else LinedSession, False
        # Python's stacks are taken where a program's own profile function would be. Of first steps, in which
        # modules are imported and compiled, they would take minutes to end, and gigabytes.
        wanted = (options.stacks and kind != "first") or lined
        stacks = wanted and not of_capture and sys.getprofile() is None
        return (of or KinetoSession)(
            None if of_capture else self.memory,
            stacks=stacks,
            captures=None if of_capture else self.captures,
            activities=activities,
            record_shapes=options.shapes or options.flops or of_capture,
            with_stack=stacks,
            profile_memory=options.memory and not of_capture,
            with_flops=options.flops,
            experimental_config=torch_private.profiler_configuration(
                any_thread=self.all_threads, stacks=stacks
            ),
        )

    def _lines_session(self, activities: Sequence[Any]) -> KinetoSession:
        from kinetoscope.capture.recorder.lines import LinesSession

        configuration = torch_private.profiler_configuration(any_thread=self.all_threads)
        return LinesSession(
            None,
            stacks=False,
            activities=activities,
            record_shapes=True,  # no time is taken from this step
            experimental_config=configuration,
        )

    def python_hindrance(self) -> str | None:
        """Why Python's trace function cannot be used without harm; None where it can."""
        from kinetoscope.capture.recorder.lines import hindrance

        return hindrance()

    def has_light_pass(self) -> bool:
        """Whether the device can be recorded alone, at less cost to the host."""
        import torch
        from torch.profiler import ProfilerActivity, supported_activities

        cuda = torch.cuda.is_initialized() and torch.version.hip is None
        return cuda and ProfilerActivity.CUDA in supported_activities()

    def occupied(self) -> Occupied | None:
        """Where a graph is captured or gradients are computed, so that nothing else may be done."""
        return self.captures.occupied()

    def release(self) -> bool:
        """Take out what ended sessions left in the process, where safe; False: something stays."""
        import torch

        if not torch.cuda.is_initialized():
            return True
        # Detached or not, and then for good: it traces nothing from here on.
        safe = self.captures.survive_detaching()
        self.captures.untraced = True
        if self.options.careful or self.occupied() is not None or not safe:
            return False
        with self.undisturbed():
            released = cupti.detach()
        self.captures.untraced = not released
        return released

    def has_clock(self) -> bool:
        """Whether the device times its own work."""
        import torch

        return torch.cuda.is_initialized()

    def mark(self) -> Mark | None:
        """An event on the current stream; None while a graph is captured, whose part it might become."""
        import torch

        if not torch.cuda.is_initialized() or self.occupied() is not None:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_s(self, marks: Sequence[tuple[Mark, Mark]]) -> Sequence[float]:
        """Seconds between the two of each pair, by the device's clock, once the device has come that far.
        Raises RuntimeError where the device cannot tell."""
        for _, ended in marks:
            ended.synchronize()
        return [began.elapsed_time(ended) / 1e3 for began, ended in marks]

    def synchronize(self) -> None:
        """Wait for the device, if the program has begun to use one."""
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        elif hasattr(torch, "xpu") and torch.xpu.is_initialized():
            torch.xpu.synchronize()


class ForeignProfilers:
    """Watches ``torch.autograd.profiler.profile``, which torch.profiler goes through, and its like."""

    def __init__(self, began: Callable[[], None], ended: Callable[[], None], copy: Path) -> None:
        import torch.autograd.profiler as profilers

        self.began, self.ended, self.copy = began, ended, copy
        self.seen = False
        self.running: set[int] = set()
        self.profile: Any = profilers.profile
        self.watches = [CallWatch(self.profile, "_prepare_trace", self._began)]
        for profiler in torch_private.profilers():
            self.watches.append(CallWatch(profiler, "__enter__", self._began))
            self.watches.append(ReturnWatch(profiler, "__exit__", self._ended))
        self.export = self.profile.export_chrome_trace
        self.exporting = self._exporting(self.export)
        for watch in self.watches:
            watch.install()
        self.profile.export_chrome_trace = self.exporting

    def remove(self) -> None:
        for watch in self.watches:
            watch.remove()
        if self.profile.export_chrome_trace is self.exporting:  # not what the program has put there since
            self.profile.export_chrome_trace = self.export

    def _began(self, profile: Any) -> None:
        if id(profile) not in self.running and profile.enabled and not is_ours(profile):
            self.running.add(id(profile))
            self.seen = True
            self.began()

    def _ended(self, profile: Any) -> None:
        if id(profile) in self.running:
            self.running.discard(id(profile))
            self.ended()

    def _exporting(self, export: Callable[..., Any]) -> Callable[..., Any]:
        def export_chrome_trace(profile: Any, path: Any, *arguments: Any, **options: Any) -> Any:
            result = export(profile, path, *arguments, **options)
            if not is_ours(profile):
                self._keep(Path(path))
            return result

        return export_chrome_trace

    def _keep(self, path: Path) -> None:
        try:
            self.copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, self.copy)
        except OSError:
            self.copy.unlink(missing_ok=True)
