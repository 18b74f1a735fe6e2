"""Many recordings in order of time: the time of their steps, and where it changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import pairwise

import msgspec

from kinetoscope.analysis.events.torch_names import BASE
from kinetoscope.analysis.health.verdict import losses
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.counts import Counts, counts
from kinetoscope.comparison.programs import in_series, program
from kinetoscope.comparison.step_change import samples_us, step_change
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.change_points import FEWEST, change_points
from kinetoscope.statistics.intervals import Ratio


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One recording. Where the step changed, ``change`` is the share of the step before by which it did, with
    its 95 % interval; ``new_findings`` and ``counts_changed`` are against the recording before. ``lost`` has
    sentences on missing parts: an incomplete recording is in no series. ``program`` is the script or module
    (of traces that do not name it, and differ in their modules or in most of their ops, the first trace like
    it): recordings are compared with those of the same one. ``commit`` was checked out when it was recorded.
    ``drift``, of the last one of a series that changes all along, is the share from one to the next."""

    name: str
    created: str
    devices: list[str]
    basis: str | None
    step_us: float | None
    busy_us: float | None
    steps: int
    counts: Counts
    findings: list[str]
    new_findings: list[str] = []
    counts_changed: list[str] = []
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    lost: list[str] = []
    program: str | None = None
    commit: str | None = None
    drift: float | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Recordings, the oldest first, and what could not be read."""

    schema: str = "kinetoscope.history/1"
    rows: list[HistoryRow]
    unread: list[str] = []


def history(runs: Sequence[tuple[str, LoadedRun]], reported: Sequence[HistoryRow] = ()) -> list[HistoryRow]:
    """The runs by the time they were recorded at, with the points at which their steps changed. ``reported``:
    rows from reports of runs that are no longer there; they have no time, and stand by name before the
    others. With six and more, a change is one of level; with fewer, each run is compared with the one before
    as ``diff`` does. Runs of other programs, on other devices, or timed otherwise, are other series."""
    known = _named([(_row(name, run), run) for name, run in runs])
    pairs = [*((row, None) for row in reported), *((row, account(run)) for row, run in known)]
    pairs.sort(key=lambda pair: (pair[0].created, pair[0].name))
    rows = [row for row, _ in pairs]
    changed: dict[int, Ratio] = {}
    for series in _series(rows):
        if len(series) >= FEWEST:
            found = change_points([rows[place].step_us or 0.0 for place in series])
            changed |= {series[cut.at]: cut.ratio for cut in found.points}
            if found.drift is not None:
                last = series[-1]
                rows[last] = msgspec.structs.replace(rows[last], drift=found.drift - 1)
        else:
            changed |= _of_neighbours(series, [own for _, own in pairs])
    return [_compared(row, rows[:place], changed.get(place)) for place, row in enumerate(rows)]


def _row(name: str, run: LoadedRun) -> HistoryRow:
    own = account(run)
    return HistoryRow(
        name=name,
        created=_created(run),
        devices=sorted({device.name for trace in run.traces for device in trace.devices}),
        basis=None if own is None else own.basis,
        step_us=None if own is None else own.step_us,
        busy_us=own.busy_us if own is not None and own.on_device else None,
        steps=0 if own is None else len(samples_us(own)),
        counts=counts(run),
        findings=sorted({finding.rule for finding in find(run) if finding.severity != "info"}),
        lost=list(losses(run)),
        program=program(run),
        commit=run.manifest.commit if run.manifest else None,
    )


def _created(run: LoadedRun) -> str:
    """When it was recorded (ISO 8601): by the manifest, or else by the clock that a trace counts from."""
    if run.manifest is not None and run.manifest.created:
        return run.manifest.created
    trace = next(iter(run.traces), None)
    base = trace.metadata.get(BASE) if trace is not None else None
    if trace is None or not isinstance(base, int) or trace.host_events.is_empty():
        return ""
    began = datetime.fromtimestamp((base + trace.host_events["start_ns"][0]) / 1e9, timezone.utc)
    return began.isoformat(timespec="seconds")


def _named(known: Sequence[tuple[HistoryRow, LoadedRun]]) -> list[tuple[HistoryRow, LoadedRun]]:
    """The rows, where traces of several programs do not name them, with a program each."""
    known = sorted(known, key=lambda pair: (pair[0].created, pair[0].name))
    unnamed = [pair for pair in known if pair[0].program is None and pair[1].traces]
    series = in_series(run for _, run in unnamed)
    if len(set(series)) < 2:
        return [*known]
    firsts = {place: f"as {unnamed[series.index(place)][0].name}" for place in series}
    programs = {id(run): firsts[place] for (_, run), place in zip(unnamed, series, strict=True)}
    return [
        (msgspec.structs.replace(row, program=programs.get(id(run), row.program)), run) for row, run in known
    ]


def _series(rows: Sequence[HistoryRow]) -> list[list[int]]:
    """Places of rows that may be compared with each other, in order."""
    series: dict[tuple[object, ...], list[int]] = {}
    for place, row in enumerate(rows):
        if row.step_us and not row.lost:
            series.setdefault((row.program, *row.devices, row.basis), []).append(place)
    return list(series.values())


def _of_neighbours(series: Sequence[int], accounts: Sequence[Account | None]) -> dict[int, Ratio]:
    changed: dict[int, Ratio] = {}
    for before, place in pairwise(series):
        base, new = accounts[before], accounts[place]
        if base is not None and new is not None:
            step = step_change([base], [new])
            if step.verdict in ("faster", "slower"):
                changed[place] = step.ratio
    return changed


def _compared(row: HistoryRow, earlier: Sequence[HistoryRow], changed: Ratio | None) -> HistoryRow:
    like = (before for before in reversed(earlier) if not before.lost and before.program == row.program)
    last = next(like, None)
    if row.lost or last is None:
        return row
    counted = [
        name for name in ("launches", "graph_breaks", "recompilations", "syncs", "copies")
        if None not in (row.counts[name], last.counts[name]) and row.counts[name] != last.counts[name]
    ]  # fmt: skip
    bounds = [bound - 1 if math.isfinite(bound) else None for bound in changed or ()] or [None] * 3
    return msgspec.structs.replace(
        row,
        new_findings=[rule for rule in row.findings if rule not in last.findings],
        counts_changed=counted,
        change=bounds[0],
        change_low=bounds[1],
        change_high=bounds[2],
    )
