"""The replay of operations against the what-if analysis of the OSDI 2025 paper, on a job that its authors
published with what they found: 4 stages of 2 ranks, 32 steps, the last stage too long."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import polars as pl
import pytest

from cases.straggler_artifact import STAGE, Job, Op, of_reports
from kinetoscope.analysis.collectives.recorded import ranges

FIXTURE = Path(__file__).parents[2] / "fixtures" / "osdi2025" / "trace-ST.parquet"


@pytest.fixture(scope="module")
def job() -> Job:
    return Job(pl.read_parquet(FIXTURE))


# What the authors' result-ST.json, ms-ST.json and mw-ST.json hold.
RECORDED, IDEAL = 2.172696813310722, 1.843295824372035
BY_SORT = {
    "forward-compute": 1.0874989663025318, "backward-compute": 1.074156472437866,
    "embedding-grads-all-reduce": 1.0095504024370303, "grads-reduce-scatter": 1.00266695254219,
    "optimizer-clip-main-grad": 1.0023506224771044, "optimizer": 1.0014767395023902,
    "params-all-gather": 1.0011307740825817, "layernorm-grads-all-reduce": 1.0000026919173086,
    "gc": 1.0, "backward-pp-comm": 0.999992994223364, "forward-pp-comm": 0.9998586213458615,
}  # fmt: skip
BY_STAGE = {0: 0.9980450635272368, 1: 0.9830562530894704, 2: 0.9824931309511952, 3: 1.2322559543157936}
BY_DP_RANK = {0: 1.1730828198099532, 1: 1.1778704237064905}
MS, MW = 1.2193563788811714, 0.031404269124045224


def test_the_step_with_and_without_stragglers_is_the_papers(job: Job) -> None:
    assert job.step(lambda op: False) == pytest.approx(RECORDED, abs=1e-6)
    assert job.step(lambda op: True) == pytest.approx(IDEAL, abs=1e-6)


def test_slowdowns_by_operation_stage_and_rank_are_the_papers(job: Job) -> None:
    """How much longer the step without stragglers is, with those of one sort, stage or rank as recorded."""

    def slowdown(is_kept: Callable[[Op], bool]) -> float:
        return job.step(lambda op: not is_kept(op)) / job.step(lambda op: True)

    def sort(op: Op) -> str:
        return re.sub("-(send|recv)$", "-pp-comm", op.sort)

    by_sort = {name: slowdown(lambda op, name=name: sort(op) == name) for name in BY_SORT}
    by_stage = {stage: slowdown(lambda op, stage=stage: op.stage == stage) for stage in BY_STAGE}
    by_dp = {dp: slowdown(lambda op, dp=dp: op.dp == dp) for dp in BY_DP_RANK}
    assert by_sort == pytest.approx(BY_SORT, abs=1e-5)
    assert by_stage == pytest.approx(BY_STAGE, abs=1e-5)
    assert by_dp == pytest.approx(BY_DP_RANK, abs=1e-5)


def test_the_share_of_the_last_stage_and_of_the_slowest_ranks_is_the_papers(job: Job) -> None:
    def share(is_fixed: Callable[[Op], bool]) -> float:
        return (RECORDED - job.step(is_fixed)) / (RECORDED - IDEAL)

    assert share(lambda op: op.stage == 3) == pytest.approx(MS, abs=1e-5)
    assert share(lambda op: (op.dp, op.stage) == (1, 3)) == pytest.approx(MW, abs=1e-5)


def test_the_mean_slowdown_from_kernel_times_alone_is_the_papers(job: Job) -> None:
    """Reports know nothing of operations but when kernels ran, and take the mean of each step by itself."""
    found = [of_reports(job, step) for step in list(job.spans)[::4]]
    assert all(abs(one.replayed_ns / one.recorded_ns - 1) < 1e-3 for one in found)
    assert fmean(one.replayed_ns / one.ideal_ns for one in found) == pytest.approx(RECORDED / IDEAL, abs=0.01)
    for sort in ("forward", "backward"):
        slowdown = fmean(one.by_sort[sort] for one in found)
        assert slowdown == pytest.approx(BY_SORT[f"{sort}-compute"], abs=0.01)
    for stage, theirs in BY_STAGE.items():
        ranks = stage * STAGE, stage * STAGE + 1
        assert fmean(one.by_stage[ranges(ranks)] for one in found) == pytest.approx(theirs, abs=0.015)
    for dp, theirs in BY_DP_RANK.items():
        ranks = tuple(stage * STAGE + dp for stage in BY_STAGE)
        assert fmean(one.by_worker[ranges(ranks)] for one in found) == pytest.approx(theirs, abs=0.015)
