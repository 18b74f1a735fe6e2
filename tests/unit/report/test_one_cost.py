"""What a late rank, a slow link or turns cost is one figure, wherever it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from broad import broad
from job_sets import CUBE, DDP, FSDP, HSDP, PIPELINE, TENSOR
from job_simulator import Fault, Job, recorded
from kinetoscope import numbers
from kinetoscope.analysis.ranks.comparison import compare, comparison
from kinetoscope.analysis.ranks.parts import part
from kinetoscope.document.collect.ranks import listing
from kinetoscope.document.collect.report import build
from kinetoscope.sources.run import load
from kinetoscope.views import ranks as rank_lines
from kinetoscope.views.page import sentences

OTHERS_US = 2_500  # that a loop of these saves which does not wait for its device
SMALL = {"layers": 4, "steps": 3}
JOBS = [
    replace(DDP, fault=Fault("device", (5,), 1.3), seed=31, **SMALL),
    replace(FSDP, fault=Fault("kernel", (3,), 2.0), seed=32, **SMALL),
    replace(HSDP, fault=Fault("link", (4, 5, 6, 7), 4.0), seed=33, **SMALL),
    replace(TENSOR, fault=Fault("loader", (1,), 5000.0), seed=34, layers=4),
    replace(CUBE, fault=Fault("stall", (5,), 4000.0), seed=35, **SMALL),
    replace(DDP, fault=Fault("garbage", (6,), 5000.0), seed=36, **SMALL),
    replace(PIPELINE, fault=Fault("device", (4, 5), 1.25), seed=37, **SMALL),
    replace(PIPELINE, fault=Fault("host", (2, 3), 26.0), seed=38, **SMALL),
]

ALWAYS = [JOBS[at] for at in (0, 2, 3, 5, 7)]


def _named(job: Job) -> str:
    return f"{job.name}, {job.fault.what}"


@pytest.mark.parametrize("job", broad(JOBS, ALWAYS), ids=_named)
def test_headline_findings_and_page_tell_the_same_cost(job: Job, tmp_path: Path) -> None:
    for rank, trace in recorded(job):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    run = load(tmp_path)
    report = build(run)
    assert report.ranks is not None
    verdict = report.ranks.verdict
    alone = listing(compare(map(part, run.traces)), every=True, hangs=(), unread=())
    assert alone.ranks.verdict == verdict == comparison(run).verdict
    if verdict.cost_us is None:
        assert not [row for row in report.findings if row.rule == "straggler" and row.severity == "high"]
        return
    assert verdict.cost_share is not None
    said = f"{numbers.time(verdict.cost_us)} longer, {numbers.percent(verdict.cost_share)} of it"
    assert said in rank_lines.verdict(report.ranks)
    shown = sentences(report, [str(tmp_path)])
    assert numbers.together(said) in shown.headline
    place, first = next((at, row) for at, row in enumerate(report.findings) if row.rule == "straggler")
    assert first.saving_alone_us == verdict.cost_us
    assert first.saving_us <= verdict.cost_us
    if place == 0:
        assert first.saving_us == verdict.cost_us
        assert first.share_of_step == pytest.approx(verdict.cost_share, rel=0.01)
    parts = "".join(str(part) for part in shown.savings[place])
    assert numbers.together(numbers.time(verdict.cost_us)) in parts
    # What explains it has no more than what is left of it.
    assert sum(row.saving_us for row in report.findings) < 1.1 * verdict.cost_us + OTHERS_US
    assert alone.findings is not None
    assert alone.findings.findings[0].saving_us == verdict.cost_us
