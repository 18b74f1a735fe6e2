"""One run of the user's program under one setting.

    python -m kinetoscope.bench.tune.trial REQUEST.json script.py args…

Steps are found as `kinetoscope run` finds them; nothing is recorded but their times. The run ends after
enough of them.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kinetoscope.bench import torch_names
from kinetoscope.bench.tune.inject import Injection, tensors
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.capture.hooks.imports import ImportWatch
from kinetoscope.capture.process.environment import peak_memory_bytes
from kinetoscope.capture.steps.detector import SIGNALS, Signal, Source, StepDetector
from kinetoscope.capture.steps.sources import Sources

# Ticks without which nothing is a step, and those after which no more time is spent.
LEAST_TICKS, ENOUGH_TICKS = 3, 5
# First outputs are kept for comparison: of so many things, so many elements of a tensor.
MOST_OUTPUTS = 16
MOST_ELEMENTS = 1 << 22


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    setting: Setting
    folder: str  # the folder of its files, one run after another
    steps: int
    seconds: float
    limit_s: float | None = None  # when the process is ended, with all that it started; null: never
    module: bool = False  # the program is a module's name (``-m``)
    compile_module: str | None = None
    """Compile top-level modules of this class, in a program that does not compile by itself."""

    @property
    def result(self) -> Path:
        return Path(self.folder, "result.json")

    @property
    def outputs(self) -> Path:
        """The first outputs of what the program calls, for comparison."""
        return Path(self.folder, "outputs.pt")


class TrialResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    steps_by: str | None = None
    step_name: str | None = None
    module: str | None = None
    """The class of the top-level module with parameters called most: what to compile, if nothing is."""
    before_first_step_s: float = 0.0
    steps_s: tuple[float, ...] = ()  # each step's duration, by the device's own clock where there is one
    watched: int = 0  # steps at the start that ran slower because all of the program was watched
    compile_calls: int = 0
    own: tuple[Setting, ...] = ()
    """The settings that the program's own calls of torch.compile name, each different one once."""
    graph_breaks: int = 0
    graphs: int = 0
    peak_memory_bytes: int | None = None
    retries: int = 0  # allocations that fit only once cached memory had been given back to the driver
    device: str = "cpu"
    notes: tuple[str, ...] = ()
    error: str | None = None


class Enough(BaseException):
    """Ends the program once enough steps were seen; no program catches it by accident."""


class BoundaryTime(NamedTuple):
    """When a boundary was: the host's time, and an event in the GPU's queue where there is one."""

    seconds: float
    event: Any

    def until(self, later: BoundaryTime) -> float:
        """Seconds."""
        if self.event is None or later.event is None:
            return later.seconds - self.seconds
        return self.event.elapsed_time(later.event) / 1e3


class StepClock:
    """The times of a program's steps, of which it is ended after ``wanted``, or ``seconds`` after the first;
    ``follow`` is called with the source of the steps once it is known."""

    def __init__(self, wanted: int, seconds: float, follow: Callable[[Source], None]) -> None:
        self._wanted, self._seconds, self._follow = wanted, seconds, follow
        self._detector = StepDetector()
        self._marks: dict[Source, list[BoundaryTime]] = {}
        self._names: dict[Source, str] = {}
        self._watched = 0
        self.began = time.perf_counter()
        self.stopped = False

    def tick(self, signal: Signal, key: Hashable, name: str) -> None:
        """A source of steps ticked. Raises Enough after the steps or the time that were wanted."""
        if self.stopped:
            return
        now = time.perf_counter()
        boundary = self._detector.tick(signal, key, threading.get_ident())
        if boundary is None:
            return
        marks = self._marks.setdefault(boundary.source, [])
        marks.append(BoundaryTime(now, _event()))
        self._names[boundary.source] = name
        if boundary.role == "leads":
            self._watched = len(marks) - 1
            self._follow(boundary.source)
        done = boundary.role != "candidate" and len(marks) > self._wanted
        late = now - marks[0].seconds > self._seconds and len(marks) >= ENOUGH_TICKS
        if done or (late and boundary.source == self._source()):
            self.stopped = True
            raise Enough

    def _source(self) -> Source | None:
        return self._detector.best(LEAST_TICKS)

    def result(self) -> TrialResult:
        source = self._source()
        if source is None:
            return TrialResult(before_first_step_s=time.perf_counter() - self.began)
        marks = self._marks[source]
        _wait()
        return TrialResult(
            steps_by=source[0],
            step_name=self._names[source],
            before_first_step_s=marks[0].seconds - self.began,
            steps_s=tuple(start.until(end) for start, end in itertools.pairwise(marks)),
            watched=self._watched if source == self._detector.leader else 0,
        )


def _event() -> Any:
    import torch

    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _wait() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def run(request: TrialRequest, words: list[str]) -> TrialResult:
    """Run the program in this process as ``__main__`` and time its steps.

    The program imports torch itself: what it sets before, as ``OMP_NUM_THREADS``, is read then.
    """
    outputs: dict[str, list[Any]] = {}

    def keep(name: str, output: Any) -> None:
        if len(outputs) < MOST_OUTPUTS:
            outputs[name] = [t.detach().flatten()[:MOST_ELEMENTS].cpu() for t in tensors(output)]

    times = StepClock(request.steps, request.seconds, lambda source: sources.follow(source))
    injection = Injection(request.setting, lambda number, name: times.tick("compiled", number, name), keep)
    modules: Counter[str] = Counter()
    seen: set[Hashable] = set()

    def tick(signal: Signal, key: Hashable, name: str) -> None:
        calls_module = SIGNALS[signal].kind in ("request", "module")
        if calls_module and next(sources.module.parameters(), None) is not None:
            if name not in modules:
                injection.watch_output(f"module {name}", sources.module)
            modules[name] += 1
            if name == request.compile_module and key not in seen:
                seen.add(key)
                # In place, before this very call goes on: `module.compile()` does nothing for torch's
                # classes.
                sources.module.forward = injection.compile(sources.module.forward)
        times.tick(signal, key, name)

    imports = ImportWatch()
    sources = Sources(tick, imports)

    def begin() -> None:
        injection.install()
        # Calls of what the program compiles are steps under every setting, also where nothing is compiled.
        sources.install(compiled=False)
        # A program that seeds nothing would have other weights and inputs in each process.
        sys.modules["torch"].manual_seed(0)

    imports.when_imported("torch", begin)
    error = _program_error(words, module=request.module)
    imports.stop()
    if "torch" not in sys.modules:
        return TrialResult(error=error)
    import torch

    sources.remove()
    result = times.result()
    if outputs:
        torch.save(outputs, request.outputs)
    breaks, graphs = torch_names.dynamo_counts()
    return msgspec.structs.replace(
        result,
        module=modules.most_common(1)[0][0] if modules else None,
        compile_calls=injection.calls,
        own=tuple(injection.own),
        graph_breaks=breaks,
        graphs=graphs,
        peak_memory_bytes=peak_memory_bytes(),
        retries=torch.cuda.memory_stats().get("num_alloc_retries", 0) if torch.cuda.is_initialized() else 0,
        device=torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu",
        notes=tuple(dict.fromkeys(injection.notes)),
        error=error,
    )


def _program_error(words: list[str], *, module: bool) -> str | None:
    """Run the program to its end, or until it has had enough steps; how it failed, if it did."""
    sys.argv = words
    try:
        if module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except Enough:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            return f"the program exits with {end.code}"
    except BaseException as failure:  # the program's own
        traceback.print_exc()
        return f"{type(failure).__name__}: {failure}"
    return None


def main(words: list[str]) -> None:
    request = msgspec.json.decode(Path(words[0]).read_bytes(), type=TrialRequest)
    result = run(request, words[1:])
    request.result.write_bytes(msgspec.json.encode(result))
    sys.stdout.flush()
    # The program was cut off in the middle: its threads and workers must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
