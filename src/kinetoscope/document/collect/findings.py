"""Findings as rows, with the measurements of their savings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import polars as pl
from msgspec.structs import asdict

from kinetoscope.analysis.memory.headroom import lacking
from kinetoscope.analysis.memory.peak import histories
from kinetoscope.analysis.ranks.comparison import RankComparison
from kinetoscope.analysis.time.window import window
from kinetoscope.document import FindingRow, FindingsListing, Report
from kinetoscope.document.collect.replay import longest
from kinetoscope.document.collect.rows import row
from kinetoscope.findings import commands, experience, registry, savings
from kinetoscope.findings.model import Finding, Proof
from kinetoscope.findings.registry import find, rules
from kinetoscope.proof.measured import MeasuredSaving, Measurements, measurements
from kinetoscope.recording import trust
from kinetoscope.sources.run import LoadedRun

MORE = 1.01  # savings that differ by less are equal


def listing(run: LoadedRun, later: LoadedRun | None = None) -> FindingsListing:
    """All findings, and what a ``later`` recording shows of them. Raises InputError where those do not
    compare."""
    proven = measurements(run, later)
    rows, replayed = findings(run, proven), longest(run)
    return _listing(run, proven, rows, replayed.error if replayed is not None else 0.0)


def of_report(run: LoadedRun, report: Report) -> FindingsListing:
    """The listing of a run whose report is known."""
    error = report.replay.error if report.replay is not None else 0.0
    return _listing(run, measurements(run), report.findings, error)


def _listing(
    run: LoadedRun, proven: Measurements, rows: list[FindingRow], replay_error: float
) -> FindingsListing:
    return FindingsListing(
        findings=rows,
        unread=[*run.unread, *proven.unread],
        after=proven.after,
        start_us=min((window(trace).start_ns for trace in run.traces), default=0) / 1000,
        replay_error=replay_error,
        unit="step" if any(len(trace.steps) for trace in run.traces) else "recording",
    )


def findings(run: LoadedRun, proven: Measurements) -> list[FindingRow]:
    """All findings: those that save most first, with what was measured of them."""
    found = find(run)
    kernels, below = _kernels(run, found), _stands_below(found)
    return [
        _finding(run, finding, proven.of(finding), kernels, reason)
        for finding, reason in zip(found, below, strict=True)
    ]


def compared(ranks: RankComparison) -> list[FindingRow]:
    rows = [_finding(LoadedRun(()), one, None, {}, None) for one in registry.compared(ranks)]
    return [msgspec.structs.replace(row, of_ranks=True, ranks=ranks.verdict.ranks) for row in rows]


def _stands_below(found: Sequence[Finding]) -> list[str | None]:
    """Why a finding stands below one that saves less; None where it does not."""
    reasons: list[str | None] = []
    least = math.inf
    for finding in found:
        us = finding.remaining.saving_us
        if us <= least * MORE:
            reason = None
        elif not experience.helps(finding.rule):
            reason = "its advice has cost time in some programs, so it stands below advice that never did"
        else:
            reason = "it stands below what may be its cause, or need not run"
        reasons.append(reason)
        if finding.saving_bytes == 0 and rules()[finding.rule].role != "root":
            least = min(least, us)
    return reasons


def _kernels(run: LoadedRun, found: Sequence[Finding]) -> Mapping[tuple[int, int], str]:
    """The name of the device work that evidence points at, by rank and event."""
    wanted = {event for finding in found for item in finding.evidence for event in item.events}
    shown = pl.Series(sorted(wanted), dtype=pl.UInt32)
    return {
        (trace.rank, event): name
        for trace in run.traces
        for event, name in trace.device_events.filter(pl.col("event").is_in(shown.implode()))
        .select("event", pl.col("name").cast(pl.String))
        .iter_rows()
    }


def _lacks(run: LoadedRun, proof: Proof | None) -> str | None:
    """The file or folder that the command of a proof needs and that is not here."""
    if proof is None or run.folder is None:
        return None
    if proof.kernel is not None:
        needed = run.folder / trust.GENERATED
    else:
        words = commands.program(run.manifest) if run.manifest else None
        if words is None or words[0] == "-m":
            return None
        needed = Path(words[0])
    return None if needed.exists() else str(needed)


def _is_enough(run: LoadedRun, finding: Finding) -> bool | None:
    """Whether an allocation of its rank that failed lacked no more than a finding frees."""
    if not finding.saving_bytes:
        return None
    failed = (lacking(one.history) for one in histories(run).found if one.rank == finding.rank)
    return next((finding.saving_bytes >= needed for needed in failed if needed is not None), None)


def _finding(
    run: LoadedRun,
    finding: Finding,
    measured: MeasuredSaving | None,
    kernels: Mapping[tuple[int, int], str],
    stands_below: str | None,
) -> FindingRow:
    shown = (kernels.get((finding.rank, event)) for item in finding.evidence for event in item.events)
    known = asdict(measured) if measured else {}
    return row(
        FindingRow,
        finding,
        **asdict(finding.remaining),
        **{f"measured_{name}": value for name, value in known.items()},
        saving_alone_us=finding.saving.us,
        saving_is_enough=_is_enough(run, finding),
        stands_below=stands_below,
        above=[finding.remaining.also] if finding.remaining.also else [],
        kernels=list(dict.fromkeys(name for name in shown if name)),
        of_the_profiler=finding.saving == savings.OF_THE_PROFILER,
        saving_basis=finding.saving.basis,
        saving_condition=finding.saving.condition or None,
        evidence=list(finding.evidence),
        saving_on_critical_path=finding.saving.on_critical_path,
        proof=finding.proof.command if finding.proof else None,
        proof_lacks=_lacks(run, finding.proof),
        lines=list(finding.lines),
        ranks=list(finding.ranks) or [finding.rank],
        phases=list(finding.phases),
    )
