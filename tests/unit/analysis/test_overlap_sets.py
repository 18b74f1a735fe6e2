"""The cost of one slow rank where communication runs while ranks compute, against the same job without it."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest

import overlap_sets
from broad import broad
from kinetoscope.analysis.ranks.comparison import RankComparison, compare
from kinetoscope.analysis.ranks.parts import part
from kinetoscope.analysis.replay.ranks import without_lateness
from kinetoscope.findings.ledger import Job as Replayed
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.read import read
from overlap_sets import Job

WITHIN = 1.25
SLOW = [
    Job(kind, fault, slow, transfer=transfer, seed=slow)
    for kind, transfers in (("ddp", (150.0, 400.0)), ("fsdp", (150.0, 1500.0)))
    for transfer in transfers
    for fault, slow in (("clocks", 1), ("kernel", 2))
]
QUICK = [job for job in SLOW if job.transfer in (400.0, 1500.0)]  # those with most to overlap
# A host that stalls or is slow costs little of a step, the same in each.
LATE_HOSTS = [
    Job(kind, fault, slow, transfer=transfer, seed=slow)
    for kind, transfer in (("ddp", 150.0), ("fsdp", 400.0))
    for fault, slow in (("stall", 3), ("host", 0))
]
HEALTHY = [Job(kind, transfer=transfer, seed=7) for kind in ("ddp", "fsdp") for transfer in (150.0, 1500.0)]
# Equal ranks whose hosts stall by chance for a tenth of a step.
UNEVEN = [
    Job("fsdp", ranks=4, steps=6, layers=4, transfer=150.0, seed=101, jitter=1500.0),
    Job("fsdp", ranks=4, steps=5, layers=4, transfer=150.0, seed=1015, jitter=3000.0),
    Job("ddp", ranks=2, steps=4, layers=4, transfer=150.0, seed=1104, jitter=1500.0),
]


@cache
def recorded(job: Job) -> tuple[RankComparison, LoadedRun]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"rank{rank}.json" for rank in range(job.ranks)]
        for path, (_, trace) in zip(paths, overlap_sets.recorded(job), strict=True):
            path.write_text(json.dumps(trace))
        run = LoadedRun(tuple(read(path) for path in paths))
    return compare([part(trace) for trace in run.traces]), run


def named(job: Job) -> str:
    return f"{job.kind}, {job.fault}, {job.transfer:.0f} µs"


@pytest.mark.parametrize("job", broad(SLOW, QUICK), ids=named)
def test_the_cost_of_a_slow_rank_is_within_a_quarter_of_the_truth(job: Job) -> None:
    """From parts alone, and from all events."""
    compared, run = recorded(job)
    step_us = overlap_sets.simulate(job)[1]
    share = overlap_sets.cost_us(job) / step_us
    assert (compared.verdict.status, compared.verdict.rank) == ("straggler", job.slow)
    ideal = compared.ideal
    assert ideal is not None
    assert abs(ideal.error) < 1e-3
    from_parts = 1 - ideal.without[job.slow] / ideal.replayed_us
    assert share / WITHIN < from_parts < share * WITHIN
    replayed = Replayed(run)
    from_events = replayed.saves({job.slow: without_lateness(run)[job.slow]}) / replayed.step_us
    assert share / WITHIN < from_events < share * WITHIN


@pytest.mark.parametrize("job", LATE_HOSTS, ids=named)
def test_a_host_that_is_late_in_each_step_is_named(job: Job) -> None:
    verdict = recorded(job)[0].verdict
    assert (verdict.status, verdict.rank, verdict.cause) == ("straggler", job.slow, "host")


@pytest.mark.parametrize("job", UNEVEN, ids=named)
def test_equal_ranks_that_are_late_by_chance_are_not_named(job: Job) -> None:
    assert recorded(job)[0].verdict.rank is None


@pytest.mark.parametrize("job", HEALTHY, ids=named)
def test_a_healthy_job_has_no_straggler_and_nothing_to_gain(job: Job) -> None:
    compared, _ = recorded(job)
    assert compared.verdict.status == "even"
    assert compared.ideal is not None
    assert compared.ideal.slowdown < 1.005


@pytest.mark.parametrize("job", broad([*SLOW, *HEALTHY], [*QUICK, *HEALTHY]), ids=named)
def test_each_instant_of_a_device_is_busy_waiting_or_moving_data_once(job: Job) -> None:
    for one in recorded(job)[0].parts:
        own = recorded(job)[0].table.filter(rank=one.facts.rank)
        exposed = own["exposed_waiting_ns"].sum() + own["exposed_transfer_ns"].sum()
        assert one.facts.compute_ns + one.facts.copy_ns + exposed == pytest.approx(one.facts.busy_ns, abs=1e5)


def test_as_many_equal_collectives_in_a_step_are_not_paired_one_off() -> None:
    """Clocks 3 ms apart, collectives 2.5 ms: one off, five of six in a step would end together as well."""
    job = QUICK[0]
    clocks = recorded(job)[0].paired.clocks
    ahead = {rank: clock.ahead_ns for rank, clock in clocks.items()}
    assert ahead == pytest.approx({rank: 3e6 * rank for rank in range(job.ranks)}, abs=1e4)
