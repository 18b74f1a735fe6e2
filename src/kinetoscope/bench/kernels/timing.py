"""Kernels of a recording, rebuilt and timed alone: cold and hot, with their bytes, FLOPs and resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from kinetoscope.bench.kernels import replica
from kinetoscope.bench.kernels.generated import Argument
from kinetoscope.bench.kernels.replica import Replica
from kinetoscope.bench.kernels.subjects import Subject, arguments, launches
from kinetoscope.bench.measure.device import Bench
from kinetoscope.bench.measure.harness import measure
from kinetoscope.bench.measure.results import Measurement, MeasurementSet, Mode
from kinetoscope.bench.reference import agreement
from kinetoscope.bench.reference.agreement import Agreement
from kinetoscope.bench.torch_names import Tensor


def check(subject: Subject, built: Replica, device: str) -> Agreement:
    """Launch a kernel once, on its first set of buffers, and compare its outputs with its graph fragment."""
    import torch

    def made() -> list[Tensor]:
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
            subject.kernel.comment, subject.facts.parameters, _written(subject), before, after, device
        )
    except torch.OutOfMemoryError:
        return agreement.not_checked("the reference in float64 needs more memory than the device has free")


def _written(subject: Subject) -> list[str]:
    """The parameters that a kernel writes. Triton may only read what it could have updated in place."""
    kernel, facts = subject.kernel, subject.facts
    named = [p for p in facts.parameters if "out_ptr" in p or p in facts.mutated]
    if kernel.kind == "cpp":
        return named
    return [p for p in named if re.search(rf"\b(store|atomic_\w+)\({p}\b", kernel.source)]


MODES: tuple[Mode, ...] = ("cold", "hot")


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
    measured: dict[Mode, MeasurementSet] = msgspec.field(default={}, name="sessions")
    reference: Agreement | None = None
    """Whether it computes what its graph says; a kernel that differs is timed, and never recommended."""
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def cold(self) -> Measurement | None:
        return self.measured["cold"][self.name] if "cold" in self.measured else None

    @property
    def hot(self) -> Measurement | None:
        return self.measured["hot"][self.name] if "hot" in self.measured else None


def time_kernel(subject: Subject, bench: Bench, *, seconds: float) -> KernelResult:
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
    reference = check(subject, built, bench.device)
    measured = {
        mode: measure(
            # The host's clock repeats a call until it is long enough; devices' timers make each set hot.
            {known.name: calls[:1] if mode == "hot" and bench.device == "cpu" else calls},
            timer=bench.timer,
            mode=mode,
            clocks=bench.clocks,
            seconds=seconds,
        )
        for mode in MODES
    }
    launcher = built.launcher()
    resources = launcher._asdict() if launcher is not None else {}
    return msgspec.structs.replace(known, reference=reference, measured=measured, **resources)


def time_kernels(
    subjects: Sequence[Subject],
    benches: Callable[[str], Bench],
    *,
    seconds: float,
    progress: Callable[[str], None],
) -> list[KernelResult]:
    results: list[KernelResult] = []
    for number, subject in enumerate(subjects, 1):
        progress(f"{number}/{len(subjects)} {subject.kernel.name}")
        results.append(time_kernel(subject, benches(subject.device), seconds=seconds))
    return results
