"""Samples the stack of the program's main thread, from the import of torch to the program's end.

A thread of its own, which `threading` does not list, wakes some fifty times a second, and ever more rarely
while nothing changes. It holds no lock, and keeps no frame: within a sample it has at most one frame at a
time, and none of the program's garbage is collected in it. It is not there while the process forks, while a
profiler of the program's own runs, or while CUPTI is detached, and it has ended before the interpreter does.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import gc
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Generator
from opcode import opmap
from pathlib import Path
from types import CodeType, FrameType

from kinetoscope.capture import cells, torch_private
from kinetoscope.capture.options import Options
from kinetoscope.recording.whole_run import (
    MOST_NODES,
    PERIODS,
    Node,
    Period,
    SampledPlace,
    WholeRun,
)

# Between two samples, in seconds: at first, and where only a few are wanted soon.
USUAL_S, SOON_S, LONGEST_S = 0.02, 0.002, 1.0
ENOUGH = 1000  # so many samples of each period are as good as more: then the distance grows with the period
# So many samples show what a step consists of; they are taken where steps are neither timed nor recorded.
OF_STEPS = 20
SHARE = 0.0025  # of the time, what samples may take of the processor
MOST_CACHED = 20_000
PATIENCE_S = 1.0  # no thread of the system's is waited for longer
NEVER = 1 << 30  # more reasons than ever end
IMPORTING, COMPILING, WAITING = "importing", "compiling", "waiting"
LOCKED = "waiting for a lock"
# The instructions that enter a ``with`` block; Python 3.14 loads ``__enter__`` and calls it. Where that is in
# C, as a lock's is, it takes time only while another thread is in the block.
ENTERS = {opmap[name] for name in ("SETUP_WITH", "BEFORE_WITH") if name in opmap}
LOADS_ENTER = opmap.get("LOAD_SPECIAL")
CALLS = {opmap[name] for name in ("PRECALL", "CALL", "CALL_FUNCTION", "CALL_METHOD") if name in opmap}
# Functions of Python's library in which a thread waits: for another one, a process, or requests.
WAITS = {
    "queue.py": frozenset({"get", "put", "join"}),
    "threading.py": frozenset({"wait", "wait_for", "join", "acquire"}),
    "concurrent/futures/_base.py": frozenset({"result", "exception", "wait"}),
    "selectors.py": frozenset({"select"}),
    "socket.py": frozenset({"accept", "readinto"}),
    "subprocess.py": frozenset({"wait", "communicate"}),
    "multiprocessing/connection.py": frozenset({"wait", "recv", "recv_bytes", "poll"}),
    "multiprocessing/pool.py": frozenset({"get", "wait", "next"}),
    "multiprocessing/popen_fork.py": frozenset({"wait"}),
    "multiprocessing/queues.py": frozenset({"get", "put"}),
}
GOLDEN = 0.6180339887  # a fraction that falls into no step with the program's own period

Seconds = Callable[[], float]
# A function and its first line; or a line, of no name; or what torch or Python does, of no file.
Key = tuple[str, str, int]


def watches(options: Options) -> bool:
    """Whether this process is watched: not where that is unwanted, or would be seen or unsafe.

    ``--stacks`` puts a function into every thread that Python has.
    """
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    able = hasattr(sys, "_current_frames") and hasattr(os, "register_at_fork")
    return able and not (options.careful or options.stacks or free_threaded)


def process_age_s() -> float:
    """Seconds since this process began; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


class Places:
    """The kept frames of a stack, and what torch and Python do in those that are not."""

    def __init__(self) -> None:
        own_home = Path(__file__).resolve().parents[2]
        torch_home = os.path.dirname(os.path.dirname(sys.modules["torch"].__file__ or "")) + os.sep
        paths = sysconfig.get_paths()
        self.home = torch_home
        self.not_kept = tuple(
            folder + os.sep
            for folder in (f"{torch_home}torch", f"{torch_home}triton", str(own_home))
            if folder
        )
        self.standard = tuple({paths["stdlib"] + os.sep, paths["platstdlib"] + os.sep})
        self.files: dict[str, tuple[bool, str, frozenset[str] | None, str]] = {}
        self.lines: dict[tuple[str, str, int, int], tuple[int, str]] = {}

    def path(self, codes: list[tuple[CodeType, int]]) -> list[Key]:
        """The path of a stack, outermost first, by each frame's code and place, innermost first."""
        keys: list[Key] = []
        does = ""
        imports = 0
        for code, at in reversed(codes):
            kept, does_here, functions, shown = self._of_file(code.co_filename)
            if kept:
                if does:
                    keys.append(("", does, 0))
                    imports += does == IMPORTING
                    if does == COMPILING or imports > 1:
                        return keys
                    does = ""
                name = getattr(code, "co_qualname", code.co_name)
                keys += [
                    (shown, name, code.co_firstlineno),
                    ("", "", self._line(code, at)[0]),
                ]
            elif (
                does_here
                and (not does or does_here == COMPILING)
                and (functions is None or code.co_name in functions)
                # A module of the compiler's that is only being imported.
                and (does_here == IMPORTING or code.co_name != "<module>")
            ):
                does = does_here
        if not does and keys and not keys[-1][1]:
            does = self._line(*codes[0])[1]
        if does:
            keys.append(("", does, 0))
        return keys

    def _of_file(self, file: str) -> tuple[bool, str, frozenset[str] | None, str]:
        """Whether frames of a file are kept; if not, what is done in them, and in which functions; and what
        the file is called."""
        found = self.files.get(file)
        if found is None:
            if len(self.files) >= MOST_CACHED:
                self.files.clear()
            found = self.files[file] = (*self._classified(file), cells.named(file))
        return found

    def _classified(self, file: str) -> tuple[bool, str, frozenset[str] | None]:
        if file.startswith("<frozen importlib") or "/importlib/" in file:
            return False, IMPORTING, None
        if file.startswith(self.not_kept):
            own = file.removeprefix(self.home).replace(os.sep, "/")
            if own.startswith(torch_private.OPTIMIZERS) and "lr_scheduler" not in own:
                return False, "optimizer", frozenset({"step"})
            does, functions = torch_private.DOES.get(own, ("", None))
            return False, does, functions
        installed = "site-packages" in file or "dist-packages" in file
        for folder in self.standard:
            own = file.removeprefix(folder).replace(os.sep, "/")
            if not installed and own in WAITS:
                return False, WAITING, WAITS[own]
        # What torch.fx and Inductor generate has no file, or one that is no author's.
        generated = file.startswith(("<frozen", "<eval_with_key>")) or "torchinductor_" in file
        return not (generated or (file.startswith(self.standard) and not installed)), "", None

    def _line(self, code: CodeType, at: int) -> tuple[int, str]:
        """The line of an instruction, as ``f_lineno`` has it, which may not be read once the frame is gone;
        and what a function in C that it calls waits for."""
        key = (code.co_filename, code.co_name, code.co_firstlineno, at)
        known = self.lines.get(key)
        if known is None:
            if len(self.lines) >= MOST_CACHED:
                self.lines.clear()
            found = (number for start, end, number in code.co_lines() if start <= at < end)
            line = next(found, None) or code.co_firstlineno
            known = self.lines[key] = (line, _waits(code, at, line))
        return known


def _waits(code: CodeType, at: int, line: int) -> str:
    """The name of the wait that the instruction at ``at`` of a line is, where it calls C; or empty."""
    instructions = code.co_code
    if instructions[at] in ENTERS or (instructions[at] in CALLS and instructions[at - 2] == LOADS_ENTER):
        return LOCKED
    if instructions[at] in CALLS and "sleep" in code.co_names:
        of_line = [range(start, min(end, at)) for start, end, number in code.co_lines() if number == line]
        names = (one.offset for one in dis.get_instructions(code) if one.argval == "sleep")
        return WAITING if any(name in part for name in names for part in of_line) else ""
    return ""


class Tree:
    """The samples so far, as :class:`WholeRun` has them; of bounded size."""

    def __init__(self) -> None:
        self.places: list[SampledPlace] = []
        self.numbers: dict[Key, int] = {}
        self.parents: list[tuple[int, int, int]] = []
        self.children: dict[tuple[int, Key], int] = {}
        self.seconds: dict[Period, list[float]] = {period: [] for period in PERIODS}
        self.samples: dict[Period, list[int]] = {period: [] for period in PERIODS}
        self.stays: list[int] = []
        self.longest_s: list[float] = []
        self.since: list[float] = []
        self.first_s: list[float] = []
        self.last_s: list[float] = []
        self.stack: list[int] = []  # the nodes of the last sample

    def add(self, path: list[Key], period: Period, now_s: float, seconds: float) -> None:
        """Count a sample of a path that stands for so many seconds."""
        stack = self.nodes(path)
        if not stack:
            return
        self.seconds[period][stack[-1]] += seconds
        self.samples[period][stack[-1]] += 1
        for depth, node in enumerate(stack):
            if depth >= len(self.stack) or self.stack[depth] != node:
                self.stays[node] += 1
                self.since[node] = now_s
            else:
                self.longest_s[node] = max(self.longest_s[node], now_s - self.since[node])
            self.first_s[node] = self.first_s[node] or now_s
            self.last_s[node] = now_s
        self.stack = stack

    def nodes(self, path: list[Key]) -> list[int]:
        """The nodes of a path, as far as there is room for them."""
        stack: list[int] = []
        for key in path:
            parent = stack[-1] if stack else -1
            node = self.children.get((parent, key))
            if node is None:
                # Lines are many, and say least.
                if len(self.parents) >= (MOST_NODES if key[1] else MOST_NODES // 2):
                    break
                node = self._new(parent, key)
            stack.append(node)
        return stack

    def _new(self, parent: int, key: Key) -> int:
        place, node = -1, len(self.parents)
        if key[1]:
            place = self.numbers.setdefault(key, len(self.places))
            if place == len(self.places):
                self.places.append(SampledPlace(*key))
        for column in (*self.seconds.values(), self.longest_s, self.since, self.first_s, self.last_s):
            column.append(0.0)
        for column in (*self.samples.values(), self.stays):
            column.append(0)
        self.parents.append((parent, place, 0 if key[1] else key[2]))  # last: it makes the others known
        self.children[parent, key] = node
        return node

    def forget_steps(self) -> None:
        """Other calls than those so far are steps: what was seen of the program is from before them."""
        before = self.seconds["before"], self.samples["before"]
        for period in ("settling", "timed"):
            for node in range(len(self.parents)):
                before[0][node] += self.seconds[period][node]
                before[1][node] += self.samples[period][node]
                self.seconds[period][node], self.samples[period][node] = 0.0, 0

    def written(self) -> tuple[tuple[SampledPlace, ...], tuple[Node, ...]]:
        """Places and nodes as they are now, though another thread may be adding to them."""
        parents, places = list(self.parents), tuple(self.places)
        columns = zip(
            parents,
            zip(*map(list, self.seconds.values()), strict=False),
            zip(*map(list, self.samples.values()), strict=False),
            list(self.stays),
            zip(*map(list, (self.longest_s, self.first_s, self.last_s)), strict=False),
            strict=False,
        )
        nodes = tuple(
            Node(*of, tuple(round(s, 6) for s in seconds), samples, stays, *(round(s, 6) for s in times))  # pyright: ignore[reportArgumentType]
            for of, seconds, samples, stays, times in columns
        )
        return places, nodes


class Sampler:
    def __init__(
        self,
        # the period that it is now; None: what runs is the recorder's own
        period: Callable[[], Period | None],
        # whether a few samples of the program's steps are wanted at little distance, where that is no matter
        soon: Callable[[], bool] = lambda: False,
        clock: Seconds = time.perf_counter,  # seconds
    ) -> None:
        self.period, self.soon, self.clock = period, soon, clock
        self.thread = threading.main_thread().ident or 0
        self.places, self.tree = Places(), Tree()
        self.earlier_s = process_age_s()
        self.ours_s = self.unseen_s = self.cpu_s = 0.0
        self.began_s = self.last_s = clock()
        self.steps_seen = 0
        self.tick: int | None = None
        self.still = 1  # so many reasons to take no samples; the first is that it has not begun
        self.pid = os.getpid()
        self.changed_s, self.latest, self.cost_s, self.count = self.began_s, PERIODS[0], 0.0, 0
        # What wakes the thread, and what says that it has ended; None while there is none.
        self.running: tuple[_thread.LockType, _thread.LockType, list[int]] | None = None

    def begin(self) -> None:
        os.register_at_fork(
            before=self._stop, after_in_parent=self._resume, after_in_child=self._leave_to_parent
        )
        self._resume()

    def end(self) -> None:
        """Take no more samples, whatever else ends later."""
        self._stop()
        self.still = NEVER

    @contextlib.contextmanager
    def standing_still(self) -> Generator[None]:
        """The sampler's thread is gone meanwhile."""
        self._stop()
        try:
            yield
        finally:
            self._resume()

    def profiler_began(self) -> None:
        self._stop()

    def profiler_ended(self) -> None:
        self.unseen_s += self.clock() - self.last_s
        self.last_s = self.clock()
        self._resume()

    def ticked(self) -> None:
        """A source of steps took the lead, with a tick of this thread: a step begins or ends here."""
        with self.standing_still():
            self.thread, self.steps_seen = threading.get_ident(), 0
            self.tree.forget_steps()
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            stack = self.tree.nodes(self.places.path(_codes(frame)))
            self.tick = stack[-1] if stack else None

    def samples_here(self) -> bool:
        return self.thread == threading.get_ident()

    def changed(self) -> None:
        """The period may have changed: look soon."""
        if self.running is not None:
            with contextlib.suppress(RuntimeError):
                self.running[0].release()

    def written(self) -> WholeRun:
        """Everything seen so far."""
        places, nodes = self.tree.written()
        return WholeRun(
            earlier_s=self.earlier_s,
            ours_s=self.ours_s,
            unseen_s=self.unseen_s,
            cpu_s=self.cpu_s,
            places=places,
            nodes=nodes,
            tick=self.tick,
        )

    def _resume(self) -> None:
        self.still = max(0, self.still - 1)
        if self.still or self.running is not None or os.getpid() != self.pid:
            return
        wake, ended, task = _thread.allocate_lock(), _thread.allocate_lock(), list[int]()
        wake.acquire()
        ended.acquire()
        self.running = (wake, ended, task)
        try:
            _thread.start_new_thread(self._watch, (wake, ended, task))
        except RuntimeError:  # the system has no more threads for this process
            self.running = None

    def _stop(self) -> None:
        """End the thread, and wait until the system has no such thread any more: forks warn of those."""
        self.still += 1
        running, self.running = self.running, None
        if running is None or os.getpid() != self.pid:
            return
        wake, ended, task = running
        with contextlib.suppress(RuntimeError):
            wake.release()
        if ended.acquire(timeout=PATIENCE_S) and task:
            path, until = f"/proc/self/task/{task[0]}", self.clock() + 0.05
            while os.path.exists(path) and self.clock() < until:
                time.sleep(2e-5)

    def _leave_to_parent(self) -> None:
        self.still, self.running = NEVER, None

    def _watch(self, wake: _thread.LockType, ended: _thread.LockType, task: list[int]) -> None:
        """Sample until this thread is to end.

        What this thread makes that the garbage collector counts, it makes while the collector is off: else
        the program's garbage could be collected, and its finalizers run, in a thread that it does not know.
        """
        collects = gc.isenabled()
        if collects:
            gc.disable()
        try:
            # A signal that the program blocks, to wait for it, must not find a thread that would take it.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            task.append(_thread.get_native_id())
            began_s, cpu_s = time.thread_time(), self.cpu_s
            while True:
                distance_s = self._distance_s()
                if collects:
                    gc.enable()
                # By position, since Python makes a dictionary for an argument's name.
                wake.acquire(True, distance_s)
                collects = gc.isenabled()
                if collects:
                    gc.disable()
                if self.running is None or self.running[0] is not wake:
                    return
                self._sample()
                spent_s = cpu_s + time.thread_time() - began_s
                self.cost_s += (spent_s - self.cpu_s - self.cost_s) / min(self.count, 20)
                self.cpu_s = spent_s
        except Exception:
            pass  # the program goes on unseen
        finally:
            if collects:
                gc.enable()
            ended.release()

    def _distance_s(self) -> float:
        """Seconds until the next sample."""
        if self.steps_seen < OF_STEPS and self.soon():
            usual = SOON_S
        else:
            since = self.clock() - self.changed_s
            usual = min(LONGEST_S, max(USUAL_S, since / ENOUGH, self.cost_s / SHARE))
        return usual * (0.5 + self.count * GOLDEN % 1.0)

    def _sample(self) -> None:
        self.count += 1
        now_s = self.clock()
        seconds, self.last_s = now_s - self.last_s, now_s
        period = self.period()
        if period is None:
            self.ours_s += seconds
            return
        if period != self.latest:
            self.changed_s, self.latest = now_s, period
        self.steps_seen += period in ("settling", "timed")
        self.tree.add(self.places.path(self._codes()), period, now_s - self.began_s, seconds)

    def _codes(self) -> list[tuple[CodeType, int]]:
        """The thread's stack; the main thread's where it has ended."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        frame = frames.pop(self.thread, None)
        if frame is None:
            frame = frames.pop(threading.main_thread().ident or 0, None)
        del frames
        return _codes(frame)


def _codes(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """The code of each function on the stack, the innermost first, and where in it each is; no frame."""
    codes: list[tuple[CodeType, int]] = []
    while frame is not None:
        codes.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return codes
