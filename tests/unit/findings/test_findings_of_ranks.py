"""Findings of few ranks, findings of many, and the report's verdict: they say the same of who is slow."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from broad import broad
from job_sets import FSDP, HSDP, PIPELINE
from job_simulator import Fault, Job, recorded
from kinetoscope.analysis.ranks.comparison import comparison
from kinetoscope.document import RanksListing
from kinetoscope.document.collect.ranks import listing
from kinetoscope.findings.model import Finding
from kinetoscope.findings.registry import compared, find
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.read import read

SMALL = {"layers": 2, "steps": 3}
SETS = {
    "device": replace(FSDP, fault=Fault("device", (4,), 1.3), seed=1, **SMALL),
    "host": replace(HSDP, fault=Fault("device", (4, 5, 6, 7), 1.3), seed=3, **SMALL),
    "link": replace(HSDP, fault=Fault("link", (0, 1, 2, 3), 4.0), seed=4, **SMALL),
    "stage": replace(PIPELINE, fault=Fault("device", (2, 3), 1.3), seed=6, steps=3),
    "healthy": replace(HSDP, seed=8, **SMALL),
}
OF_RANKS = ("straggler", "collective-imbalance")


@cache
def run_of(job: Job) -> LoadedRun:
    with tempfile.TemporaryDirectory() as folder:
        paths: list[Path] = []
        for rank, trace in recorded(job):
            paths.append(Path(folder) / f"host{job.host(rank)}" / f"rank{rank}.json")
            paths[-1].parent.mkdir(exist_ok=True)
            paths[-1].write_text(json.dumps(trace))
        return LoadedRun(tuple(map(read, paths)))


def of_ranks(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.rule in OF_RANKS]


@pytest.mark.parametrize("name", broad(SETS, ("device", "link", "healthy")))
def test_few_ranks_and_many_have_the_same_findings_as_the_report_has_a_verdict(name: str) -> None:
    run = run_of(SETS[name])
    ranks = comparison(run)
    few, many = of_ranks(find(run)), compared(ranks)
    is_named = ranks.verdict.status in ("straggler", "link")
    assert is_named == (name != "healthy")
    assert [one.rule for one in many] == ["straggler"] * is_named
    assert [one.rule for one in few if one.severity != "info"][:1] == [one.rule for one in many]
    for one in many:
        (same,) = [other for other in few if other.rule == one.rule]
        assert one.advice == same.advice
        assert one.title.partition(" ")[0] == same.title.partition(" ")[0]
        assert one.saving.us == ranks.verdict.cost_us
        assert one.saving.us / 1.5 < same.saving.us < one.saving.us * 1.5


@pytest.mark.parametrize(("name", "culprit"), [("device", "Rank 4 "), ("link", "The link of ranks 0-3 ")])
def test_the_culprit_is_the_subject(name: str, culprit: str) -> None:
    run = run_of(SETS[name])
    for found in (find(run), compared(comparison(run))):
        (one,) = of_ranks(found)
        assert one.title.startswith(culprit)


def test_of_many_ranks_the_comparison_comes_first_and_its_cost_is_there_once() -> None:
    found: RanksListing = listing(comparison(run_of(SETS["host"])), every=True, hangs=[], unread=[])
    assert found.findings is not None
    (row,) = found.findings.findings  # the traces are gone: nothing is known of a single rank
    verdict = found.ranks.verdict
    assert (row.of_ranks, row.ranks, found.findings_rank) == (True, verdict.ranks, None)
    assert (row.saving_us, row.share_of_step) == (verdict.cost_us, verdict.cost_share)
