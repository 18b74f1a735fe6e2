"""Findings that only one of two runs has since the program changed, and not since a rule's limit lies between
two measurements of the same work."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import polars as pl

from kinetoscope.analysis.origins.attribution import belonging
from kinetoscope.comparison.account import Account
from kinetoscope.comparison.changes import OFTEN
from kinetoscope.comparison.step_change import A_RUN, OF_TWO_RUNS
from kinetoscope.findings.evidence import SHOWN_EVENTS
from kinetoscope.findings.model import Finding
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import LoadedRun

Accounts = tuple[Account, Account]
Work = tuple[str, str]  # a kernel and the op that launched it


def changed_findings(
    runs: tuple[LoadedRun, LoadedRun], accounts: Accounts | None
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """The findings of either run alone, by rule and subject (numbers in it are not distinguished), but for
    those of device work that the other run does in about the same time without the finding."""
    base, new = ([finding for finding in find(run) if finding.severity != "info"] for run in runs)
    known = [set(map(_key, side)) for side in (base, new)]
    gone = (finding for finding in base if _key(finding) not in known[1])
    come = (finding for finding in new if _key(finding) not in known[0])
    if accounts is None:
        return tuple(gone), tuple(come)
    return (
        tuple(finding for finding in gone if not _is_same_work(finding, *accounts)),
        tuple(finding for finding in come if not _is_same_work(finding, *accounts[::-1])),
    )


def _key(finding: Finding) -> tuple[str, str]:
    return finding.rule, re.sub(r"\d+", "#", finding.subject)


def _is_near(one: float, other: float) -> bool:
    """Whether two times of the device differ by no more than in two runs of one program."""
    return min(one, other) > 0 and abs(math.log(one / other)) <= OF_TWO_RUNS * A_RUN


def _is_same_work(finding: Finding, own: Account, other: Account) -> bool:
    """Whether the other run launches the device work that a finding would shorten as often, and it takes as
    long there. Of findings on anything else, as on waits of the host, that is unknown."""
    if not finding.saving.freed_share or finding.rank != own.trace.rank:
        return False
    work = _work(finding, own)
    sides = [_launched(one, work) for one in (own, other)]
    return bool(work) and all(
        name in sides[0]
        and name in sides[1]
        and abs(sides[1][name][0] - sides[0][name][0]) <= OFTEN * sides[0][name][0]
        and _is_near(sides[0][name][1], sides[1][name][1])
        for name in work
    )


def _work(finding: Finding, own: Account) -> set[Work]:
    """The work that the evidence shows; empty where it shows but a part, or events of the host."""
    events = [event for one in finding.evidence for event in one.events]
    device = own.trace.device_events
    ids = device.filter(pl.col("event").is_in(events))["id"]
    shown = belonging(own.run).filter(pl.col("rank") == own.trace.rank, pl.col("id").is_in(ids.implode()))
    work = {(str(name), str(op)) for name, op in shown.select("name", "op_name").iter_rows()}
    is_cut = any(len(one.events) >= SHOWN_EVENTS for one in finding.evidence)
    return set() if len(ids) < len({*events}) or (is_cut and len(work) > 1) else work


def _launched(one: Account, work: set[Work]) -> Mapping[Work, tuple[float, float]]:
    """Launches and time (µs) per step of such work."""
    sums = one.launches.group_by("name", "op_name", maintain_order=True).agg(pl.col("launches", "us").sum())
    return {(name, op): (often, us) for name, op, often, us in sums.iter_rows() if (name, op) in work}
