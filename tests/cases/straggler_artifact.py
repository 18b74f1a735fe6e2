"""The jobs of "Understanding Stragglers in Large Model Training" (OSDI 2025), whose authors publish them with
what they found, as what reports are made of: ``PYTHONPATH=src:tests python -m cases.straggler_artifact FOLDER
[JOB ...]``, FOLDER being ``data`` of ByteDance-Seed/StragglerAnalysis.

Prints the numbers of docs/evidence/ranks.md, in a minute.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.collectives.recorded import PAIR, TOGETHER
from kinetoscope.analysis.collectives.waiting import with_waiting
from kinetoscope.analysis.ranks.parts import UPDATE
from kinetoscope.analysis.ranks.pipelines import staged
from kinetoscope.analysis.ranks.rows import IdealRow
from kinetoscope.analysis.ranks.without_stragglers import Operation, replay

STAGE = 64  # ranks of reports are numbered by stage, so many apart
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


def of_reports(job: Job, step: int) -> IdealRow:
    """What reports say of such a step: they know its collectives, and which way each pass went."""
    met: list[tuple[int, int, int, int, str, str, str]] = []
    computed: list[tuple[int, str, int, int, int]] = []
    number = {op: place for place, group in enumerate(job.meetings) for op in group}
    for op, times in job.spans[step].items():
        rank, (start, end) = op.stage * STAGE + op.dp, (round(time * 1e9) for time in times)
        way, _, what = op.sort.partition("-")
        if op.sort in COMPUTE:
            computed.append((rank, way if what else UPDATE, start, start, end))
        elif what in ("send", "recv"):
            other = rank + (STAGE if (way == "forward") == (what == "send") else -STAGE)
            ends = (rank, other) if what == "send" else (other, rank)
            met.append((rank, number[op], start, end, PAIR, "send-receive", f"{ends[0]} {ends[1]}"))
        else:
            met.append((rank, number[op], start, end, TOGETHER, op.sort, ""))
    columns = ("rank", "instance", "start_ns", "end_ns", "semantics", "kind", "signature")
    table = pl.DataFrame(met, columns, orient="row").with_columns(
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        pl.col("start_ns").alias("launched_ns"),
        pl.lit(0).alias("clock_ns"), pl.lit(0).alias("bytes"), pl.lit("0").alias("step"),
        pl.lit("").alias("group"), pl.lit(True).alias("complete"), pl.lit(True).alias("recorded"),
    )  # fmt: skip
    names = ("rank", "what", "launched_ns", "start_ns", "end_ns")
    return staged(
        with_waiting(table, {}),
        pl.DataFrame(computed, names, orient="row").with_columns(pl.lit("0").alias("step")),
    ).row


def ours_and_theirs(folder: Path, name: str) -> Iterator[tuple[str, float, float]]:
    """Slowdowns as reports have them, means over steps, beside the authors'."""
    job = Job(pl.read_parquet(folder / f"trace-{name}.parquet"))
    result = json.loads((folder / f"result-{name}.json").read_text())
    found = [of_reports(job, step) for step in job.spans]
    stages, workers = found[0].by_stage, found[0].by_worker
    by_stage = [fmean(one.by_stage[ranks] for one in found) for ranks in stages]
    by_worker = {
        int(ranks.partition("-")[0].partition(",")[0]) % STAGE: fmean(one.by_worker[ranks] for one in found)
        for ranks in workers
    }
    by_sort, by_dp = (result[f"blocking_decompose_by_{what}"] for what in ("optype", "dp_rank"))
    yield "steps", len(found), len(job.spans)
    yield "replayed over recorded", fmean(one.replayed_us / one.recorded_us for one in found), 1.0
    yield "slowdown", fmean(one.slowdown for one in found), result["blocking_slowdown"]
    for sort in ("forward", "backward"):
        yield sort, fmean(one.by_operation[sort] for one in found), by_sort[f"{sort}-compute"]
    yield "slowest stage", max(by_stage), max(result["blocking_decompose_by_stage"].values())
    yield "slowest worker", max(by_worker.values()), max(by_dp.values())
    yield "median worker", median(by_worker.values()), median(by_dp.values())
    yield "worker furthest off", max(abs(took - by_dp[str(dp)]) for dp, took in by_worker.items()), 0.0


def main(folder: str, *names: str) -> None:
    for name in names or ("ST", "AR", "SE"):
        for what, own, theirs in ours_and_theirs(Path(folder), name):
            print(f"| {name} | {what} | {own:.4f} | {theirs:.4f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
