"""The lines of the program that call each op: one step more, with torch's own Python hook.

The hook (``with_stack``) is Python's profile function, and knows from which line each call is made. It is in
the process for that one step, and only where neither the program nor a tool of its own would notice: see
:func:`hindrance`. The step's times are used for nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from kinetoscope.capture import torch_private
from kinetoscope.capture.process import source
from kinetoscope.capture.recorder.profiler import KinetoSession
from kinetoscope.recording import manifest
from kinetoscope.recording.lines import NONE, CallFrame, StepLines, ThreadOps

# Events of one step that are looked at, in seconds: the program stands still meanwhile.
PATIENCE_S = 5.0
# Bytes a second that Python's hook writes at most, where a program does nothing but call functions.
BYTES_PER_S = 200e6
MODULE = "nn.Module: "


def hindrance() -> str | None:
    """Why Python's hook would change what the program does or sees; None where it does not."""
    if sys.getprofile() is not None or threading.getprofile() is not None:
        return "the program has a profile function of its own"
    if sys.gettrace() is not None or threading.gettrace() is not None:
        return "the program is traced by Python's own means"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and any(monitoring.get_tool(tool) is not None for tool in range(6)):
        return "a tool of sys.monitoring is in use"
    if modes := torch_private.modes_of_functions():
        return f"{modes[0].__name__}, a mode that hears of torch's functions, would hear of the hook"
    return None


def too_long(step_s: float, budget_mb: float) -> str | None:
    """Why a step is too long for the hook; None where it is not."""
    most_s = budget_mb * 1e6 / BYTES_PER_S
    if step_s <= most_s:
        return None
    return f"a step takes {step_s:.1f} s, more than the {most_s:.1f} s that --budget-mb {budget_mb:g} allows"


class LinesSession(KinetoSession):
    """A session of the host alone, whose export is a :class:`StepLines`."""

    def start(self) -> None:
        # The hook knows a function that already runs by its line of that moment.
        self.running_frames = _frames(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        self.began = time.perf_counter()
        super().start()

    def stop(self) -> None:
        self.step_s = time.perf_counter() - self.began
        super().stop()

    def export(self, path: Path) -> None:
        """Write the lines to ``path``, whole or not at all.

        Raises:
            OSError: the disk is full, gone, or may not be written to.
            TimeoutError: (an OSError) there are too many events.
        """
        walk = _Walk(self.running_frames)
        walk.all(torch_private.event_tree(self.profile))
        path.parent.mkdir(exist_ok=True)
        number = self.steps[0].number if self.steps else 0
        manifest.write_whole(path, manifest.encoded(walk.lines(number, self.step_s)))


Place = tuple[str, int, str, bool]


def _frames(frame: FrameType | None) -> dict[tuple[str, int], tuple[str, int]]:
    """Functions that run now, by name and line: their file, and the line on which each begins."""
    found: dict[tuple[str, int], tuple[str, int]] = {}
    while frame is not None:
        code = frame.f_code
        found.setdefault((code.co_name, frame.f_lineno or 0), (code.co_filename, code.co_firstlineno))
        frame = frame.f_back
    return found


def _is_own(file: str) -> bool:
    """Whether a file is of the program; torch cuts the folders of sys.path off."""
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython-input"))
    paths = [os.path.join(folder, file) for folder in sys.path]  # an absolute file stays as it is
    return source.is_own(next(filter(os.path.isfile, paths), file))


class _Walk:
    """The tree of a session's events, walked once."""

    def __init__(self, running: dict[tuple[str, int], tuple[str, int]]) -> None:
        self.running = running
        self.names: dict[str, int] = {}
        self.modules: dict[str, int] = {}
        self.places: dict[Place, int] = {}
        self.stacks: dict[tuple[int, int], int] = {}
        self.threads: dict[int, list[tuple[int, int, int, int, int]]] = {}
        self.deadline = time.perf_counter() + PATIENCE_S

    def all(self, roots: list[Any]) -> None:
        kinds = torch_private.event_kinds()
        # An event, the op's depth, the stack of its calls, its module, and who would be on the stack by now.
        waiting: list[tuple[Any, int, int, int, Place | None]] = [
            (root, 0, NONE, NONE, None) for root in reversed(roots)
        ]
        seen = 0
        while waiting:
            event, depth, stack, module, function = waiting.pop()
            seen += 1
            if not seen % 4096 and time.perf_counter() > self.deadline:
                raise TimeoutError(None, f"they take more than {PATIENCE_S:g} s to write down")
            kind = kinds(event)
            if kind == "op":
                own = stack if function is None else self._stack(stack, function)
                self._op(event, depth, own, module)
                depth += 1
            elif kind in ("function", "builtin"):
                fields = event.extra_fields
                stack = self._stack(stack, self._place(fields.caller, exact=True))
                function = self._place(fields.callsite, exact=False) if kind == "function" else None
                if event.name.startswith(MODULE):
                    module = self.modules.setdefault(event.name[len(MODULE) :], len(self.modules))
            waiting.extend((child, depth, stack, module, function) for child in reversed(event.children))

    def _op(self, event: Any, depth: int, stack: int, module: int) -> None:
        name = self.names.setdefault(event.name, len(self.names))
        ops = self.threads.setdefault(event.start_tid, [])
        ops.append((event.start_time_ns, name, depth, stack, module))

    def _stack(self, caller: int, place: Place) -> int:
        frame = self.places.setdefault(place, len(self.places))
        return self.stacks.setdefault((caller, frame), len(self.stacks))

    def _place(self, state: Any, *, exact: bool) -> Place:
        file, line, function = state.file_name, state.line_number, state.function_name
        if not exact:
            path, first = self.running.get((function, line), ("", line))
            line = first if path.endswith(file) else line
        return file, line, function, exact

    def lines(self, step: int, step_s: float) -> StepLines:
        threads: list[ThreadOps] = []
        for ops in self.threads.values():
            ops.sort(key=lambda op: op[0])  # of equal times the outer one was met first
            _, names, depths, stacks, modules = (list(column) for column in zip(*ops, strict=True))
            threads.append(ThreadOps(names=names, depths=depths, stacks=stacks, modules=modules))
        files = {file: _is_own(file) for file in {place[0] for place in self.places}}
        return StepLines(
            step=step,
            step_s=step_s,
            names=list(self.names),
            modules=list(self.modules),
            frames=[CallFrame(*place, is_own=files[place[0]]) for place in self.places],
            stacks=list(self.stacks),
            threads=threads,
        )
