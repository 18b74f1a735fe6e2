"""Which kernels are worth tuning: what each could win against the time that moving its bytes must take."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from kinetoscope.bench.kernels import replica
from kinetoscope.bench.kernels.generated import TensorArgument
from kinetoscope.bench.kernels.subjects import Subject, arguments
from kinetoscope.bench.measure.device import Bench
from kinetoscope.bench.measure.harness import measure
from kinetoscope.bench.measure.timers import Call
from kinetoscope.errors import KinetoscopeError
from kinetoscope.hardware import DeviceSpec

NEAR = 0.9  # a kernel this near to its least time has nothing to win that would be seen
# Kernels that together could win less than this part of what all could are not worth the time of tuning them.
LITTLE = 0.01
# Bytes moved by the copies that the least times are taken from: what is between them is on a line.
COPIED = tuple(1 << power for power in range(14, 30, 2))
# The dtype that a product of these tensors computes in.
_COMPUTED_IN = {"bfloat16": "bf16", "float16": "fp16", "float32": "tf32", "float64": "fp64"}
TOGETHER_BYTES = 4 << 30  # kernels are timed together, interleaved, as long as their buffers stay below this
COLD_SECONDS = 0.3


Skipped = Literal["nothing to win", "too little to win", "beyond the limit"]


class Copy(NamedTuple):
    """The cold time of a plain elementwise kernel that moves so many bytes."""

    bytes: int
    time_ns: float


class Worth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kernel of one graph: its time, its least time, and why it is not tuned (null if it is)."""

    name: str
    module: str
    launches_per_run: int
    cold_ns: float
    least_ns: float
    """The time of a copy of as many bytes; of its arithmetic at the device's peak, if that is longer."""
    skipped: Skipped | None = None
    quickest_ns: float | None = None
    """The time that a tenth of its measurements were below, where they were many."""

    @property
    def spreads(self) -> bool:
        """Its measurements lie around its least time: what it could win is not known."""
        return not self.is_near and self.quickest_ns is not None and self.quickest_ns <= self.least_ns

    @property
    def speed(self) -> float:
        """Its least time over its time: 1 is as fast as a copy."""
        return self.least_ns / self.cold_ns

    @property
    def is_near(self) -> bool:
        """It has nothing to win."""
        return self.speed >= NEAR

    @property
    def could_win_ns(self) -> float:
        """In one run of its graph."""
        return max(0.0, self.cold_ns - self.least_ns) * self.launches_per_run


def copies(bench: Bench, *, seconds: float = 1.0) -> tuple[Copy, ...]:
    """Time copies of rising size, cold, on the device that the kernels run on."""
    import torch

    def copy(moved: int) -> Call:
        source = torch.zeros(moved // 8, device=bench.device)
        target = torch.empty_like(source)
        return lambda: torch.neg(source, out=target)

    measured = measure(
        {str(moved): copy(moved) for moved in COPIED},
        timer=bench.timer,
        mode="cold",
        clocks=bench.clocks,
        precision=0.01,
        seconds=seconds,
    )
    return tuple(Copy(moved, measured[str(moved)].median_ns) for moved in COPIED)


def least_ns(
    moved: int, flops: int | None, dtype: str, copied: Sequence[Copy], peak: DeviceSpec | None
) -> float:
    """The least time of a kernel that moves so many bytes and does so much arithmetic: between two
    of the copies, which are ordered by size, it is on the line, beyond the last at its rate. ``dtype``: of
    its tensors, as torch names it. Without the device's peak rates arithmetic costs nothing."""
    place = bisect.bisect_left([copy.bytes for copy in copied], moved)
    if place == 0:
        time_ns = copied[0].time_ns
    elif place == len(copied):
        time_ns = moved * copied[-1].time_ns / copied[-1].bytes
    else:
        below, above = copied[place - 1], copied[place]
        share = (moved - below.bytes) / (above.bytes - below.bytes)
        time_ns = below.time_ns + share * (above.time_ns - below.time_ns)
    rate = peak.peak(_COMPUTED_IN.get(dtype, "fp32")) if peak else None
    return max(time_ns, flops / rate * 1e9) if flops and rate else time_ns


def worth(
    subject: Subject,
    cold_ns: float,
    copied: Sequence[Copy],
    peak: DeviceSpec | None,
    quickest_ns: float | None = None,
) -> Worth:
    """One kernel's time and its least."""
    dtype = next((a.dtype for a in subject.arguments if isinstance(a, TensorArgument)), "float32")
    return Worth(
        name=subject.kernel.name,
        module=subject.module.hash,
        launches_per_run=subject.launches,
        cold_ns=cold_ns,
        least_ns=least_ns(subject.bytes, subject.facts.flops, dtype, copied, peak),
        quickest_ns=quickest_ns,
    )


def choose(kernels: Iterable[Worth], limit: int) -> list[Worth]:
    """The kernels, those that could win most first; all but ``limit`` that are worth it have ``skipped``."""
    ranked = sorted(kernels, key=lambda kernel: -kernel.could_win_ns)
    total_ns = sum(kernel.could_win_ns for kernel in ranked)
    chosen: list[Worth] = []
    taken = 0
    for kernel in ranked:
        skipped: Skipped | None = None
        if kernel.is_near:
            skipped = "nothing to win"
        elif kernel.could_win_ns < LITTLE * total_ns:
            skipped = "too little to win"
        elif limit and taken == limit:
            skipped = "beyond the limit"
        else:
            taken += 1
        chosen.append(msgspec.structs.replace(kernel, skipped=skipped))
    return chosen


def time_cold(
    subjects: Sequence[Subject], benches: Callable[[str], Bench], progress: Callable[[str], None]
) -> tuple[list[tuple[Subject, float]], list[str]]:
    """The cold median of each kernel, quickly: many side by side. Also why some have none."""
    timed: list[tuple[Subject, float]] = []
    problems: list[str] = []
    for number, group in enumerate(_groups(subjects), 1):
        progress(f"timing {len(group)} kernels (group {number})")
        bench = benches(group[0].device)
        calls: dict[str, Call] = {}
        for place, subject in enumerate(group):
            ready = _ready(subject, bench)
            if isinstance(ready, str):
                problems.append(ready)
            else:
                calls[str(place)] = ready
        medians, lost = cold_medians(calls, bench, COLD_SECONDS)
        problems += [f"{group[int(place)].kernel.name}: {why}" for place, why in lost.items()]
        timed += [(group[int(place)], median_ns) for place, median_ns in medians.items()]
    return timed, problems


def cold_medians(
    calls: Mapping[str, Call], bench: Bench, seconds: float
) -> tuple[dict[str, float], dict[str, str]]:
    try:
        measured = measure(
            calls, timer=bench.timer, mode="cold", seconds=seconds, warmup_seconds=0.0, precision=0.02
        )
    except KinetoscopeError as error:
        if len(calls) == 1:
            return {}, dict.fromkeys(calls, str(error))
        # One of them does what cannot be timed, such as no work at all: each for itself then.
        alone = [cold_medians({name: call}, bench, seconds / len(calls)) for name, call in calls.items()]
        return (
            {name: ns for medians, _ in alone for name, ns in medians.items()},
            {name: why for _, lost in alone for name, why in lost.items()},
        )
    return {name: measured[name].median_ns for name in calls}, {}


def _ready(subject: Subject, bench: Bench) -> Call | str:
    """The kernel, launched once; or what is wrong with it."""
    try:
        call = replica.Replica(subject.kernel).bind(arguments(subject, bench.device))
        call()
    except Exception as error:  # a compiler's or a driver's: this kernel cannot be had, others can
        return f"{subject.kernel.name}: {type(error).__name__}: {error}"[:300]
    return call


def _groups(subjects: Sequence[Subject]) -> list[list[Subject]]:
    groups: list[list[Subject]] = []
    total = 0
    for subject in subjects:
        total += subject.bytes
        if not groups or groups[-1][0].device != subject.device or total > TOGETHER_BYTES:
            groups.append([])
            total = subject.bytes
        groups[-1].append(subject)
    return groups
