"""The recording that runs before anything is known of the program's steps, so that there always is one, and
the budget that ends it before it grows without bound.
"""

from __future__ import annotations

import _thread
import ctypes
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from kinetoscope.capture import torch_private
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.profiler import KinetoSession, TorchDevice
from kinetoscope.capture.steps.detector import Boundary, Source, surer

SEED = "KINETOSCOPE_TEST_SEED"


class Decisions:
    """The recorder's free choices: how many steps it waits for, times and records, and how long it looks.

    A seed makes it choose at random, without the program's own random numbers. Tests use that to have
    recordings begin, end and be written at moments that no sensible choice would ever hit
    (``KINETOSCOPE_TEST_SEED``).
    """

    def __init__(self, seed: int | None = None) -> None:
        self.random = None if seed is None else random.Random(seed)

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Decisions:
        seed = variables.get(SEED, "")
        return cls(int(seed) if seed.isdecimal() else None)

    @property
    def seeded(self) -> bool:
        return self.random is not None

    def count(self, usual: int, most: int) -> int:
        """A number of steps, at most ``most`` where it is random."""
        return usual if self.random is None else self.random.randint(1, most)

    def seconds(self, usual: float, most: float) -> float:
        """A time to wait for."""
        return usual if self.random is None else self.random.uniform(0, most)


# Ticks after which the first two whole steps are in the recording; with a seed, at most so many.
TICKS_RECORDED, TICKS_AT_MOST = 3, 40


class Provisional:
    """A profiler's session from the start on, its steps marked by whichever source seems surest so far.

    It is written where it ends, not where it turns out to be the best there is: whatever becomes of the
    program later, a kill that nothing can answer included, its first steps are on disk. The pause falls
    between a cold step and steps that have yet to settle.
    """

    def __init__(
        self,
        device: TorchDevice,
        trace: Path,  # the file to write
        saved: Callable[[], None],  # called when it is written
        *,
        whole: bool,  # it is to hold the whole program, not only the first steps
        decisions: Decisions | None = None,  # how many steps are the first ones
    ) -> None:
        self.device, self.trace, self.saved, self.whole = device, trace, saved, whole
        self.ticks = (decisions or Decisions()).count(TICKS_RECORDED, TICKS_AT_MOST)
        self.why: str | None = None  # why it was ended before its steps were over
        self.session: KinetoSession | None = None  # the one that is running
        self.began = self.written = False  # there has been one; it lies in ``trace``
        self.cut = False  # it ended before the program did
        self.failures: list[str] = []  # why it is not written
        self.source: Source | None = None  # whose ticks mark its steps
        self.steps = 0

    def start(self) -> None:
        session = self.device.session(kind="full" if self.whole else "first", any_thread=True)
        session.prepare()
        session.start()
        self.session, self.began = session, True

    @property
    def running(self) -> bool:
        return self.session is not None

    def stop(self) -> KinetoSession | None:
        """End it and write nothing."""
        session, self.session = self.session, None
        if session is not None:
            if self.steps < 2 and (self.source is None or self.source[0] != "request"):
                session.running = None  # what follows a single tick is no step, but whatever came after it
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

    def tick(self, boundary: Boundary, *, may_end: bool = True, long: bool = False) -> None:
        """Mark a step, unless a surer source marks them; the first whole steps are enough.

        Args:
            may_end: the profiler may be stopped here.
            long: a long step ends here: the program may have few, so that one is enough.
        """
        if self.session is None:
            return
        if self.source is None or surer(boundary.source[0], self.source[0]):
            self.source = boundary.source
        if boundary.source == self.source:
            enough = may_end and (long or boundary.ticks >= self.ticks) and not self.whole
            self.session.mark(None if enough else self.steps)  # what follows the last is no step
            self.steps += 1
            if enough:
                self.end()

    def part(self, name: str) -> None:
        """Mark a part of the leader's step."""
        if self.session is not None:
            self.session.part(name)

    def left(self) -> None:
        """Mark no step until one begins again."""
        if self.session is not None:
            self.session.running = None

    def evaluated(self) -> None:
        """An evaluation, which is a step of its own, has ended."""
        if self.session is not None:
            self.session.mark(self.steps)
            self.steps += 1


def notes(*, cold: bool, steps: int, whole: bool, stacks: bool = False, why: str | None = None) -> list[str]:
    """Remarks that a user must know on a provisional recording that became the recording.

    Args:
        cold: it was ended after the first steps, which a better recording was to follow.
        steps: how many boundaries its source ticked at.
        whole: everything was to be recorded.
        stacks: Python's stacks were to be recorded.
        why: the reason for which it was ended, if the program did not end first.
    """
    unstacked = ["the first steps are recorded without Python's stacks: --whole has them"]
    unstacked = unstacked if stacks and not whole else []
    if cold and steps >= 2:
        return [
            "no steps were recorded once their time had settled: "
            "this recording holds its first steps, cold start and all",
            *unstacked,
        ]
    ended = [] if why is None else [f"only the program's beginning is recorded, until {why}"]
    if not whole and steps < 2:
        much = "beginning" if why else "whole run"
        ended.insert(
            0,
            "no steps were found (no optimizer, module, compiled function or named range was called "
            f"repeatedly): the program's {much} was recorded; kinetoscope.profile's step() marks them",
        )
    return [*ended, *unstacked]


LIMIT_S = 60.0
# While cuDNN tries out algorithms, a first step may be all that is recorded for long, and as long in being
# written: 17 s of a small net with grouped convolutions (H200, PyTorch 2.11).
TRIED_S = 2.0
LOOK_EVERY_S = 0.25


class Budget:
    """Looks at the clock and at the process's memory while the beginning is recorded, in its own thread.

    The number of events so far is unknown, but each takes memory: an eager op about 400 bytes. Time
    in which something compiles does not count: hardly anything is recorded in it.
    """

    def __init__(
        self,
        running: Callable[[], bool],  # whether there is anything to end
        compiling: Callable[[], bool],  # whether something compiles
        trying: Callable[[], bool],  # whether cuDNN may be trying out algorithms
        # called with the reason, again and again until nothing runs any more. It may stop nothing itself: the
        # program's threads may be in the middle of a CUDA call
        spent: Callable[[str], None],
        options: Options,
        decisions: Decisions,
    ) -> None:
        self.running, self.compiling, self.trying = running, compiling, trying
        self.spent, self.options = spent, options
        self.limit_bytes = options.budget_mb * 1_000_000
        self.limit_s = decisions.seconds(LIMIT_S, 4.0)

    def watch(self) -> None:
        # A thread that `threading` does not list: the program's own count of its threads stays what it was.
        _thread.start_new_thread(self._look, ())

    def _look(self) -> None:
        before, recorded_s, tried_s, looked = resident_bytes(), 0.0, 0.0, time.monotonic()
        while self.running():
            time.sleep(min(LOOK_EVERY_S, self.limit_s))
            now = time.monotonic()
            if not self.compiling():
                recorded_s += now - looked
                tried_s += (now - looked) * self.trying()
            looked = now
            if resident_bytes() - before > self.limit_bytes:
                self.spent(f"the process had grown by {self.options.budget_mb} MB (--budget)")
            elif not self.options.whole and recorded_s > self.limit_s:
                self.spent(f"no steps were found in {self.limit_s:.0f} s (--whole goes on)")
            elif not self.options.whole and tried_s > TRIED_S:
                self.spent(f"torch.backends.cudnn.benchmark was on for {TRIED_S:.0f} s (--whole goes on)")


def resident_bytes() -> int:
    """The memory of this process that is in use and no file's; 0 where the system does not say."""
    try:
        resident, of_files = Path("/proc/self/statm").read_text().split()[1:3]
        return (int(resident) - int(of_files)) * 4096
    except (OSError, ValueError):
        return 0


# Code of torch's in the middle of which nothing else is to be done: while it is on the stack, graphs are
# warmed up or captured, gradients computed, programs compiled.
DELICATE = (
    "torch/_dynamo/",
    "torch/_functorch/",
    "torch/_inductor/",
    "torch/autograd/",
    "torch/cuda/",
    "torch/fx/",
    "torch/jit/",
    "torch/utils/checkpoint.py",
    "/triton/",
)


class MainThread:
    """Calls ``act`` in the main thread as soon as that runs Python again; never in the middle of a C call."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.waiting = act, False  # whether a call was requested and has not come yet
        self.switch = torch_private.dynamo_switch()
        # The interpreter is handed a pointer to it, so that it must outlive each call.
        self.callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)

    def soon(self) -> None:
        if not self.waiting:
            self.waiting = True
            ctypes.pythonapi.Py_AddPendingCall(self.callback, None)

    def _call(self, _: Any) -> int:
        prior = self.switch(None)
        try:
            self.waiting = False
            main = threading.main_thread().ident == threading.get_ident()
            if main and not is_delicate(sys._getframe(1) if hasattr(sys, "_getframe") else None):  # pyright: ignore[reportPrivateUsage]
                with suppress(Exception):
                    self.act()
        finally:
            self.switch(prior)
        return 0


def is_delicate(frame: FrameType | None) -> bool:
    """Whether one of the functions on the stack from ``frame`` outwards must not be disturbed."""
    while frame is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        if any(part in path for part in DELICATE):
            return True
        frame = frame.f_back
    return False
