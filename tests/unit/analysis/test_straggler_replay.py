"""The replay of operations against the what-if analysis of the OSDI 2025 paper, on a job that its authors
published with what they found: 4 stages of 2 ranks, 32 steps, the last stage too long."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import polars as pl
import pytest

from kinetoscope.analysis.ranks.collectives import PAIR, TOGETHER
from kinetoscope.analysis.ranks.operations import Operation, replay
from kinetoscope.analysis.ranks.staged import Staged, staged
from kinetoscope.analysis.ranks.stretches import UPDATE
from kinetoscope.analysis.ranks.waits import waits

FIXTURE = Path(__file__).parents[2] / "fixtures" / "osdi2025" / "trace-ST.parquet"
COMPUTE = ("forward-compute", "backward-compute", "gc", "optimizer")
TAIL = (
    "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
    "optimizer-clip-main-grad", "optimizer",
)  # fmt: skip
PEERS = {"forward-recv": ("forward-send", -1), "backward-recv": ("backward-send", 1)}
CLOCKS_APART = 0.01  # seconds, by which a transfer may seem to end before it begins


class Op(NamedTuple):
    dp: int
    stage: int
    sort: str
    number: int


def met_in(op: Op, last: int) -> tuple[object, ...]:
    """One name for all that meet in it."""
    if op.sort in PEERS:
        sort, towards = PEERS[op.sort]
        return op.dp, op.stage + towards, sort, op.number
    if op.sort == "embedding-grads-all-reduce":
        return op.dp, op.sort
    if op.sort in ("params-all-gather", "grads-reduce-scatter"):
        return op.stage, op.sort, op.number
    return (op.sort,) if op.sort == "optimizer-clip-main-grad" else op


def chains(stage: list[Op]) -> Iterator[tuple[Op, Op]]:
    """Of one rank's operations in the order of their starts: which waits for which."""
    by = {(op.sort, op.number): op for op in stage}
    compute = [op for op in stage if op.sort in COMPUTE[:2]]
    yield from zip(compute[1:], compute, strict=False)
    for op in stage:
        way, _, what = op.sort.partition("-")
        if what in ("send", "recv") and op.number:
            yield op, by[op.sort, op.number - 1]
        if what == "send":
            yield op, by[f"{way}-compute", op.number]
        if what == "recv":
            yield by[f"{way}-compute", op.number], op
            if op.number:
                yield op, by[f"{way}-compute", op.number - 1]
    first = next(place for place, op in enumerate(compute) if op.sort == "backward-compute")
    if first >= 2:
        for sort in ("backward-send", "backward-recv"):
            if (sort, 0) in by:
                yield by[sort, 0], compute[first - 2]
    yield compute[0], by["params-all-gather", 0]
    tail = [compute[-1], *(by[sort, 0] for sort in TAIL if (sort, 0) in by)]
    yield from zip(tail[1:], tail, strict=False)


class Job:
    """All steps of a job; ``took`` is each operation's time without waiting, by step."""

    def __init__(self, rows: pl.DataFrame) -> None:
        named = [
            (step, Op(dp, stage, sort, number), start, start + took)
            for dp, stage, step, sort, number, start, took in rows.select(
                "dp_rank", "stage", "step", pl.col("optype").cast(pl.String), "seq_id",
                pl.col("start_ts", "duration").cast(pl.Float64),
            ).sort("start_ts").iter_rows()
        ]  # fmt: skip
        first = min(step for step, *_ in named)
        ops = [op for step, op, *_ in named if step == first]
        last = max(op.stage for op in ops)
        self.after: dict[Op, list[Op]] = {op: [] for op in ops}
        for stage in range(last + 1):
            for op, before in chains([op for op in ops if (op.dp, op.stage) == (0, stage)]):
                for dp in {op.dp for op in ops}:
                    self.after[op._replace(dp=dp)].append(before._replace(dp=dp))
        groups: dict[object, list[Op]] = {}
        for op in ops:
            groups.setdefault(met_in(op, last), []).append(op)
        waiting = {
            name: {met_in(before, last) for op in group for before in self.after[op]}
            for name, group in groups.items()
        }
        self.meetings = [groups[name] for name in TopologicalSorter(waiting).static_order()]
        spans: dict[int, dict[Op, tuple[float, float]]] = {}
        for step, op, start, end in named:
            spans.setdefault(step, {})[op] = start, end
        self.spans = spans
        self.took: dict[tuple[int, Op], float] = {}
        for step, own in spans.items():
            for group in self.meetings:
                last_start = max(own[op][0] for op in group)
                for op in group:
                    took = own[op][1] - last_start
                    self.took[step, op] = took if took > -CLOCKS_APART else 0.0
        alike: dict[str, list[float]] = {}
        for (_, op), took in self.took.items():
            alike.setdefault(op.sort, []).append(took)
        self.usual = {sort: (fmean if sort in COMPUTE else median)(each) for sort, each in alike.items()}

    def step(self, is_usual: Callable[[Op], bool]) -> float:
        """The mean step, in seconds, where those operations take as long as is usual for their sort."""
        places = {op: place for place, op in enumerate(op for group in self.meetings for op in group)}
        after = {op: [places[before] for before in own] for op, own in self.after.items()}
        usual = {op: self.usual[op.sort] for op in places if is_usual(op)}
        return fmean(
            max(
                replay(
                    [
                        [Operation(after[op], 0.0, usual.get(op, self.took[step, op])) for op in group]
                        for group in self.meetings
                    ]
                )
            )
            for step in self.spans
        )


def of_reports(job: Job, step: int) -> Staged:
    """What reports say of such a step: they know its collectives, and which way each pass went."""
    met: list[tuple[int, int, int, int, str, str, str]] = []
    computed: list[tuple[int, str, int, int, int]] = []
    number = {op: place for place, group in enumerate(job.meetings) for op in group}
    for op, times in job.spans[step].items():
        rank, (start, end) = op.stage * 64 + op.dp, (round(time * 1e9) for time in times)
        way, _, what = op.sort.partition("-")
        if op.sort in COMPUTE:
            computed.append((rank, way if what else UPDATE, start, start, end))
        elif what in ("send", "recv"):
            other = rank + (64 if (way == "forward") == (what == "send") else -64)
            ends = (rank, other) if what == "send" else (other, rank)
            met.append((rank, number[op], start, end, PAIR, "send-receive", f"{ends[0]} {ends[1]}"))
        else:
            met.append((rank, number[op], start, end, TOGETHER, op.sort, ""))
    columns = ("rank", "meeting", "start_ns", "end_ns", "law", "kind", "like")
    table = pl.DataFrame(met, columns, orient="row").with_columns(
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        pl.col("start_ns").alias("launched_ns"),
        pl.lit(0).alias("clock_ns"), pl.lit(0).alias("bytes"), pl.lit("0").alias("step"),
        pl.lit("").alias("group"), pl.lit(True).alias("complete"), pl.lit(True).alias("recorded"),
    )  # fmt: skip
    names = ("rank", "what", "launched_ns", "start_ns", "end_ns")
    return staged(
        waits(table, {}), pl.DataFrame(computed, names, orient="row").with_columns(pl.lit("0").alias("step"))
    )


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


def test_the_step_with_and_without_stragglers_is_theirs(job: Job) -> None:
    assert job.step(lambda op: False) == pytest.approx(RECORDED, abs=1e-6)
    assert job.step(lambda op: True) == pytest.approx(IDEAL, abs=1e-6)


def test_slowdowns_by_operation_stage_and_rank_are_theirs(job: Job) -> None:
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


def test_what_is_the_last_stages_doing_and_the_slowest_ranks_is_theirs(job: Job) -> None:
    def share(is_mended: Callable[[Op], bool]) -> float:
        return (RECORDED - job.step(is_mended)) / (RECORDED - IDEAL)

    assert share(lambda op: op.stage == 3) == pytest.approx(MS, abs=1e-5)
    assert share(lambda op: (op.dp, op.stage) == (1, 3)) == pytest.approx(MW, abs=1e-5)


def test_what_reports_say_of_each_step_is_theirs_on_the_mean(job: Job) -> None:
    """Reports know nothing of operations but when kernels ran, and take the mean of each step by itself."""
    found = [of_reports(job, step) for step in list(job.spans)[::4]]
    assert all(abs(one.replayed_ns / one.recorded_ns - 1) < 1e-3 for one in found)
    assert fmean(one.replayed_ns / one.ideal_ns for one in found) == pytest.approx(RECORDED / IDEAL, abs=0.01)
    for sort in ("forward", "backward"):
        slowdown = fmean(one.by_sort[sort] for one in found)
        assert slowdown == pytest.approx(BY_SORT[f"{sort}-compute"], abs=0.01)
    for stage, theirs in BY_STAGE.items():
        ranks = stage * 64, stage * 64 + 1
        assert fmean(one.by_stage[ranks] for one in found) == pytest.approx(theirs, abs=0.015)
