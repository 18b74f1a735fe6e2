"""Many recordings to the document of their history."""

from __future__ import annotations

import math
from pathlib import Path

from kinetoscope.analysis.run import Run
from kinetoscope.comparison.history import Point, history, recordings
from kinetoscope.errors import InputError
from kinetoscope.report.collect.rows import row
from kinetoscope.report.document.history import History, HistoryRow
from kinetoscope.report.progress import load_shown


def gathered(folder: Path) -> History:
    """What stands in a folder; what cannot be read is left out with a reason.

    Raises:
        InputError: nothing in it can be read.
    """
    runs: list[tuple[str, Run]] = []
    unread: list[str] = []
    for path in recordings(folder):
        found = _read(path)
        if isinstance(found, InputError):
            unread.append(f"{path.name} was left out: {found.what}")
        else:
            runs.append((path.name, found))
    if not runs:
        what = unread[0] if unread else "there is no recording or trace in it"
        raise InputError(
            what, where=str(folder), mend="record into it: kinetoscope run --out DIR/NAME script.py"
        )
    return History(rows=[_row(point) for point in history(runs)], unread=unread)


def _read(path: Path) -> Run | InputError:
    try:
        return load_shown([str(path)])
    except InputError as error:
        return error


def _row(point: Point) -> HistoryRow:
    changed = point.changed
    bounds = [None, None, None] if changed is None else [_share(bound) for bound in changed]
    return row(
        HistoryRow,
        point,
        devices=list(point.devices),
        findings=list(point.findings),
        new_findings=list(point.new_findings),
        counts_changed=list(point.counts_changed),
        change=bounds[0],
        change_low=bounds[1],
        change_high=bounds[2],
    )


def _share(ratio: float) -> float | None:
    return ratio - 1 if math.isfinite(ratio) else None
