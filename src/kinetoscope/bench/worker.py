"""The process that measures: ``python -m kinetoscope.bench.worker REQUEST.json RESULT.json``.

It runs with the user's torch and imports nothing heavy of its own; whoever asks reads the result as JSON. Progress
goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

import kinetoscope
from kinetoscope.bench import ncu, replica
from kinetoscope.bench.apply import Applied, winners, write
from kinetoscope.bench.autotune import Tuned, tune_kernel
from kinetoscope.bench.device import Bench, bench, import_torch
from kinetoscope.bench.generated import Module, ReplayError
from kinetoscope.bench.kernels import KernelResult, Subject, find, modules, time_kernels
from kinetoscope.bench.modules import ModuleResult, time_module
from kinetoscope.bench.modules import load as replay
from kinetoscope.bench.ncu import NcuRow
from kinetoscope.bench.promise import Promise, promise
from kinetoscope.bench.worth import Copy, Worth, choose, copies, time_cold, worth
from kinetoscope.errors import KinetoscopeError, ProgramError
from kinetoscope.hardware import spec

# Launches of each kernel that Nsight Compute sees: the first warms up.
LAUNCHES_UNDER_NCU = 4


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
        return _result(
            benches,
            modules=tuple(replayed),
            ncu=_with_ncu(request, "replay", _kernels(replayed, request.limit)) if request.with_ncu else (),
        )
    subjects, problems = find(path, request.pattern, request.graph)
    if not subjects:
        raise KinetoscopeError(
            f"no kernel matches {request.pattern!r}",
            where=str(path),
            mend="; ".join(problems) or "list them with `kinetoscope kernels`",
        )
    if request.task == "autotune":
        return _autotune(request, subjects, problems, benches)
    subjects = _ordered(subjects, request)
    if request.task == "launch":
        launch(subjects, benches)
        return _result(benches)
    timed = time_kernels(subjects, benches, seconds=request.seconds, progress=_say)
    names = tuple(result.name for result in timed if result.error is None)
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
        ncu=_with_ncu(request, "launch", names) if request.with_ncu else (),
        problems=tuple(problems),
    )


def _autotune(request: Request, subjects: list[Subject], problems: list[str], benches: Benches) -> Result:
    cpp = [subject for subject in subjects if subject.kernel.kind != "triton"]
    if cpp:
        problems.append(f"{len(cpp)} C++ kernels have no configurations to choose from")
    subjects = [subject for subject in subjects if subject.kernel.kind == "triton"]
    homes = {subject.module.hash: subject.module for subject in subjects}
    copied: tuple[Copy, ...] = ()
    ranked: list[Worth] = []
    if len(subjects) > 1:
        subjects, copied, ranked = _worthwhile(request, subjects, homes.values(), problems, benches)
    tuned: list[Tuned] = []
    for number, subject in enumerate(subjects, 1):
        _say(f"{number}/{len(subjects)} {subject.kernel.name}")
        bed = benches(replica.device_of(subject.arguments))
        try:
            tuned.append(tune_kernel(subject, bed, given=request.configurations, seconds=request.seconds))
        except KinetoscopeError as error:
            problems.append(str(error))
    result = _result(
        benches, tuned=tuple(tuned), worth=tuple(ranked), copies=copied, problems=tuple(problems)
    )
    if request.apply_in is None:
        return result
    replayed: list[ModuleResult] = []
    for module in homes.values():
        exchange = winners([kernel for kernel in tuned if kernel.module == module.hash])
        if exchange:
            _say(f"replaying {module.aot_id} with {len(exchange)} winners and without")
            replayed.append(
                time_module(module, benches("cuda"), seconds=max(5.0, request.seconds), exchange=exchange)
            )
    return msgspec.structs.replace(
        result,
        applied=write(Path(request.apply_in), tuned, homes),
        modules=tuple(replayed),
        promises=tuple(made for replay in replayed if (made := promise(tuned, replay)) is not None),
    )


def _worthwhile(
    request: Request,
    subjects: list[Subject],
    homes: Iterable[Module],
    problems: list[str],
    benches: Benches,
) -> tuple[list[Subject], tuple[Copy, ...], list[Worth]]:
    """The kernels worth tuning, those that could win most first."""
    for module in homes:
        _say(f"compiling the kernels of {module.aot_id} {module.hash}")
        with contextlib.suppress(ReplayError):  # each kernel says for itself what is wrong with it
            replay(module)
    cold, unusable = time_cold(subjects, benches, _say)
    problems += unusable
    bed = benches(replica.device_of(subjects[0].arguments))
    copied, peak = copies(bed), spec.find(bed.name)
    ranked = choose((worth(subject, time_ns, copied, peak) for subject, time_ns in cold), request.limit)
    of = {(subject.module.hash, subject.kernel.name): subject for subject in subjects}
    return [of[kernel.module, kernel.name] for kernel in ranked if kernel.skipped is None], copied, ranked


def launch(subjects: list[Subject], benches: Benches) -> None:
    """Launch each kernel a few times and nothing else: what Nsight Compute watches."""
    import torch

    for subject in subjects:
        bed = benches(replica.device_of(subject.arguments))
        made = replica.arguments(subject.arguments, bed.device, index_bound=subject.facts.index_bound)
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
        return tuple(ncu.run(names, command(question, Path(folder, "result.json"))))


def _kernels(replayed: Iterable[ModuleResult], limit: int) -> tuple[str, ...]:
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
