"""`bench --max-autotune`: kernels worth tuning, tuned; their winners written and their graphs replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kinetoscope import hardware
from kinetoscope.bench.autotune.configurations import Tuned, tune_kernel
from kinetoscope.bench.autotune.winners import Applied, Promise, promise, winners, write
from kinetoscope.bench.autotune.worth import Copy, Worth, choose, copies, time_cold, worth
from kinetoscope.bench.kernels.generated import Configuration, Module, ReplayError
from kinetoscope.bench.kernels.replay import ModuleResult, load, time_module
from kinetoscope.bench.kernels.replica import Replica
from kinetoscope.bench.kernels.subjects import Subject
from kinetoscope.bench.kernels.timing import check
from kinetoscope.bench.measure.device import Bench
from kinetoscope.errors import KinetoscopeError

Progress = Callable[[str], None]


class Campaign(NamedTuple):
    """What was found; the fields are those of the worker's result."""

    tuned: tuple[Tuned, ...]
    worth: tuple[Worth, ...]
    copies: tuple[Copy, ...]
    problems: tuple[str, ...]
    modules: tuple[ModuleResult, ...] = ()
    applied: Applied | None = None
    promises: tuple[Promise, ...] = ()


def run(
    subjects: Sequence[Subject],
    benches: Callable[[str], Bench],
    *,
    configurations: Sequence[Configuration],
    seconds: float,
    limit: int,
    apply_in: Path | None,
    progress: Progress,
) -> Campaign:
    """Tune kernels; of several only the ``limit`` that could win most, and only if there is something to win.

    Args:
        configurations: to try besides Inductor's own.
        seconds: of measuring at a time, at most.
        apply_in: write the winners there and replay their graphs with and without them.

    Raises:
        KinetoscopeError: none of the kernels has configurations.
    """
    triton = [subject for subject in subjects if subject.kernel.kind == "triton"]
    if not triton:
        raise KinetoscopeError(
            f"none of these {len(subjects)} kernels has configurations to choose from",
            where=str(subjects[0].module.path),
            hint="Inductor's C++ kernels have none, its Triton kernels have: record on a GPU",
        )
    problems: list[str] = []
    if others := len(subjects) - len(triton):
        problems.append(f"{others} C++ kernels have no configurations to choose from")
    copied: tuple[Copy, ...] = ()
    ranked: list[Worth] = []
    if len(triton) > 1:
        copied, ranked, unusable = _rank(triton, benches, limit, progress)
        problems += unusable
        of = {(subject.module.hash, subject.kernel.name): subject for subject in triton}
        triton = [of[kernel.module, kernel.name] for kernel in ranked if kernel.skipped is None]
    tuned: list[Tuned] = []
    for number, subject in enumerate(triton, 1):
        progress(f"{number}/{len(triton)} {subject.kernel.name}")
        made = _tune(subject, benches, configurations, seconds)
        if isinstance(made, str):
            problems.append(made)
        else:
            tuned.append(made)
    done = Campaign(tuple(tuned), tuple(ranked), copied, tuple(problems))
    if apply_in is None or not tuned:
        return done
    homes = {subject.module.hash: subject.module for subject in triton}
    replayed = _replay(tuned, list(homes.values()), benches, seconds, progress)
    return done._replace(
        modules=tuple(replayed),
        applied=write(apply_in, tuned, homes),
        promises=tuple(made for replay in replayed if (made := promise(tuned, replay)) is not None),
    )


def _rank(
    subjects: Sequence[Subject], benches: Callable[[str], Bench], limit: int, progress: Progress
) -> tuple[tuple[Copy, ...], list[Worth], list[str]]:
    bench = benches(subjects[0].device)
    for module in {subject.module.hash: subject.module for subject in subjects}.values():
        progress(f"compiling the kernels of {module.aot_id} {module.hash}")
        # Together and in parallel, as the model does it; what cannot be had says so when its turn comes.
        with contextlib.suppress(ReplayError):
            load(module)
    cold, unusable = time_cold(subjects, benches, progress)
    copied, peak = copies(bench), hardware.find(bench.name)
    return copied, choose((worth(kernel, time_ns, copied, peak) for kernel, time_ns in cold), limit), unusable


def _tune(
    subject: Subject, benches: Callable[[str], Bench], given: Sequence[Configuration], seconds: float
) -> Tuned | str:
    bench = benches(subject.device)
    try:
        agreement = check(subject, Replica(subject.kernel), bench.device)
        if agreement.status == "differs":
            return f"{subject.kernel.name} is not tuned: it {agreement.text}"
        return tune_kernel(subject, bench, given=given, seconds=seconds)
    except KinetoscopeError as error:
        return str(error)


def _replay(
    tuned: Sequence[Tuned],
    modules: Sequence[Module],
    benches: Callable[[str], Bench],
    seconds: float,
    progress: Progress,
) -> list[ModuleResult]:
    replayed: list[ModuleResult] = []
    for module in modules:
        exchange = winners([kernel for kernel in tuned if kernel.module == module.hash])
        if exchange:
            progress(f"replaying {module.aot_id} with and without {len(exchange)} winners")
            replayed.append(time_module(module, benches("cuda"), seconds=seconds, exchange=exchange))
    return replayed
