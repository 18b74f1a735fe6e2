"""Sets of ranks with known truth: the culprit and why it was late. All of them: `python -m
cases.rank_verdicts`.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import polars as pl
import pytest

import rank_jobs
import rank_sets
from kinetoscope.analysis.collectives.recorded import collectives, ways
from kinetoscope.analysis.ranks.comparison import RankComparison, compare
from kinetoscope.analysis.ranks.parts import RankPart, part, placed
from kinetoscope.analysis.replay.change import NOTHING, without_host
from kinetoscope.document.collect.ranks import compared
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read
from rank_replays import replays
from rank_sets import Fault, Job
from traces import kernel, trace

JOBS = rank_jobs.jobs()
# Every fault once, in each kind of job; every loss once; every way of meeting.
CHOSEN = [
    *(JOBS[4 * fault + job] for fault, job in enumerate((0, 1, 2, 3, 0, 1, 3))),
    *JOBS[28:33],
    *(
        next(job for job in JOBS if (job.name, job.fault.kind) == wanted)
        for wanted in (
            ("pipeline", "clocks"),
            ("pipeline, in batches", "sync"),
            ("pipeline, sends and receives alone", "work"),
            ("experts", "experts"),
            ("broadcasts", "kernel"),
            ("data parallel, begun apart", "loader"),
        )
    ),
]


@cache
def part_of(trace: bytes) -> RankPart:
    """Sets that lack something share the ranks that lack nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(trace)
        return part(read(path))


@cache
def parts_of(job: Job) -> list[RankPart]:
    """One a rank: of a rank that is there twice the first."""
    traces = dict(reversed(rank_sets.recorded(job)))
    return [part_of(msgspec.json.encode(traces[rank])) for rank in sorted(traces)]


def sums(compared: RankComparison) -> None:
    """Times sum to the nanosecond, whatever the recording lacks."""
    table = compared.table
    known = table.drop_nulls("transfer_ns")
    assert known.filter(pl.col("transfer_ns") + pl.col("waiting_ns") != pl.col("duration_ns")).is_empty()
    assert known.filter(pl.col("transfer_ns") < 0).is_empty()
    assert known.filter(~pl.col("exposed_waiting_ns").is_between(0, pl.col("waiting_ns"))).is_empty()


@pytest.mark.parametrize("job", CHOSEN, ids=lambda job: f"{job.fault.kind}, {job.name}")
def test_the_culprit_and_its_cause(job: Job) -> None:
    compared = compare(parts_of(job))
    verdict = compared.verdict
    sums(compared)
    assert list(compared.missing) == list(job.loss.missing)
    if job.fault.rank in job.loss.missing:
        assert (verdict.status, verdict.rank) == ("unknown", None)
    else:
        assert (verdict.rank, verdict.cause) == (job.fault.rank, rank_jobs.CAUSES[job.fault.kind])
    if job.ahead:
        for rank, clock in compared.paired.clocks.items():
            offset = (
                job.ahead[rank // job.per_host][0] - job.ahead[min(compared.paired.clocks) // job.per_host][0]
            )
            assert clock.ahead_ns == pytest.approx(offset * 1000, abs=5_000)


def test_ranks_of_a_host_have_one_clock() -> None:
    """Three hosts of two ranks, which drift apart: by 7 µs over all, where ends lie 3 µs apart."""
    job = Job("hosts", 6, ahead=((0.0, 0.0), (5_000.0, 3e-4), (-12_000.0, -2e-4)))
    found = [placed(one, f"host{one.facts.rank // 2}") for one in parts_of(job)]
    clocks = compare(found).paired.clocks
    for rank, clock in clocks.items():
        assert clock == clocks[rank // 2 * 2]
        assert clock.drift == pytest.approx(job.ahead[rank // 2][1], rel=0.3)
    # Of rank 3 all but one collective is lost; rank 5's host is called as another is, and is none.
    found[3] = msgspec.structs.replace(found[3], collectives=found[3].collectives.tail(1))
    found[5] = msgspec.structs.replace(found[5], facts=msgspec.structs.replace(found[5].facts, host="host0"))
    paired = compare(found).paired
    assert paired.clocks[2] == paired.clocks[3]
    assert paired.residuals[2] == paired.residuals[3]
    assert paired.clocks[0] == paired.clocks[1]
    assert paired.clocks[5].ahead_ns == pytest.approx(-12_000_000, abs=15_000)


def longest(job: Job) -> float:
    """From the first kernel to the last one's end, as it was simulated."""
    kernels = [one for own in rank_sets.simulate(job).values() for one in own if one["cat"] == "kernel"]
    return max(one["ts"] + one["dur"] for one in kernels) - min(one["ts"] for one in kernels)


@pytest.mark.parametrize("name", ["pipeline", "pipeline, in batches"])
def test_a_pipeline_without_its_late_host_is_one_that_never_had_it(name: str) -> None:
    """Rank 2 waits for its device four times per step."""
    job = next(job for job in JOBS if (job.name, job.fault) == (name, Fault(2, "sync")))
    found = compare(parts_of(job)).ideal
    assert found is not None
    assert found.grain == "passes"
    assert found.steps == job.steps
    assert abs(found.error) < 1e-3
    slower = longest(job) / longest(replace(job, fault=Fault()))
    assert found.slowdown == pytest.approx(slower, abs=0.025)
    assert found.by_stage["2"] == pytest.approx(slower, abs=0.025)
    assert found.by_operation["host"] == pytest.approx(slower, abs=0.025)
    others = [took for ranks, took in found.by_stage.items() if ranks != "2"]
    assert others == pytest.approx([1.0, 1.0, 1.0], abs=0.02)


def test_a_slow_stage_is_the_one_that_makes_a_pipeline_longer() -> None:
    job = next(job for job in CHOSEN if (job.name, job.fault.kind) == ("pipeline", "clocks"))
    found = compare(parts_of(job)).ideal
    assert found is not None
    assert found.grain == "passes"
    by_stage = found.by_stage
    assert max(by_stage, key=lambda ranks: by_stage[ranks]) == str(job.fault.rank)
    # Its kernels take 1.4 times as long; where all take the mean, its step is shorter by half of a tenth.
    assert by_stage["1"] == pytest.approx(1.4 / 1.3, abs=0.02)


def test_of_passes_nothing_is_said_where_they_do_not_fit_what_is_sent() -> None:
    """Autograd's nodes were not recorded of one rank: all that it did seems to be of forward passes."""
    job = next(job for job in CHOSEN if (job.name, job.fault.kind) == ("pipeline", "clocks"))
    parts = list(parts_of(job))
    forward = pl.lit("forward").alias("what")
    parts[2] = msgspec.structs.replace(parts[2], computed=parts[2].computed.with_columns(forward))
    found = compare(parts).ideal
    assert found is not None
    assert found.grain == "collectives"
    assert found.why == "rank 2 runs 9 forward passes in a step, for which it meets rank 1 4 times"


def test_what_a_send_is_paired_with() -> None:
    """Torch names the other end alone. As many go each way as there are microbatches."""
    job = next(job for job in CHOSEN if job.name == "pipeline, sends and receives alone")
    table = compare(parts_of(job)).table
    met = table.group_by("instance").agg(
        "rank", "semantics", pl.col("transfer_ns").n_unique().alias("transfers")
    )
    assert {tuple(sorted(ranks)) for ranks in met["rank"]} == {(0, 1), (1, 2), (2, 3)}
    assert len(met) == 3 * 2 * rank_sets.MICROBATCHES * job.steps
    assert set(met["transfers"]) == {1}


def test_a_batch_both_ways_is_paired_with_its_peer_s() -> None:
    """Torch's 1F1B on four stages. Stage 0 sends three of four microbatches alone, and the last one with the
    first gradient that it receives; each batch of two tensors a way is one kernel, and so is its peer's."""
    job = next(job for job in CHOSEN if job.name == "pipeline, in batches")
    found = pl.concat(one.collectives for one in parts_of(job)).filter(pl.col("semantics") == "pair")
    met = (
        compare(parts_of(job))
        .table.filter(pl.col("semantics") == "pair")
        .with_columns(pl.col("signature").map_elements(lambda like: str(ways(like)), pl.String).alias("ways"))
    )
    assert met["complete"].all()
    assert met.group_by("instance").agg(pl.col("rank").n_unique())["rank"].to_list() == [2] * (len(met) // 2)
    of_first = met.filter(pl.col("rank") == 0)["ways"].value_counts()
    assert dict(of_first.iter_rows()) == {
        "[(0, 1)]": 3 * job.steps, "[(0, 1), (1, 0)]": job.steps, "[(1, 0)]": 3 * job.steps,
    }  # fmt: skip
    assert set(found["bytes"]) == {4 * (32768 + 64)}
    assert ways("send-receive 8 Float 0 0") == []


def test_the_other_end_of_a_send_is_counted_within_its_group() -> None:
    """Of ranks 1 and 3, a pipeline of their own: torch names 3 the second of them."""
    found: list[str] = []
    for name, end, peer in (("send", "Dst Rank", 1), ("recv", "Src Rank", 0)):
        event = kernel("ncclDevKernel_SendRecv", 10.0, 5.0)
        event["args"] |= {
            "Collective name": name, end: peer, "Process Group Ranks": "[1, 3]", "dtype": "Float",
            "In msg nelems": 8,
        }  # fmt: skip
        found.append(collectives(trace(event))["signature"].item())
    assert found == ["send-receive 8 Float <own> 3", "send-receive 8 Float 1 <own>"]


def test_what_experts_are_sent_and_how_near_links_come_to_their_peak() -> None:
    """One rank is sent twice the data, three others two thirds: on the larger side 2 and 1, the mean 5/4.
    Links are known of one host's devices."""
    job = next(job for job in CHOSEN if job.fault.kind == "experts")
    placed_on = [
        msgspec.structs.replace(
            one, facts=msgspec.structs.replace(one.facts, host=f"host{at // 4}", device="NVIDIA H200")
        )
        for at, one in enumerate(parts_of(job))
    ]
    rows = compared(compare(placed_on), every=False).collectives
    sent = next(row for row in rows if row.kind == "all-to-all")
    assert (sent.heaviest_rank, sent.meetings) == (job.fault.rank, 2 * 3 * job.steps)
    assert sent.uneven == pytest.approx(2 / (5 / 4), rel=0.03)
    reduced = next(row for row in rows if row.kind == "all-reduce")
    assert reduced.uneven is None
    assert reduced.bus_gbps is not None
    assert reduced.share_of_link == pytest.approx(reduced.bus_gbps / 450)
    assert all(row.share_of_link is None for row in compared(compare(parts_of(job)), every=False).collectives)


def test_where_nothing_is_wrong_nobody_is_blamed() -> None:
    whole = Job("nothing", 3)
    assert compare(parts_of(whole)).verdict.status == "even"
    lacking = compare([one for one in parts_of(whole) if one.facts.rank != 1]).verdict
    assert (lacking.status, lacking.rank) == ("unknown", None)


def test_a_rank_of_another_group_is_sped_up_and_the_replay_of_all_gets_shorter(tmp_path: Path) -> None:
    """Rank 3 tokenizes 2.5 ms per step; rank 0 meets it in no group, but its peers do. Without, the loop's
    step
    is 1,289 µs shorter: what the replay promises is no more, and was nothing when groups were not joined."""
    traces: list[Trace] = []
    for rank, content in rank_sets.recorded(Job("both", 4, 2, fault=Fault(3, "host"))):
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps(content))
        traces.append(read(path))
    late = traces[3].host_events.filter(pl.col("name") == "aten::tokenize")
    replayed = replays(LoadedRun(tuple(traces)))[0]
    assert abs(replayed.error) < 0.02
    saved_us = replayed.step_us - replayed.after(NOTHING, {3: without_host(late, 1.0)})
    assert 500 < saved_us <= 1_289
