"""The process that measures: ``python -m kinetoscope.bench.worker REQUEST.json RESULT.json``.

It runs with the user's torch and imports nothing heavy of its own. Progress goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kinetoscope import hardware
from kinetoscope.bench import torch_names
from kinetoscope.bench.autotune.configurations import Tuned, tune_kernel
from kinetoscope.bench.autotune.winners import promise, winners, write
from kinetoscope.bench.autotune.worth import Copy, Worth, choose, copies, time_cold, worth
from kinetoscope.bench.kernels import generated, ncu, replay
from kinetoscope.bench.kernels.generated import ReplayError
from kinetoscope.bench.kernels.ncu import NcuRow
from kinetoscope.bench.kernels.replay import ModuleResult
from kinetoscope.bench.kernels.replica import Replica, use_own_cache
from kinetoscope.bench.kernels.subjects import Subject, arguments, find
from kinetoscope.bench.kernels.timing import check, time_kernels
from kinetoscope.bench.measure.device import Bench, bench_for, import_torch
from kinetoscope.bench.measure.harness import measure
from kinetoscope.bench.request import BenchResult, Request, Task, command
from kinetoscope.errors import KinetoscopeError

# Launches of each kernel that Nsight Compute sees; some kernels' durations scatter by 5 %.
LAUNCHES_UNDER_NCU = 12


def answer(request: Request) -> BenchResult:
    benches = Benches(request.timer)
    if request.task == "replay":
        for module in generated.find(Path(request.input), request.graph):
            replay.load(module)
        return _result(benches)
    if request.task == "module":
        return _replayed(request, benches)
    subjects, problems = find(Path(request.input), request.pattern, request.graph)
    if not subjects:
        raise KinetoscopeError(
            f"no kernel matches {request.pattern!r}",
            where=request.input,
            hint="; ".join(problems) or "list them with `kinetoscope kernels`",
        )
    if request.task == "autotune":
        return autotune(request, subjects, problems, benches)
    rank = {name: place for place, name in enumerate(request.order)}
    subjects.sort(key=lambda s: (rank.get(s.kernel.name, len(rank)), -s.bytes * s.launches))
    subjects = subjects[: request.limit or None]
    if request.task == "launch":
        _launch(subjects, benches)
        return _result(benches)
    return _timed(request, subjects, problems, benches)


def _replayed(request: Request, benches: Benches) -> BenchResult:
    replayed = [
        replay.time_module(module, benches(device), seconds=request.seconds)
        for module in generated.find(Path(request.input), request.graph)
        for device in ["cuda" if "empty_strided_cuda(" in module.source else "cpu"]
    ]
    if not replayed:
        raise KinetoscopeError(
            f"no generated module's hash or AOT id begins with {request.graph!r}",
            where=request.input,
            hint="list them with `kinetoscope graphs`",
        )
    names = generated_kernels(replayed, request.limit) if request.with_ncu else ()
    blind = request.with_ncu and not names
    return _result(
        benches,
        modules=tuple(replayed),
        ncu=_with_ncu(request, "replay", names) if names else (),
        problems=("no generated GPU kernel ran, so there is nothing for Nsight Compute",) if blind else (),
    )


def _timed(request: Request, subjects: list[Subject], problems: list[str], benches: Benches) -> BenchResult:
    timed = time_kernels(subjects, benches, seconds=request.seconds, progress=_print)
    names = tuple(result.name for result in timed if result.error is None)
    counted = _with_ncu(request, "launch", names) if request.with_ncu else ()
    bench = benches(subjects[0].device)
    copied, peak = copies(bench), hardware.find(bench.name)
    return _result(
        benches,
        kernels=tuple(timed),
        worth=tuple(
            worth(subject, kernel.cold.median_ns, copied, peak, kernel.cold.p10_ns)
            for subject, kernel in zip(subjects, timed, strict=True)
            if kernel.cold is not None
        ),
        copies=copied,
        ncu=counted,
        problems=tuple(problems),
        notes=_empty_kernel(counted, benches("cuda")) if counted else (),
    )


def autotune(request: Request, subjects: list[Subject], problems: list[str], benches: Benches) -> BenchResult:
    """Tune kernels; of several only the ``limit`` that could win most, and only if there is something to win.
    Raises KinetoscopeError where none of the kernels has configurations."""
    triton = [subject for subject in subjects if subject.kernel.kind == "triton"]
    if not triton:
        raise KinetoscopeError(
            f"none of these {len(subjects)} kernels has configurations to choose from",
            where=str(subjects[0].module.path),
            hint="Inductor's C++ kernels have none, its Triton kernels have: record on a GPU",
        )
    if others := len(subjects) - len(triton):
        problems.append(f"{others} C++ kernels have no configurations to choose from")
    copied: tuple[Copy, ...] = ()
    ranked: list[Worth] = []
    if len(triton) > 1:
        copied, ranked, unusable = _rank(triton, benches, request.limit)
        problems += unusable
        of = {(subject.module.hash, subject.kernel.name): subject for subject in triton}
        triton = [of[kernel.module, kernel.name] for kernel in ranked if kernel.skipped is None]
    tuned: list[Tuned] = []
    for number, subject in enumerate(triton, 1):
        _print(f"{number}/{len(triton)} {subject.kernel.name}")
        made = _tune(subject, benches(subject.device), request)
        if isinstance(made, str):
            problems.append(made)
        else:
            tuned.append(made)
    applied: dict[str, Any] = {}
    if request.apply_in is not None and tuned:
        homes = {subject.module.hash: subject.module for subject in triton}
        replayed: list[ModuleResult] = []
        for module in homes.values():
            if exchange := winners([kernel for kernel in tuned if kernel.module == module.hash]):
                _print(f"replaying {module.aot_id} with and without {len(exchange)} winners")
                seconds = request.seconds
                replayed.append(
                    replay.time_module(module, benches("cuda"), seconds=seconds, exchange=exchange)
                )
        promises = (promise(tuned, result) for result in replayed)
        applied = {
            "modules": tuple(replayed),
            "applied": write(Path(request.apply_in), tuned, homes),
            "promises": tuple(made for made in promises if made is not None),
        }
    return _result(
        benches, tuned=tuple(tuned), worth=tuple(ranked), copies=copied, problems=tuple(problems), **applied
    )


def _rank(
    subjects: Sequence[Subject], benches: Benches, limit: int
) -> tuple[tuple[Copy, ...], list[Worth], list[str]]:
    """The copies that least times are taken from, the kernels by what they could win, and problems."""
    bench = benches(subjects[0].device)
    for module in {subject.module.hash: subject.module for subject in subjects}.values():
        _print(f"compiling the kernels of {module.aot_id} {module.hash}")
        # Together and in parallel, as the model does it; one that cannot be built is reported in its turn.
        with contextlib.suppress(ReplayError):
            replay.load(module)
    cold, unusable = time_cold(subjects, benches, _print)
    copied, peak = copies(bench), hardware.find(bench.name)
    return copied, choose((worth(kernel, time_ns, copied, peak) for kernel, time_ns in cold), limit), unusable


def _tune(subject: Subject, bench: Bench, request: Request) -> Tuned | str:
    try:
        agreement = check(subject, Replica(subject.kernel), bench.device)
        if agreement.status == "differs":
            return f"{subject.kernel.name} is not tuned: it {agreement.text}"
        return tune_kernel(subject, bench, given=request.configurations, seconds=request.seconds)
    except KinetoscopeError as error:
        return str(error)


def _launch(subjects: list[Subject], benches: Benches) -> None:
    """Launch each kernel a few times, and an empty one, and nothing else: what Nsight Compute watches."""
    import torch

    empty = torch_names.empty_kernel()
    for _ in range(LAUNCHES_UNDER_NCU):
        empty()
    for subject in subjects:
        call = Replica(subject.kernel).bind(arguments(subject, benches(subject.device).device))
        for _ in range(LAUNCHES_UNDER_NCU):
            call()
        torch.cuda.synchronize()


def _with_ncu(request: Request, task: Task, names: tuple[str, ...]) -> tuple[NcuRow, ...]:
    """Nsight Compute's numbers of these kernels, launched alone or by a replay of their graph."""
    _print(f"Nsight Compute: {len(names)} kernels")
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        question = Path(folder, "request.json")
        order = msgspec.structs.replace(request, task=task, order=names, limit=len(names), with_ncu=False)
        question.write_bytes(msgspec.json.encode(order))
        return tuple(ncu.run((*names, ncu.EMPTY), command(question, Path(folder, "result.json"))))


def _empty_kernel(rows: Sequence[NcuRow], bench: Bench) -> tuple[str, ...]:
    """The time of an empty kernel there and here: the clocks start and stop at other points of a launch."""
    there = next((row.duration_ns for row in rows if row.name == ncu.EMPTY), None)
    if there is None:
        return ()
    empty = {ncu.EMPTY: torch_names.empty_kernel()}
    here = measure(empty, timer=bench.timer, mode="cold", seconds=0.3)[ncu.EMPTY].median_ns
    return (
        f"an empty kernel takes {there / 1e3:.2f} µs in Nsight Compute and {here / 1e3:.2f} µs here "
        f"({bench.timer.basis}): every duration of ncu's holds that difference",
    )


def generated_kernels(replayed: Iterable[ModuleResult], limit: int) -> tuple[str, ...]:
    rows = [row for module in replayed for row in module.work if row.name.startswith("triton_")]
    names = dict.fromkeys(row.name for row in sorted(rows, key=lambda row: -row.device_time_ns))
    return tuple(names)[: limit or None]


class Benches:
    """The bench of each device, made when it is first needed."""

    def __init__(self, timer: str | None) -> None:
        self._timer = timer
        self._made: dict[str, Bench] = {}

    def __call__(self, device: str) -> Bench:
        if device not in self._made:
            self._made[device] = bench_for(device, self._timer)
        return self._made[device]

    @property
    def names(self) -> str:
        return ", ".join(dict.fromkeys(made.name for made in self._made.values()))


def _result(benches: Benches, **measured: Any) -> BenchResult:
    """The result with the device and versions that it was measured on; the keywords are its fields."""
    import torch

    triton = importlib.metadata.version("triton") if importlib.util.find_spec("triton") else None
    return BenchResult(device=benches.names, torch=str(torch.__version__), triton=triton, **measured)


def _print(text: str) -> None:
    print(f"kinetoscope: {text}", file=sys.stderr, flush=True)


def main(question: str, answer_file: str) -> int:
    request = msgspec.json.decode(Path(question).read_bytes(), type=Request)
    use_own_cache()
    try:
        import_torch()
        result = answer(request)
    except KinetoscopeError as error:
        result = BenchResult(device="", torch="", error=(error.what, error.where, error.hint))
    Path(answer_file).write_bytes(msgspec.json.encode(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
