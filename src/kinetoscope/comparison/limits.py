"""Limits of tests: what a piece of a program may do at most, and what did more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from kinetoscope import numbers
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.memo import remembered
from kinetoscope.comparison.account import recorded_account
from kinetoscope.comparison.contributors import contributors, described
from kinetoscope.comparison.counts import COUNTED, counted_rank, counts
from kinetoscope.comparison.gates import AMOUNT, DEVICE_TIME, UNITS
from kinetoscope.comparison.places import line_of, source
from kinetoscope.errors import UsageError, meant
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import LoadedRun

PAGEABLE = "no_pageable_copies"
NAMES = (*(f"max_{name}" for name in COUNTED), f"max_{DEVICE_TIME}", PAGEABLE)
# The rules whose findings say why there are so many, and what to do.
RULES = {
    "syncs": ("sync-in-step",),
    "graph_breaks": ("graph-break", "frame-not-compiled"),
    "compile_failures": ("frame-not-compiled", "recompile-limit"),
    "recompilations": ("recompilation", "recompile-limit"),
    "pageable_copies": ("pageable-copy",),
    "copies": ("pageable-copy", "hidden-device-copy", "copies-inside-ops"),
    "launches": ("many-tiny-kernels", "optimizer-not-fused", "overhead-bound"),
    "eager_kernels": ("unfused-elementwise", "eager-remainder"),
}
SHOWN = 3
# What a device, or the host's waiting for it, is counted by.
OF_DEVICES = frozenset({*(name for name, counted in COUNTED.items() if counted.of_device), DEVICE_TIME})
# Whose lines only Python tells; those of the compiler's are in its log.
OF_LINES = OF_DEVICES - {"peak_memory"} | {"ops", "graph_calls"}


class Broken(Struct, frozen=True):
    """A limit that was exceeded: the value, and the causes, a line each."""

    limit: str
    words: str
    why: tuple[str, ...]


def broken(run: LoadedRun, wanted: Mapping[str, object]) -> list[Broken]:
    """The limits that a run exceeds; those that cannot be judged count as exceeded, but for those of a device
    where there is none (see ``uncounted``). Raises UsageError where there is no such limit, or its value is
    no amount.

    ``wanted``: ``max_launches=40``, ``max_peak_memory="2GB"``, ``max_device_time="3 ms"``,
    ``no_pageable_copies=True``; of the usual step, or of all that was recorded where there are not several.
    """
    run, found = whole(run), list[Broken]()
    for limit, name, there in _counted(run, wanted):
        most = 0.0 if limit == PAGEABLE else amount(limit, wanted[limit])
        text = f"{limit}={wanted[limit]!r}"
        if there is None:
            found.append(Broken(text, f"cannot be judged: {_unknown(name)}", ()))
        elif there > most:
            found.append(Broken(text, _value(name, there), tuple(_why(run, name))[:SHOWN]))
    return found


def amounts(run: LoadedRun, wanted: Mapping[str, object]) -> list[str]:
    """Each amount that was counted, with its limit: ``launches 37 of 40``."""
    return [
        f"{name} {_amount(name, there)} of {0 if limit == PAGEABLE else wanted[limit]}"
        for limit, name, there in _counted(whole(run), wanted)
        if there is not None
    ]


def _counted(run: LoadedRun, wanted: Mapping[str, object]) -> Iterable[tuple[str, str, float | None]]:
    """The limits that are judged, each with the name of its quantity and how much of it there is."""
    counted: dict[str, float | None] = {**counts(run), DEVICE_TIME: _device_time(run)}
    left_out = uncounted(run, wanted)
    for limit, name in zip(wanted, checked_names(wanted), strict=True):
        if limit not in left_out and (limit != PAGEABLE or wanted[limit]):
            yield limit, name, counted[name]


@remembered
def whole(run: LoadedRun) -> LoadedRun:
    """The run without a lone step's mark: what stands before it is the test's as well."""
    if all(len(trace.steps) != 1 for trace in run.traces):
        return run
    traces = (
        replace(trace, steps=trace.steps.clear()) if len(trace.steps) == 1 else trace for trace in run.traces
    )
    return replace(run, traces=tuple(traces))


def checked_names(wanted: Mapping[str, object]) -> list[str]:
    """The quantities that limits are of. Raises UsageError where there is no such limit or amount."""
    for limit, given in wanted.items():
        if limit not in NAMES:
            raise UsageError(f"there is no limit {limit!r}", hint=meant(limit, NAMES))
        if limit != PAGEABLE:
            amount(limit, given)
    return ["pageable_copies" if limit == PAGEABLE else limit.removeprefix("max_") for limit in wanted]


def uncounted(run: LoadedRun, wanted: Mapping[str, object]) -> list[str]:
    """The limits of what a device does, where there is none: nothing of theirs was counted."""
    manifest = run.manifest
    devices = manifest is not None and manifest.environment.devices
    if devices or any(trace.devices for trace in run.traces):
        return []
    return [limit for limit, name in zip(wanted, checked_names(wanted), strict=True) if name in OF_DEVICES]


def amount(limit: str, given: object) -> float:
    """A number, or a text with a unit, in bytes or µs. Raises UsageError where ``given`` is neither."""
    match = re.fullmatch(AMOUNT, str(given))
    if isinstance(given, bool) or match is None or match[2] not in UNITS:
        raise UsageError(f"{given!r} is no amount", where=limit, hint='a number, or "2GB", "3 ms"')
    return float(match[1]) * UNITS[match[2]]


def _device_time(run: LoadedRun) -> float | None:
    own = recorded_account(run)
    return own.busy_us if own is not None and own.on_device else None


def _unknown(name: str) -> str:
    return "no device worked" if name == DEVICE_TIME else f"nothing counts the {COUNTED[name].words}"


def _value(name: str, there: float) -> str:
    if name == DEVICE_TIME:
        return f"the device was busy for {_amount(name, there)}"
    return f"{COUNTED[name].words}: {_amount(name, there)}"


def _amount(name: str, there: float) -> str:
    return numbers.time(there) if name == DEVICE_TIME else numbers.quantity(there, COUNTED[name].unit)


def _why(run: LoadedRun, name: str) -> Iterable[str]:
    for finding in find(run):
        if finding.rule in RULES.get(name, ()):
            place = f" ({finding.source})" if finding.source else ""
            yield f"{finding.rule}: {finding.title}{place}. {finding.advice}"
    if name == DEVICE_TIME:
        yield from _longest(run)
        return
    trace = counted_rank(run)
    of_steps = trace is not None and len(trace.steps) > 0
    for one in contributors(run, name).values():
        yield _line(described(name, None, one, of_steps=of_steps), line_of(run, one))


def _longest(run: LoadedRun) -> Iterable[str]:
    if (own := recorded_account(run)) is None:
        return
    rows = own.launches.group_by("name", maintain_order=True).agg(pl.col("op").first(), pl.col("us").sum())
    for kernel, op, us in rows.sort("us", descending=True).iter_rows():
        yield _line(f"{short_name(kernel)}, {numbers.time(us)} per step", source(own, kernel, op))


def _line(words: str, place: str | None) -> str:
    return words + (f" ({place})" if place else "")
