"""Many recordings in order of time: what their steps took, and where that changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kinetoscope.analysis.health.verdict import losses
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.counts import Counts, counts
from kinetoscope.comparison.step_time import samples_us, step_time
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import Run
from kinetoscope.statistics.change_points import FEWEST, change_points
from kinetoscope.statistics.intervals import Ratio


@dataclass(frozen=True)
class Point:
    """One recording. ``changed`` is set where the step changed from the ones before: new over old.

    ``lost`` says what is missing of it: such a one is in no series."""

    name: str
    created: str
    devices: tuple[str, ...]
    basis: str | None
    step_us: float | None
    busy_us: float | None
    steps: int
    counts: Counts
    findings: tuple[str, ...]
    changed: Ratio | None = None
    new_findings: tuple[str, ...] = ()
    counts_changed: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def history(runs: Sequence[tuple[str, Run]], reported: Sequence[Point] = ()) -> list[Point]:
    """The runs by the time they were recorded at, with the points at which their steps changed.

    Args:
        reported: what kept reports say of runs that are no longer there; they have no time, and stand by name
            before the others.

    With six and more, a change is one of level, that shuffled orders hardly ever show; with fewer, each run
    is held against the one before as ``diff`` does. Runs on other devices, or timed otherwise, are other
    series.
    """
    found = [(_point(name, run), account(run)) for name, run in runs]
    pairs = sorted(
        [*((point, None) for point in reported), *found], key=lambda one: (one[0].created, one[0].name)
    )
    points = [point for point, _ in pairs]
    changed: dict[int, Ratio] = {}
    for rows in _series(points):
        if len(rows) >= FEWEST:
            steps = [points[row].step_us or 0.0 for row in rows]
            changed |= {rows[cut.at]: cut.ratio for cut in change_points(steps)}
        else:
            changed |= _of_neighbours(rows, [own for _, own in pairs])
    return [_beside(point, points[:row], changed.get(row)) for row, point in enumerate(points)]


def _point(name: str, run: Run) -> Point:
    own = account(run)
    devices = sorted({device.name for trace in run.traces for device in trace.devices})
    return Point(
        name=name,
        created=run.manifest.created if run.manifest else "",
        devices=tuple(devices),
        basis=None if own is None else own.basis,
        step_us=None if own is None else own.step_us,
        busy_us=own.busy_us if own is not None and own.on_device else None,
        steps=0 if own is None else len(samples_us(own)),
        counts=counts(run),
        findings=tuple(sorted({one.rule for one in find(run) if one.severity != "info"})),
        lost=losses(run),
    )


def _series(points: Sequence[Point]) -> list[list[int]]:
    """Rows that may be compared with each other, in order."""
    found: dict[tuple[object, ...], list[int]] = {}
    for row, point in enumerate(points):
        if point.step_us and not point.lost:
            found.setdefault((point.devices, point.basis), []).append(row)
    return list(found.values())


def _of_neighbours(rows: Sequence[int], accounts: Sequence[Account | None]) -> dict[int, Ratio]:
    changed: dict[int, Ratio] = {}
    for before, row in pairwise(rows):
        base, new = accounts[before], accounts[row]
        if base is not None and new is not None:
            step = step_time([base], [new])
            if step.verdict in ("faster", "slower"):
                changed[row] = step.ratio
    return changed


def _beside(point: Point, earlier: Sequence[Point], changed: Ratio | None) -> Point:
    """A point with what it has that the one before had not."""
    complete = [one for one in earlier if not one.lost]
    if point.lost or not complete:
        return point
    last = complete[-1]
    counted = tuple(
        name for name in ("launches", "graph_breaks", "recompilations", "syncs", "copies")
        if None not in (point.counts[name], last.counts[name]) and point.counts[name] != last.counts[name]
    )  # fmt: skip
    new = tuple(rule for rule in point.findings if rule not in last.findings)
    return replace(point, changed=changed, new_findings=new, counts_changed=counted)
