"""Whether two runs can be compared: the same device, the same software, the same power."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.health.verdict import losses
from kinetoscope.analysis.memo import remembered
from kinetoscope.comparison.programs import arguments, other_programs, unknown_program
from kinetoscope.recording.manifest import ClockSample, Environment
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.distribution import median
from kinetoscope.trace.model import Trace

Comparability = Literal["good", "limited", "none"]

CLOCKS = 0.03  # median SM clocks that differ by so much of either are no accident
IDLE = "idle"  # a clock that is low since there is nothing to do

# Inductor sets these for itself when it is imported: if only one side has them, only that one compiled.
INDUCTORS = {"TRITON_CACHE_DIR", "TRITON_PTXAS_PATH", "TORCHINDUCTOR_CACHE_DIR"}

# Limits of the device, as its administrator set them.
LIMITS: tuple[tuple[str, str, Callable[[ClockSample], float | None]], ...] = (
    ("a power cap of", "W", lambda clock: clock.power_limit_w),
    ("application clocks of", "MHz", lambda clock: clock.application_clock_mhz),
    ("SM clocks of at most", "MHz", lambda clock: clock.max_sm_clock_mhz),
)


class Surroundings(Struct, frozen=True):
    """Whether two runs can be compared; ``why`` has a sentence for everything that differs except the
    program's code. With different devices or programs, times mean nothing for the program (``none``); with
    different software, settings or clocks, their part of the difference cannot be separated (``limited``)."""

    comparability: Comparability
    why: tuple[str, ...]


def incomplete(base: Sequence[LoadedRun], new: Sequence[LoadedRun]) -> tuple[str, ...]:
    """A sentence on each recording of two versions that has lost something, with the share that is left."""
    sentences: list[str] = []
    for which, runs, other, others in (("base", base, "new run", new), ("new run", new, "base", base)):
        whole = max(map(_events, others))
        for run in runs:
            if lost := losses(run):
                less = 0 < _events(run) < whole
                share = f", with {_events(run) / whole:.0%} as many events as the {other}" if less else ""
                sentences.append(f"the {which} is incomplete{share}: {'; '.join(lost)}")
    return tuple(sentences)


def _events(run: LoadedRun) -> int:
    return sum(trace.source.events for trace in run.traces)


def surroundings(base: LoadedRun, new: LoadedRun) -> Surroundings:
    """Compare the devices, software and settings of two runs."""
    devices = [_devices(run) for run in (base, new)]
    if devices[0] != devices[1]:
        words = " and ".join(", ".join(names) or "no GPU" for names in devices)
        return Surroundings("none", (f"they ran on different devices: {words}", *_limits(base, new)))
    why = tuple(_limits(base, new))
    if other := other_programs(base, new):
        return Surroundings("none", (other, *why))
    if unknown := unknown_program(base, new):
        return Surroundings("limited", (*why, unknown))
    return Surroundings("limited" if why else "good", why)


@remembered
def has_stacks(trace: Trace) -> bool:
    """Whether the recording has lines of Python."""
    is_function = matching(trace.host_events, "category", "^python_function$")
    return bool(trace.host_arguments["call_stack"].count() or is_function.any())


def _devices(run: LoadedRun) -> tuple[str, ...]:
    found = {device.name for trace in run.traces for device in trace.devices}
    if not found and run.manifest is not None:
        found = {device.name for device in run.manifest.environment.devices}
    if not found and not any(len(trace.device_events) for trace in run.traces) and run.manifest is not None:
        found = {run.manifest.environment.cpu} - {""}
    return tuple(sorted(found))


def _limits(base: LoadedRun, new: LoadedRun) -> Iterable[str]:
    if len(base.traces) != len(new.traces):
        yield f"{len(base.traces)} ranks and {len(new.traces)}"
    ranks = [run.traces[0].rank for run in (base, new) if len(run.traces) == 1]
    if len(ranks) == 2 and ranks[0] != ranks[1]:
        yield (
            f"they are two ranks, {ranks[0]} and {ranks[1]}: of one job, this is how its ranks differ, "
            "and not what was changed"
        )
    stacks = [any(map(has_stacks, run.traces)) for run in (base, new)]
    if stacks[0] != stacks[1]:
        which = "base" if stacks[0] else "new one"
        yield f"only the {which} was recorded with Python stacks, which slow the host"
    if base.manifest is None or new.manifest is None:
        if base.snapshots and new.snapshots:
            yield "a snapshot of memory names neither its device nor its software"
        yield from _differing(_of_trace(base), _of_trace(new))
        return
    commands = [arguments(manifest.command) for manifest in (base.manifest, new.manifest)]
    if None not in commands and commands[0] != commands[1]:
        yield f"they were run with other arguments: {' and '.join(map(repr, commands))}"
    own, other = base.manifest.environment, new.manifest.environment
    yield from changed_variables(own.variables, other.variables)
    yield from _differing(_of_environment(own), _of_environment(other))
    for which, one in (("the base", own), ("the new one", other)):
        yield from busy(which, one.load_average, one.cpu_count)
    yield from _differing(_recorded(base.manifest.options), _recorded(new.manifest.options))
    yield from _clocks(*([clock for record in run.records for clock in record.clocks] for run in (base, new)))


def changed_variables(base: Mapping[str, str], new: Mapping[str, str]) -> Iterable[str]:
    """The variables of the environment that have other values, each with both."""
    for name in sorted({*base, *new}):
        before, after = base.get(name), new.get(name)
        if before != after and not (name in INDUCTORS and None in (before, after)):
            yield f"{name} is {_shown(before)} and {_shown(after)}"


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def _differing(base: dict[str, object], new: dict[str, object]) -> Iterable[str]:
    for name in base:
        if name in new and base[name] is not None and new[name] is not None and base[name] != new[name]:
            yield f"{name} {base[name]} and {new[name]}"


def _of_trace(run: LoadedRun) -> dict[str, object]:
    metadata = run.traces[0].metadata if run.traces else {}
    log = run.compilation.torch if run.compilation else None
    manifest = run.manifest.environment.torch if run.manifest else None
    driver = metadata.get("cuda_driver_version")
    return {"torch": manifest or log, "CUDA runtime": metadata.get("cuda_runtime_version"), "driver": driver}


def _of_environment(environment: Environment) -> dict[str, object]:
    drivers = ", ".join(sorted({device.driver for device in environment.devices if device.driver}))
    return {
        "torch": environment.torch, "triton": environment.triton, "CUDA": environment.cuda,
        "ROCm": environment.rocm, "driver": drivers or None, "Python": environment.python or None,
        "CPU": environment.cpu or None, "CPU cores": environment.cpu_count or None,
        "host": environment.host or None,
    }  # fmt: skip


def busy(which: str, load: float | None, cores: int | None) -> Iterable[str]:
    """A sentence where a machine had more load than cores: its steps are late for reasons outside of them."""
    if load is not None and cores and load > cores:
        yield f"the machine was busy when {which} was recorded: a load of {load:.1f} on {cores} cores"


def _recorded(options: dict[str, object]) -> dict[str, object]:
    """Options that slow a recording down."""
    words = ("shapes", "memory", "flops", "whole")
    return {f"recorded with {name}:": options[name] for name in words if name in options}


def _clocks(base: list[ClockSample], new: list[ClockSample]) -> Iterable[str]:
    rates = [[clock.sm_clock_mhz for clock in found if clock.sm_clock_mhz] for found in (base, new)]
    if all(rates):
        before, after = (median([float(rate) for rate in found]) for found in rates)
        if abs(before - after) > CLOCKS * max(before, after):
            yield f"SM clocks of {before:,.0f} and {after:,.0f} MHz"
    for words, unit, read in LIMITS:
        limits = [{limit for clock in found if (limit := read(clock))} for found in (base, new)]
        if all(limits) and limits[0] != limits[1]:
            lowest, other = (min(found) for found in limits)
            yield f"{words} {lowest:,.0f} and {other:,.0f} {unit}"
    reasons = [
        {reason for clock in found for reason in clock.throttle_reasons} - {IDLE} for found in (base, new)
    ]
    for reason in sorted(reasons[0] ^ reasons[1]):
        yield f"the device was throttled in one of them: {reason}"
