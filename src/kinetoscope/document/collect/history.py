"""Many recordings to the document of their history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from kinetoscope.comparison.counts import COUNTED
from kinetoscope.comparison.history import History, HistoryRow, history
from kinetoscope.document.report import SCHEMA
from kinetoscope.errors import InputError
from kinetoscope.recording.manifest import UNREADABLE
from kinetoscope.sources.paths import runs_in
from kinetoscope.sources.run import LoadedRun, load_warning
from kinetoscope.statistics.distribution import median


def gathered(folder: Path, read: Callable[[str], LoadedRun] = load_warning) -> History:
    """The history of what stands in a folder, each run loaded with ``read``; what cannot be read is left out
    with a reason. Raises InputError where nothing in it can be read."""
    runs: list[tuple[str, LoadedRun]] = []
    reported: list[HistoryRow] = []
    unread: list[str] = []
    if not folder.is_dir():
        raise InputError("that is no folder", where=str(folder), hint="name a folder that holds recordings")
    for path in runs_in(folder):
        if report := _reported(path):
            reported.append(report)
            continue
        try:
            runs.append((path.name, read(str(path))))
        except InputError as error:
            unread.append(f"{path.name} was left out: {error.what}")
    if not runs and not reported:
        what = unread[0] if unread else "there is no recording or trace in it"
        raise InputError(
            what, where=str(folder), hint="record into it: kinetoscope run --out DIR/NAME script.py"
        )
    return History(rows=history(runs, reported), unread=unread)


class _Median(msgspec.Struct):
    median: float


class _Own(msgspec.Struct):
    step_us: _Median


class _Step(msgspec.Struct):
    duration_us: float
    busy_us: float
    launches: int


class _Named(msgspec.Struct):
    name: str | None = None


class _Found(msgspec.Struct):
    rule: str
    severity: str


class _Report(msgspec.Struct):
    """The part of a report (`report -o x.json`) that a history needs."""

    schema: str
    as_it_runs: _Own | None = None
    steps: list[_Step] = []
    devices: list[_Named] = []
    findings: list[_Found] = []


def _reported(path: Path) -> HistoryRow | None:
    """The row of a report that was written before; None for other files."""
    if path.suffix != ".json" or not path.is_file() or SCHEMA.encode() not in path.read_bytes()[:200]:
        return None
    try:
        report = msgspec.json.decode(path.read_bytes(), type=_Report)
    except UNREADABLE:
        return None
    lengths, own = [step.duration_us for step in report.steps], report.as_it_runs
    recorded = median(lengths) if lengths else None
    launches = [float(step.launches) for step in report.steps]
    return HistoryRow(
        name=path.name,
        created="",
        devices=sorted({device.name for device in report.devices if device.name}),
        basis=None if recorded is None and own is None else "as recorded" if own is None else "as it runs",
        step_us=recorded if own is None else own.step_us.median,
        busy_us=median([step.busy_us for step in report.steps]) if report.steps else None,
        steps=len(lengths),
        counts={**dict.fromkeys(COUNTED), "launches": median(launches) if launches else None},
        findings=sorted({row.rule for row in report.findings if row.severity != "info"}),
    )
