"""Findings of a server by the phase of its steps, and what each saves of such a step: advice may be worth
much where prompts are read and nothing where tokens are generated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import polars as pl
from msgspec.structs import replace

from kinetoscope.analysis.replay.change import ReplayChange
from kinetoscope.analysis.serving.rows import Serving, ServingFinding
from kinetoscope.analysis.serving.steps import marks, own, steps
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rows import FindingPhase

NO_STEP = "none"  # work and host time that belongs to no step
SECOND_US = 1e6
WORTH_A_ROW = ("high", "medium", "low")  # what only informs is in the table where a rule of servers says it


def phased(view: RankView, finding: Finding) -> Finding:
    """The finding with what remains of its saving by phase: in the proportions in which the replay gains by
    the part of the change that is in one phase alone; where it gains nothing, of the time of these parts."""
    if marks(view.trace).table.is_empty() or (counts := _steps(view)).is_empty():
        return finding
    shares = finding.by_phase or _shares(view, finding)
    number = dict(counts.iter_rows())
    left, whole_us = finding.remaining, finding.remaining.saving_us * view.steps
    found = [
        FindingPhase(
            phase=phase,
            steps=number.get(phase, 0),
            share=share,
            saving_us=whole_us * share / number[phase] if phase in number else 0.0,
            saving_us_per_s=left.share_of_step * share * SECOND_US,
        )
        for phase, share in sorted(shares.items(), key=lambda one: (-one[1], one[0]))
    ]
    return replace(finding, phases=tuple(found))


def rows_of(found: Serving, findings: list[Finding]) -> list[ServingFinding]:
    """A row a phase and finding: phases in the order of the table of steps, in each what saves most first."""
    order = list(dict.fromkeys(row.phase for row in found.steps))
    listed = [
        ServingFinding(
            phase=one.phase,
            rule=finding.rule,
            subject=finding.subject,
            severity=finding.severity,
            title=finding.title,
            advice=finding.advice,
            steps=one.steps,
            saving_us=one.saving_us,
            saving_us_per_s=one.saving_us_per_s,
        )
        for finding in findings
        for one in finding.phases
        if one.phase in order and (finding.severity in WORTH_A_ROW or finding.by_phase)
    ]
    return sorted(listed, key=lambda row: (order.index(row.phase), -row.saving_us_per_s))


def _steps(view: RankView) -> pl.DataFrame:
    """How many ``steps`` of each ``phase`` have their work in what savings are of."""
    start, end = view.bounds
    inside = pl.col("start_ns").is_between(start, end)
    return steps(view.trace).filter(inside).group_by("phase", maintain_order=True).agg(steps=pl.len())


def _shares(view: RankView, finding: Finding) -> Mapping[str, float]:
    """By phase the share of a finding's saving; of one without a change that of what its evidence shows."""
    change = (finding.saving.together or {}).get(view.rank, finding.saving.change)
    amounts = _amounts(view, change)
    if amounts.is_empty():
        amounts = _shown(view, finding)
    time_ns = {phase: ns for phase, ns in amounts.iter_rows() if ns > 0}
    if len(time_ns) < 2 or not finding.remaining.saving_us:
        return _normalised(time_ns)
    gains = {phase: view.would_save(_within(view, change, phase)) for phase in time_ns}
    return _normalised({phase: us for phase, us in gains.items() if us > 0} or time_ns)


def _normalised(parts: Mapping[str, float]) -> Mapping[str, float]:
    total = sum(parts.values())
    return {phase: part / total for phase, part in parts.items()}


def _amounts(view: RankView, change: ReplayChange) -> pl.DataFrame:
    """``phase`` and the nanoseconds of device and host that a change takes away there."""
    device = change.device.group_by("id").agg(pl.col("saved_ns").max())
    waits = view.trace.host_events[change.waits]
    parts = [
        device.select(_phase_of_work(view, device["id"]), ns="saved_ns"),
        change.host.select(
            _phase_of_host(view, change.host["start_ns"]),
            ns=(pl.col("end_ns") - pl.col("start_ns")) * pl.col("share"),
        ),
        waits.select(_phase_of_host(view, waits["start_ns"]), ns=pl.col("duration_ns").cast(pl.Float64)),
    ]
    return _summed(pl.concat(parts))


def _shown(view: RankView, finding: Finding) -> pl.DataFrame:
    """``phase`` and the nanoseconds of the device's events that a finding's evidence shows."""
    events = {event for item in finding.evidence for event in item.events}
    device = view.trace.device_events.filter(pl.col("event").is_in(list(events)))
    phase = _phase_of_work(view, device["id"])
    return _summed(device.select(phase, ns=pl.col("duration_ns").cast(pl.Float64)))


def _summed(parts: pl.DataFrame) -> pl.DataFrame:
    return parts.group_by("phase").agg(pl.col("ns").sum()).sort("phase")


def _within(view: RankView, change: ReplayChange, phase: str) -> ReplayChange:
    of_host = partial(_phase_of_host, view)
    starts = view.trace.host_events["start_ns"].gather(change.waits)
    return ReplayChange(
        device=change.device.filter(_phase_of_work(view, change.device["id"]) == phase),
        host=change.host.filter(of_host(change.host["start_ns"]) == phase),
        waits=change.waits.filter(of_host(starts) == phase),
        pause_ns=change.pause_ns,
        batch_share=change.batch_share,
    )


def _phase_of_work(view: RankView, ids: pl.Series) -> pl.Series:
    """The phase of the step that launched each piece of device work."""
    known = own(view.trace).join(marks(view.trace).table, on="step").select("id", "phase")
    found = pl.DataFrame({"id": ids}).join(known, on="id", how="left", maintain_order="left")
    return found["phase"].fill_null(NO_STEP).alias("phase")


def _phase_of_host(view: RankView, starts: pl.Series) -> pl.Series:
    """The phase of the step in which host time begins; what follows a step until the next one is its own."""
    table = marks(view.trace).table.sort("start_ns")
    row = table["start_ns"].search_sorted(starts, side="right").cast(pl.Int64) - 1
    return table["phase"].gather(row.set(row < 0, None)).fill_null(NO_STEP).alias("phase")
