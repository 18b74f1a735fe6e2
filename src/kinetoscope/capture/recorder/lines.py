"""The lines of the program that call each op: one step more, in which Python's trace function notes them.

Torch's own hook (``with_stack``) is not used: it knows no line of an operator such as ``a + b``, takes the
place of a profile function in all threads, and reads attributes of modules. The trace function is what
debuggers and coverage use; it is in the thread of the steps for one step, and only where the program has none
of its own. Only functions of the program are traced line by line; of libraries it hears of calls, and follows
those that are a module's ``forward``. It keeps numbers and names, and no frame.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from kinetoscope.capture import cells, torch_private
from kinetoscope.capture.process import source
from kinetoscope.capture.recorder.profiler import GivenToModels, KinetoSession, MarkedStep
from kinetoscope.capture.steps.padding import PaddingGiven
from kinetoscope.capture.steps.same_calls import SameCalls

MOST = 1_000_000  # lines of one step: what comes after them has none
PROBES = 16  # events that both clocks time, before and after
CLOCK = "kinetoscope: clock"
MODULE, LINE, END = 0, 1, 2
# Around each call of a trace function it renews what ``locals()`` returned, and a loop over that fails.
RENEWS_LOCALS = sys.version_info < (3, 11)


def hindrance() -> str | None:
    """Why the trace function would change what the program does; None where it does not."""
    if sys.gettrace() is not None or threading.gettrace() is not None:
        return "the program is traced already, as by a debugger or for coverage"
    if sys.getprofile() is not None or threading.getprofile() is not None:
        return "the program has a profile function of its own, which would hear of ours"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and any(monitoring.get_tool(tool) is not None for tool in range(6)):
        return "a tool of sys.monitoring is in use"
    return None


def _is_own(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython-input"))
    return source.is_own(os.path.abspath(file))


def is_model_code(file: str) -> bool:
    """Whether a file is neither torch's nor Triton's, Python's own or ours: the program's or a library's."""
    return not (file.startswith("<") or source.is_foreign(file) or f"{os.sep}triton{os.sep}" in file)


class LinesSession(KinetoSession):
    """A session of the host's ops, with the lines of the program around them.

    Before and after them are events that both clocks timed, Python's and the profiler's, since the lines are
    laid over the ops by time.
    """

    follows: Callable[[str], bool] = staticmethod(_is_own)  # whether the lines of a file are noted
    of_one_step = True  # so that what models are called with in it may be kept until it is over

    def start(self) -> None:
        self.probes = list[MarkedStep]()
        self.lines = Lines(self.follows, PaddingGiven() if self.of_one_step else None)
        super().start()
        self._probe()
        torch_private.hide_from_dynamo(*Lines.CALLED_BY_PYTHON, callees=True)
        self.lines.start(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def mark(self, step: int | None) -> None:
        if step is None:
            self.lines.stop()  # the last line ends within the step
        super().mark(step)

    def stop(self) -> None:
        self.lines.stop()
        self._probe()
        self.steps += [*self.probes, *self.lines.events()]
        super().stop()

    def abandoned(self) -> None:
        self.lines.stop()

    def given(self) -> GivenToModels:
        given = self.lines.given
        counted = (given.counted(), given.ignored()) if given else (None, None)
        same = self.lines.same
        return GivenToModels(*counted, tuple(same.found), tuple(same.uncounted))

    def _probe(self) -> None:
        for _ in range(PROBES):
            began = time.time_ns()
            torch_private.marked(CLOCK)
            self.probes.append(_event(CLOCK, began, time.time_ns()))


class LinedSession(LinesSession):
    """A session of everything, with the lines around its ops where ``with_stack`` would have frames: no other
    step's are laid over it, and no event of ours is among its ops."""

    of_one_step = False

    def _probe(self) -> None:
        pass


class CaptureSession(LinedSession):
    """A session of a graph's capture, with the lines of all code but torch's and Python's own: what an engine
    captures is the code of libraries."""

    follows = staticmethod(is_model_code)


class Lines:
    """The lines that one thread comes by: when, and in which function of the files that are followed."""

    def __init__(
        self,
        follows: Callable[[str], bool] = _is_own,
        given: PaddingGiven | None = None,  # notes what models and losses get
    ) -> None:
        self.follows, self.given, self.same = follows, given, SameCalls()
        self.times, self.kinds, self.codes, self.numbers = (array("q") for _ in range(4))
        self.known: dict[CodeType, int] = {}
        self.own: dict[str, bool] = {}
        self.frames: list[FrameType] = []
        self.running = False
        self.modules = 0  # whose calls run

    def start(self, frame: FrameType | None) -> None:
        """Trace what is called from now on, and the functions of the program that run already."""
        while frame is not None:
            if self._is_own(frame.f_code) and frame.f_trace is None:
                frame.f_trace = self._in_function
                self.frames.append(frame)
            frame = frame.f_back
        self.running = True
        sys.settrace(self._called)

    def stop(self) -> None:
        if self.running:
            sys.settrace(None)
            self._note(END, None, 0)
        self.running = False
        for frame in self.frames:
            frame.f_trace = None
        self.frames.clear()
        self.same.forget()

    def _is_own(self, code: CodeType) -> bool:
        """Whether the lines of a function are noted."""
        if RENEWS_LOCALS and "locals" in code.co_names:
            return False
        file = code.co_filename
        known = self.own.get(file)
        if known is None:
            known = self.own[file] = self.follows(file)
        return known

    def _note(self, kind: int, code: CodeType | None, line: int) -> None:
        if len(self.times) < MOST:
            number = -1 if code is None else self.known.setdefault(code, len(self.known))
            self.kinds.append(kind)
            self.codes.append(number)
            self.numbers.append(line)
            self.times.append(time.time_ns())

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        is_module = code.co_name == "forward"
        if is_module:
            self._note(MODULE, code, 0)
            if self.given is not None:
                if not self.modules:
                    self.given.called(frame)
                self.same.called(frame, self.modules)
            self.modules += 1
        elif code.co_name.endswith("step"):
            self.same.forget()
        is_own = self._is_own(code)
        if self.given is not None:
            self.given.labelled(frame, is_own)
        if is_own:
            return self._in_module if is_module else self._in_function
        if is_module:
            frame.f_trace_lines = False
            return self._in_module
        return None

    def _in_function(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._note(LINE, frame.f_code, frame.f_lineno)
        elif event == "return":
            self._returned(frame.f_back)
        return self._in_function

    def _in_module(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._note(LINE, frame.f_code, frame.f_lineno)
        elif event == "return":
            self.modules -= 1
            self._note(END, None, 0)
            self._returned(frame.f_back)
        return self._in_module

    def _returned(self, frame: FrameType | None) -> None:
        """The program goes on in the innermost of its functions that still run, where it was."""
        while frame is not None and not self._is_own(frame.f_code):
            frame = frame.f_back
        if frame is not None:
            self._note(LINE, frame.f_code, frame.f_lineno)

    # What runs between any two lines of the program, so that Dynamo would compile it.
    CALLED_BY_PYTHON = (
        PaddingGiven.called, PaddingGiven.labelled, SameCalls.called, SameCalls.forget,
        _called, _in_function, _in_module, _returned, _note, _is_own,
    )  # fmt: skip

    def events(self) -> list[MarkedStep]:
        """Each line as an event that lasts until the next, and the calls of modules around them."""
        names = [(_shown(code.co_filename), _name(code)) for code in self.known]
        found: list[MarkedStep] = []
        modules: list[tuple[int, str]] = []
        line: tuple[int, str] | None = None
        rows = zip(self.times, self.kinds, self.codes, self.numbers, strict=True)
        for at, kind, code, number in rows:
            if line is not None:
                found.append(_event(line[1], line[0], at))
                line = at, line[1]
            if kind == MODULE:
                name = names[code][1]
                modules.append((at, f"nn.Module: {name.removesuffix('.forward')}"))
            elif kind == LINE:
                line = at, f"{names[code][0]}({number}): {names[code][1]}"
            elif modules:  # the last one has none, unless a module's call is where the step ends
                began, name = modules.pop()
                found.append(_event(name, began, at))
        return found + [_event(name, began, self.times[-1]) for began, name in modules]


def _event(name: str, began_ns: int, ended_ns: int) -> MarkedStep:
    thread = threading.get_native_id()
    return MarkedStep(0, began_ns, ended_ns, os.getpid(), thread, name, "python_function")


def _name(code: CodeType) -> str:
    """``Block.forward``; before Python 3.11 ``forward``."""
    return getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")


def _shown(file: str) -> str:
    """A file as it is named from where the program runs, or else as it is imported."""
    for folder in (os.getcwd(), *sys.path):
        if folder and file.startswith(folder + os.sep):
            return file[len(folder) + 1 :]
    return cells.named(file)
