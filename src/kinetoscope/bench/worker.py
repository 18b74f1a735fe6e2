"""The process that measures: ``python -m kinetoscope.bench.worker REQUEST.json RESULT.json``.

It runs with the user's torch and imports nothing heavy of its own; whoever asks reads the result as JSON. Progress
goes to stderr.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

import kinetoscope
from kinetoscope.bench import torch_names
from kinetoscope.bench.autotune import campaign
from kinetoscope.bench.autotune.apply import Applied
from kinetoscope.bench.autotune.configurations import Tuned
from kinetoscope.bench.autotune.promise import Promise
from kinetoscope.bench.autotune.worth import Copy, Worth, copies, worth
from kinetoscope.bench.kernels import ncu, replica
from kinetoscope.bench.kernels.modules import ModuleResult, time_module
from kinetoscope.bench.kernels.modules import load as replay
from kinetoscope.bench.kernels.ncu import NcuRow
from kinetoscope.bench.kernels.timing import KernelResult, Subject, arguments, find, modules, time_kernels
from kinetoscope.bench.measure.device import Bench, bench, import_torch
from kinetoscope.bench.measure.harness import measure
from kinetoscope.errors import KinetoscopeError, ProgramError
from kinetoscope.hardware import spec

# Launches of each kernel that Nsight Compute sees; some kernels' durations scatter by 5 %.
LAUNCHES_UNDER_NCU = 12


Task = Literal["kernels", "autotune", "module", "launch", "replay"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    task: Task
    input: str
    pattern: str = "*"
    graph: str = ""
    order: tuple[str, ...] = ()
    """Kernels in the order of their importance; unnamed ones follow, most bytes first."""
    limit: int = 0
    seconds: float = 1.0
    timer: str | None = None
    configurations: tuple[dict[str, int], ...] = ()
    apply_in: str | None = None
    """The folder to write the winners into."""
    with_ncu: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured, and on what."""

    device: str
    torch: str
    triton: str | None = None
    kernels: tuple[KernelResult, ...] = ()
    tuned: tuple[Tuned, ...] = ()
    modules: tuple[ModuleResult, ...] = ()
    worth: tuple[Worth, ...] = ()
    """Every kernel's time beside its least, those that could win most first where they were ranked."""
    copies: tuple[Copy, ...] = ()
    """What the least times are taken from."""
    applied: Applied | None = None
    promises: tuple[Promise, ...] = ()
    ncu: tuple[NcuRow, ...] = ()
    problems: tuple[str, ...] = ()
    error: tuple[str, str | None, str | None] | None = None
    """What, where and how to mend: the whole request failed."""
    notes: tuple[str, ...] = ()


def ask(request: Request) -> Result:
    """Run a request in a process of its own, with this interpreter.

    Raises:
        KinetoscopeError: the worker said so.
        ProgramError: the worker died.
    """
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "result.json")
        question.write_bytes(msgspec.json.encode(request))
        status = subprocess.call(command(question, answer), env=environment())
        if not answer.exists():
            raise ProgramError(
                f"the measuring process ended with status {status} and left no result",
                mend="its last words are above",
            )
        result = msgspec.json.decode(answer.read_bytes(), type=Result)
    if result.error is not None:
        what, where, mend = result.error
        raise KinetoscopeError(what, where=where, mend=mend)
    return result


def command(request: Path, result: Path) -> list[str]:
    return [sys.executable, "-m", "kinetoscope.bench.worker", str(request), str(result)]


def environment() -> dict[str, str]:
    """The user's environment, in which this very kinetoscope is found."""
    home = str(Path(kinetoscope.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([home, *([inherited] if inherited else [])])}


def answer(request: Request) -> Result:
    """Measure what is asked for, in this process."""
    benches = Benches(request.timer)
    path = Path(request.input)
    if request.task == "replay":
        for module in modules(path, request.graph):
            replay(module)
        return _result(benches)
    if request.task == "module":
        replayed = [
            time_module(module, benches(_device(module.source)), seconds=request.seconds)
            for module in modules(path, request.graph)
        ]
        if not replayed:
            raise KinetoscopeError(
                f"no generated module's hash or AOT id begins with {request.graph!r}",
                where=str(path),
                mend="list them with `kinetoscope graphs`",
            )
        names = generated_kernels(replayed, request.limit)
        blind = request.with_ncu and not names
        return _result(
            benches,
            modules=tuple(replayed),
            ncu=_with_ncu(request, "replay", names) if request.with_ncu and names else (),
            problems=("no generated GPU kernel ran, so there is nothing for Nsight Compute",)
            if blind
            else (),
        )
    subjects, problems = find(path, request.pattern, request.graph)
    if not subjects:
        raise KinetoscopeError(
            f"no kernel matches {request.pattern!r}",
            where=str(path),
            mend="; ".join(problems) or "list them with `kinetoscope kernels`",
        )
    if request.task == "autotune":
        done = campaign.run(
            subjects,
            benches,
            configurations=request.configurations,
            seconds=request.seconds,
            limit=request.limit,
            apply_in=Path(request.apply_in) if request.apply_in is not None else None,
            say=_say,
        )
        return _result(benches, **{**done._asdict(), "problems": (*problems, *done.problems)})
    subjects = _ordered(subjects, request)
    if request.task == "launch":
        launch(subjects, benches)
        return _result(benches)
    timed = time_kernels(subjects, benches, seconds=request.seconds, progress=_say)
    names = tuple(result.name for result in timed if result.error is None)
    measured = _with_ncu(request, "launch", names) if request.with_ncu else ()
    bed = benches(replica.device_of(subjects[0].arguments))
    copied, peak = copies(bed), spec.find(bed.name)
    return _result(
        benches,
        kernels=tuple(timed),
        worth=tuple(
            worth(subject, cold.median_ns, copied, peak)
            for subject, kernel in zip(subjects, timed, strict=True)
            if (cold := kernel.timing("cold")) is not None
        ),
        copies=copied,
        ncu=measured,
        problems=tuple(problems),
        notes=_empty_kernel(measured, benches("cuda")) if measured else (),
    )


def launch(subjects: list[Subject], benches: Benches) -> None:
    """Launch each kernel a few times, and an empty one, and nothing else: what Nsight Compute watches."""
    import torch

    empty = torch_names.empty_kernel()
    for _ in range(LAUNCHES_UNDER_NCU):
        empty()
    for subject in subjects:
        bed = benches(replica.device_of(subject.arguments))
        made = arguments(subject, bed.device)
        call = replica.Replica(subject.kernel).bind(made)
        for _ in range(LAUNCHES_UNDER_NCU):
            call()
        torch.cuda.synchronize()


def _with_ncu(request: Request, task: Task, names: tuple[str, ...]) -> tuple[NcuRow, ...]:
    """Nsight Compute's numbers of these kernels, launched alone or by a replay of their graph."""
    _say(f"Nsight Compute: {len(names)} kernels")
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        question = Path(folder, "request.json")
        asked = msgspec.structs.replace(request, task=task, order=names, limit=len(names), with_ncu=False)
        question.write_bytes(msgspec.json.encode(asked))
        return tuple(ncu.run((*names, ncu.EMPTY), command(question, Path(folder, "result.json"))))


def _empty_kernel(rows: Sequence[NcuRow], bed: Bench) -> tuple[str, ...]:
    """What an empty kernel takes there and here: the two clocks start and stop at different points of a launch."""
    there = next((row.duration_ns for row in rows if row.name == ncu.EMPTY), None)
    if there is None:
        return ()
    session = measure({ncu.EMPTY: torch_names.empty_kernel()}, timer=bed.timer, mode="cold", seconds=0.3)
    here = session[ncu.EMPTY].median_ns
    return (
        f"an empty kernel takes {there / 1e3:.2f} µs in Nsight Compute and {here / 1e3:.2f} µs here "
        f"({bed.timer.basis}): every duration of ncu's holds that difference",
    )


def generated_kernels(replayed: Iterable[ModuleResult], limit: int) -> tuple[str, ...]:
    """The generated kernels that take most time of these replays."""
    rows = [row for module in replayed for row in module.work if row.name.startswith("triton_")]
    names = dict.fromkeys(row.name for row in sorted(rows, key=lambda row: -row.device_time_ns))
    return tuple(names)[: limit or None]


def _ordered(subjects: list[Subject], request: Request) -> list[Subject]:
    rank = {name: place for place, name in enumerate(request.order)}
    ordered = sorted(subjects, key=lambda s: (rank.get(s.kernel.name, len(rank)), -s.bytes * s.launches))
    return ordered[: request.limit or None]


def _device(source: str) -> str:
    return "cuda" if "empty_strided_cuda(" in source else "cpu"


class Benches:
    """The bench of each device, made when it is first needed."""

    def __init__(self, timer: str | None) -> None:
        self._timer = timer
        self._made: dict[str, Bench] = {}

    def __call__(self, device: str) -> Bench:
        if device not in self._made:
            self._made[device] = bench(device, self._timer)
        return self._made[device]

    @property
    def names(self) -> str:
        return ", ".join(dict.fromkeys(made.name for made in self._made.values()))


def _result(benches: Benches, **found: Any) -> Result:
    import torch

    triton = importlib.metadata.version("triton") if importlib.util.find_spec("triton") else None
    return Result(device=benches.names, torch=str(torch.__version__), triton=triton, **found)


def _say(text: str) -> None:
    print(f"kinetoscope: {text}", file=sys.stderr, flush=True)


def main(question: str, answer_file: str) -> int:
    request = msgspec.json.decode(Path(question).read_bytes(), type=Request)
    replica.use_own_cache()
    try:
        import_torch()
        found = answer(request)
    except KinetoscopeError as error:
        found = Result(device="", torch="", error=(error.what, error.where, error.mend))
    Path(answer_file).write_bytes(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
