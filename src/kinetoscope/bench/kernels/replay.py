"""A generated module replayed alone: wall and busy time, what ran, memory; also with kernels exchanged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from kinetoscope.bench.kernels import replica
from kinetoscope.bench.kernels.follow import Scope, entry
from kinetoscope.bench.kernels.generated import Configuration, ModuleSource, ReplayError
from kinetoscope.bench.measure.device import Bench
from kinetoscope.bench.measure.harness import measure
from kinetoscope.bench.measure.results import MeasurementSet
from kinetoscope.bench.measure.timers import Activity, record

LEAST_SECONDS = 5.0  # of measuring, at least: with and without exchanged kernels a graph differs little
RECORDED_RUNS = 5  # runs inside one recording of the device's activity


class DeviceWork(msgspec.Struct, frozen=True):
    """Device work of one name, in one run of the module."""

    name: str
    launches: float
    device_time_ns: float


class ModuleResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A module replayed on inputs of the recorded sizes. Wall time is unprofiled, busy and span profiled."""

    module: str
    aot_id: str
    wall: MeasurementSet
    busy_ns: float | None = None  # union of the device's intervals, for each run
    span_ns: float | None = None  # first start to last end of the recorded runs, for each run
    work: tuple[DeviceWork, ...] = ()
    peak_memory_bytes: int | None = None
    notes: tuple[str, ...] = ()


def load(module: ModuleSource, exchange: Mapping[str, Configuration] | None = None) -> Callable[[], object]:
    """One run of the module on made-up inputs, compiled as Inductor would. ``exchange``: kernels that get
    another configuration. Raises ReplayError where it does not load or run here."""
    try:
        scope: Scope = vars(replica.load_source(module.source))
        for name, configuration in (exchange or {}).items():
            scope[name] = replica.Replica(module.kernels[name], configuration)
        run = entry(scope)
        run()
    except Exception as error:
        raise ReplayError(
            f"{module.hash} does not run here: {type(error).__name__}: {error}", where=str(module.path)
        ) from error
    return run


def time_module(
    module: ModuleSource,
    bench: Bench,
    *,
    seconds: float,
    exchange: Mapping[str, Configuration] | None = None,
) -> ModuleResult:
    """Replay a module; with ``exchange``, against itself with those kernels in those configurations. Raises
    ReplayError where it does not load or run here."""
    import torch

    on_gpu = bench.device != "cpu"
    subjects = {"as recorded": load(module)}
    if exchange:
        subjects["applied"] = load(module, exchange)
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    wall = measure(
        subjects,
        timer=bench.wall,
        base="as recorded" if exchange else None,
        clocks=bench.clocks,
        seconds=max(LEAST_SECONDS, seconds),
        precision=0.0005,
    )
    result = ModuleResult(
        module=module.hash,
        aot_id=module.aot_id,
        wall=wall,
        notes=("inputs are made up: sizes and strides are the recorded ones, integers are zeros",),
    )
    if not on_gpu:
        wants = "busy time, kernels and peak memory are read from a GPU's activity records: a CPU has none"
        return msgspec.structs.replace(result, notes=(*result.notes, wants))
    run = subjects["as recorded"]
    activities = record(lambda: [run() for _ in range(RECORDED_RUNS)])
    return msgspec.structs.replace(
        result,
        busy_ns=union_ns(activities) / RECORDED_RUNS,
        span_ns=(max(a.end_ns for a in activities) - activities[0].start_ns) / RECORDED_RUNS,
        work=_rows(activities),
        peak_memory_bytes=int(torch.cuda.max_memory_allocated()),
    )


def union_ns(activities: Sequence[Activity]) -> int:
    """Time during which at least one was running; they are ordered by start."""
    total = 0
    until = 0
    for activity in activities:
        total += max(0, activity.end_ns - max(activity.start_ns, until))
        until = max(until, activity.end_ns)
    return total


def _rows(activities: Iterable[Activity]) -> tuple[DeviceWork, ...]:
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for activity in activities:
        sums[activity.name][0] += 1
        sums[activity.name][1] += activity.end_ns - activity.start_ns
    rows = [DeviceWork(name, n / RECORDED_RUNS, ns / RECORDED_RUNS) for name, (n, ns) in sums.items()]
    return tuple(sorted(rows, key=lambda row: -row.device_time_ns))
