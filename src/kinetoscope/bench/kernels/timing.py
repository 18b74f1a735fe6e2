"""Kernels of a recording, rebuilt and timed alone: cold and hot, with their bytes, FLOPs and resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kinetoscope.bench.kernels import captured, follow, generated, replica
from kinetoscope.bench.kernels.captured import Values
from kinetoscope.bench.kernels.generated import Argument, Kernel, KernelCall, Module, ReplayError
from kinetoscope.bench.kernels.kernel_source import Facts, facts, least_bytes, moved_bytes
from kinetoscope.bench.measure.device import Bench
from kinetoscope.bench.measure.harness import measure
from kinetoscope.bench.measure.results import Measurement, Mode, Session
from kinetoscope.bench.measure.timers import Call
from kinetoscope.bench.reference import agreement
from kinetoscope.bench.reference.agreement import Agreement


class Subject(NamedTuple):
    """A kernel as one module calls it: the arguments of the call that moves most, of all its calls."""

    kernel: Kernel
    module: Module
    facts: Facts
    arguments: tuple[Argument, ...]
    bytes: int
    launches: int
    """In one run of the module; of a hand-written kernel, in the step that was watched."""
    values: Values | None = None
    """The program's own integers, where the recording holds them."""


class KernelResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kernel, timed. Everything is null that could not be known here."""

    name: str
    category: str
    module: str
    launches_per_run: int
    arguments: tuple[Argument, ...]
    bytes: int
    flops: int | None = None
    configuration: dict[str, int] | None = None
    registers: int | None = None
    spills: int | None = None
    shared_memory_bytes: int | None = None
    sessions: dict[Mode, Session] = {}
    reference: Agreement | None = None
    """Whether it computes what its graph says; a kernel that differs is timed, and never recommended."""
    notes: tuple[str, ...] = ()
    error: str | None = None

    def timing(self, mode: Mode) -> Measurement | None:
        """The measurement in this mode, if there is one."""
        return self.sessions[mode][self.name] if mode in self.sessions else None


def find(path: Path, pattern: str = "*", graph: str = "") -> tuple[list[Subject], list[str]]:
    """The kernels of a recording that match, and what could not be followed.

    Args:
        pattern: a glob over full kernel names.
        graph: only modules whose hash or AOT id begins with this.

    Raises:
        InputError: no module there.
    """
    values, _, _ = captured.read(path)
    subjects, problems = ([], []) if graph else find_by_hand(path, pattern)
    if subjects and not generated.any_module(path):
        return subjects, problems
    for module in modules(path, graph):
        if not any(fnmatchcase(name, pattern) for name in module.kernels):
            continue
        try:
            calls = follow.calls(module)
        except ReplayError as error:
            problems.append(str(error))
            continue
        subjects += (s._replace(values=values.get(s.kernel.name)) for s in _subjects(module, calls, pattern))
    return subjects, problems


def find_by_hand(path: Path, pattern: str) -> tuple[list[Subject], list[str]]:
    """The hand-written kernels of a recording that match, and those that cannot be rebuilt."""
    subjects: list[Subject] = []
    problems: list[str] = []
    for found in captured.user_kernels(path):
        if isinstance(found, str):
            problems.append(found)
        elif fnmatchcase(found[0].name, pattern):
            subjects.append(_by_hand(*found))
    return subjects, problems


def _by_hand(
    kernel: Kernel, module: Module, arguments: tuple[Argument, ...], launches: int, values: Values
) -> Subject:
    known = Facts("user Triton", kernel.signature, (), None, None)
    return Subject(
        kernel, module, known, arguments, moved_bytes(kernel.signature, arguments), launches, values
    )


def modules(path: Path, graph: str) -> list[Module]:
    """The generated modules whose hash or AOT id begins with ``graph``."""
    return [m for m in generated.find(path) if m.hash.startswith(graph) or m.aot_id.startswith(graph)]


def _subjects(module: Module, calls: Sequence[KernelCall], pattern: str) -> list[Subject]:
    found: list[Subject] = []
    for name, kernel in module.kernels.items():
        mine = [call for call in calls if call.kernel == name]
        if not mine or not fnmatchcase(name, pattern):
            continue
        known = facts(kernel)
        largest = max(mine, key=lambda call: least_bytes(known, call.arguments))
        moved = least_bytes(known, largest.arguments)
        found.append(Subject(kernel, module, known, largest.arguments, moved, len(mine)))
    return found


def launches(
    subject: Subject, built: replica.Replica, device: str, most: int = replica.MOST_SETS
) -> list[Call]:
    """The kernel bound to as many sets of buffers as are rotated."""
    return [
        built.bind(arguments(subject, device, seed))
        for seed in range(replica.sets(subject.bytes, device, most))
    ]


def arguments(subject: Subject, device: str, seed: int = 0) -> list[Any]:
    """One set of buffers for a kernel."""
    return replica.arguments(subject.arguments, device, seed, subject.facts.index_bound, subject.values)


def written(subject: Subject) -> list[str]:
    """The parameters that a kernel writes. Triton may only read what it could have updated in place."""
    kernel, facts = subject.kernel, subject.facts
    named = [p for p in facts.parameters if "out_ptr" in p or p in facts.mutated]
    if kernel.kind == "cpp":
        return named
    return [p for p in named if re.search(rf"\b(store|atomic_\w+)\({p}\b", kernel.source)]


def compare(subject: Subject, built: replica.Replica, device: str) -> Agreement:
    """Launch a kernel once, on the inputs of its first set of buffers, and compare with its graph fragment."""
    import torch

    def made() -> list[Any]:
        tensors = arguments(subject, device)
        if "atomic_add" in subject.kernel.source:  # adds to what an earlier kernel set to zero
            for name, tensor in zip(subject.facts.parameters, tensors, strict=False):
                if name.startswith("out_ptr"):
                    tensor.zero_()
        return tensors

    try:
        before, after = made(), made()
        built.bind(after)()
        return agreement.check(
            subject.kernel.comment, subject.facts.parameters, written(subject), before, after, device
        )
    except torch.OutOfMemoryError:
        return agreement.not_checked("the reference in float64 needs more memory than the device has free")


def time_kernel(
    subject: Subject, bench: Bench, modes: Sequence[Mode] = ("cold", "hot"), *, seconds: float, seed: int = 0
) -> KernelResult:
    """Rebuild one kernel and time it. A kernel that cannot run here is a result with ``error``."""
    known = KernelResult(
        name=subject.kernel.name,
        category=subject.facts.category,
        module=subject.module.hash,
        launches_per_run=subject.launches,
        arguments=subject.arguments,
        bytes=subject.bytes,
        flops=subject.facts.flops,
        notes=replica.notes(subject.arguments, subject.facts.index_bound, subject.values),
    )
    try:
        built = replica.Replica(subject.kernel)
        calls = launches(subject, built, bench.device)
        calls[0]()  # compiles, and tunes where Inductor would
    except Exception as error:  # a compiler's or a driver's: the kernel cannot be had, the others can
        return msgspec.structs.replace(known, error=f"{type(error).__name__}: {error}")
    known = msgspec.structs.replace(known, reference=compare(subject, built, bench.device))
    sessions: dict[Mode, Session] = {}
    for mode in modes:
        # The host's clock repeats a call until it is long enough; devices' timers make each set hot themselves.
        chosen = calls[:1] if mode == "hot" and bench.device == "cpu" else calls
        sessions[mode] = measure(
            {known.name: chosen},
            timer=bench.timer,
            mode=mode,
            clocks=bench.clocks,
            seconds=seconds,
            seed=seed,
        )
    launcher = built.launcher()
    if launcher is not None:
        known = msgspec.structs.replace(
            known,
            configuration=launcher.configuration,
            registers=launcher.registers,
            spills=launcher.spills,
            shared_memory_bytes=launcher.shared_memory_bytes,
        )
    return msgspec.structs.replace(
        known,
        sessions=sessions,
    )


def time_kernels(
    subjects: Sequence[Subject],
    bench_for: Callable[[str], Bench],
    *,
    seconds: float,
    progress: Callable[[str], None],
) -> list[KernelResult]:
    """Time each kernel in turn, on the device that it was made for."""
    results: list[KernelResult] = []
    for number, subject in enumerate(subjects, 1):
        progress(f"{number}/{len(subjects)} {subject.kernel.name}")
        results.append(time_kernel(subject, bench_for(replica.device_of(subject.arguments)), seconds=seconds))
    return results
