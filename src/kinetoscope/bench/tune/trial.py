"""One run of the user's program under one setting: ``python -m kinetoscope.bench.tune.trial ORDER.json script.py args…``.

Steps are found as `kinetoscope run` finds them; nothing is recorded but their times. The run ends after enough of
them.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import msgspec

from kinetoscope.bench import torch_names
from kinetoscope.bench.tune.inject import Injection, tensors
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.capture.process.imports import ImportWatch
from kinetoscope.capture.steps.sources import Sources

# The surest sign of a step first.
STEP_SOURCES = ("optimizer", "module", "call", "range")
# Watching every module slows a program of small steps: once its steps are known, only they are watched.
KNOWN_AFTER = 3
# First outputs are kept for comparison: of so many things, so many elements of a tensor.
MOST_OUTPUTS = 16
MOST_ELEMENTS = 1 << 22


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial is told."""

    setting: Setting
    result: str
    outputs: str
    steps: int
    seconds: float
    module: bool = False
    """The program is a module's name (``-m``)."""
    compile_module: str | None = None
    """Compile top-level modules of this class, in a program that does not compile by itself."""


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a trial saw."""

    steps_by: str | None = None
    step_name: str | None = None
    module: str | None = None
    """The class of the top-level module with parameters that was called most: what to compile, if nothing is."""
    before_first_step_s: float = 0.0
    steps_s: tuple[float, ...] = ()
    """Each step's duration, by the device's own clock where there is one."""
    watched: int = 0
    """Steps at the start that ran slower because all of the program was watched."""
    compile_calls: int = 0
    own: tuple[Setting, ...] = ()
    """What the program's own calls of torch.compile say, each different one once."""
    graph_breaks: int = 0
    graphs: int = 0
    peak_memory_bytes: int | None = None
    device: str = "cpu"
    notes: tuple[str, ...] = ()
    error: str | None = None


class Enough(BaseException):
    """Ends the program once enough steps were seen; no program catches it by accident."""


class Steps:
    """Boundaries of steps, by every source, with the host's time and, on a GPU, an event in its queue.

    Args:
        wanted: steps after which the program is ended.
        seconds: time after the first step after which it is.
        follow: told the source of the steps once it is known.
    """

    def __init__(self, wanted: int, seconds: float, follow: Callable[[str, Hashable], None]) -> None:
        self._wanted, self._seconds, self._follow = wanted, seconds, follow
        self._known: dict[tuple[str, Hashable], int] = {}
        self._marks: dict[tuple[str, Hashable], list[tuple[float, Any]]] = {}
        self._names: dict[tuple[str, Hashable], str] = {}
        self.began = time.perf_counter()
        self.stopped = False

    def tick(self, kind: str, key: Hashable, name: str) -> None:
        kind = "module" if kind == "training module" else kind
        if kind not in STEP_SOURCES or self.stopped:
            return
        source = (kind, key)
        marks = self._marks.setdefault(source, [])
        self._names[source] = name
        marks.append((time.perf_counter(), _event()))
        spent = marks[-1][0] - marks[0][0]
        leads = source == self._leader()
        if leads and source not in self._known and len(marks) > KNOWN_AFTER:
            self._known[source] = len(marks) - 1
            self._follow(kind, key)
        if leads and (len(marks) > self._wanted or (spent > self._seconds and len(marks) > 4)):
            self.stopped = True
            raise Enough

    def _leader(self) -> tuple[str, Hashable] | None:
        """The source that steps are taken from: the surest kind that ticked three times, its busiest key."""
        candidates = [source for source, marks in self._marks.items() if len(marks) >= 3]
        return min(candidates, key=lambda s: (STEP_SOURCES.index(s[0]), -len(self._marks[s])), default=None)

    def report(self) -> Report:
        leader = self._leader()
        if leader is None:
            return Report(before_first_step_s=time.perf_counter() - self.began)
        marks = self._marks[leader]
        _wait()
        durations = [
            start[1].elapsed_time(end[1]) / 1e3 if start[1] is not None else end[0] - start[0]
            for start, end in itertools.pairwise(marks)
        ]
        return Report(
            steps_by=leader[0],
            step_name=self._names[leader],
            before_first_step_s=marks[0][0] - self.began,
            steps_s=tuple(durations),
            watched=self._known.get(leader, 0),
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


def run(order: Order, words: list[str]) -> Report:
    """Run the program in this process as ``__main__`` and report its steps."""
    import torch

    outputs: dict[str, list[Any]] = {}

    def keep(name: str, output: Any) -> None:
        if len(outputs) < MOST_OUTPUTS:
            outputs[name] = [t.detach().flatten()[:MOST_ELEMENTS].cpu() for t in tensors(output)]

    steps = Steps(order.steps, order.seconds, lambda kind, key: sources.follow(kind, key))
    injection = Injection(order.setting, lambda number, name: steps.tick("call", number, name), keep)
    injection.install()
    modules: Counter[str] = Counter()
    seen: set[Hashable] = set()

    def tick(kind: str, key: Hashable, name: str) -> None:
        if kind in ("module", "training module") and next(sources.leader.parameters(), None) is not None:
            if name not in modules:
                injection.watch_output(f"module {name}", sources.leader)
            modules[name] += 1
            if name == order.compile_module and key not in seen:
                seen.add(key)
                # In place, before this very call goes on. (`module.compile()` does nothing for torch's own classes.)
                sources.leader.forward = injection.compile(sources.leader.forward)
        steps.tick(kind, key, name)

    sources = Sources(tick, ImportWatch())
    sources.install(None)
    error: str | None = None
    sys.argv = words
    # A program that seeds nothing would have other weights and inputs in each process.
    torch.manual_seed(0)
    try:
        if order.module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except Enough:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            error = f"the program exits with {end.code}"
    except BaseException as failure:  # the program's own
        traceback.print_exc()
        error = f"{type(failure).__name__}: {failure}"
    sources.remove()
    report = steps.report()
    if outputs:
        torch.save(outputs, order.outputs)
    on_gpu = torch.cuda.is_initialized()
    breaks, graphs = torch_names.dynamo_counts()
    return msgspec.structs.replace(
        report,
        module=modules.most_common(1)[0][0] if modules else None,
        compile_calls=injection.calls,
        own=tuple(injection.own),
        graph_breaks=breaks,
        graphs=graphs,
        peak_memory_bytes=int(torch.cuda.max_memory_allocated()) if on_gpu else _resident_bytes(),
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        notes=tuple(dict.fromkeys(injection.notes)),
        error=error,
    )


def _resident_bytes() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main(words: list[str]) -> None:
    order = msgspec.json.decode(Path(words[0]).read_bytes(), type=Order)
    report = run(order, words[1:])
    Path(order.result).write_bytes(msgspec.json.encode(report))
    sys.stdout.flush()
    # The program was cut off in the middle: its threads and workers must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
