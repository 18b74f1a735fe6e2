"""Simulated jobs: who is named, why, and what it costs. All of them: ``python -m cases.job_verdicts``."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import msgspec
import polars as pl
import pytest

from broad import broad
from cases.job_verdicts import WITHIN, judged, parts_of
from job_sets import CUBE, DDP, FSDP, HSDP, PIPELINE, TENSOR
from job_simulator import Fault, Job, cost, recorded
from kinetoscope.analysis.ranks.attribution import kernel_cause
from kinetoscope.analysis.ranks.comparison import RankComparison, compare
from kinetoscope.document.collect.ranks import compared
from kinetoscope.findings.registry import compared as findings_of_ranks
from kinetoscope.views.ranks import advice, verdict

SMALL = {"layers": 4, "steps": 4}
FAULTY = [
    replace(FSDP, fault=Fault("device", (4,), 1.12), seed=1, **SMALL),
    replace(HSDP, fault=Fault("stall", (5,), 4000.0), seed=2, **SMALL),
    replace(HSDP, fault=Fault("device", (4, 5, 6, 7), 1.2), seed=3, **SMALL),
    replace(HSDP, fault=Fault("link", (0, 1, 2, 3), 4.0), seed=4, **SMALL),
    replace(TENSOR, fault=Fault("kernel", (6,), 2.0), seed=5, **SMALL),
    replace(PIPELINE, fault=Fault("device", (2, 3), 1.25), seed=6, steps=3),
    # Of three steps, the first known in part, no total is more than chance: the place is the same in each.
    replace(
        FSDP,
        data=2,
        layers=6,
        steps=3,
        moves=2.7206317362493957,
        noise=0.02263143321322979,
        varies=0.0021883840089127896,
        stalls=200.0,
        fault=Fault("sync", (0,), 5823.846093253917),
        seed=441192,
    ),
    # Its device has nothing to do during a gather since its host is late, not since it needs the result.
    replace(FSDP, data=2, noise=0.03, moves=2.1, fault=Fault("host", (0,), 19.0), seed=707618),
    replace(DDP, fault=Fault("garbage", (3,), 6000.0), seed=9, **SMALL),
    # All hosts of a stage are slow, so that none differs from those that do the same.
    replace(
        PIPELINE,
        layers=4,
        moves=2.13,
        noise=0.018,
        stalls=200.0,
        varies=0.005,
        fault=Fault("host", (0, 1), 23.2),
        seed=636362,
    ),
    # One of four slow hosts waits for the others, and loses less than half of what they do.
    replace(
        TENSOR,
        moves=0.4417705985407427,
        noise=0.03048882141823533,
        varies=0.005643867571853316,
        fault=Fault("host", (4, 5, 6, 7), 18.02289477504377),
        seed=442290,
    ),
    # A loader that is late by a tenth of each of three steps, where none of the others ever is.
    replace(
        CUBE,
        layers=8,
        moves=0.643064827019521,
        noise=0.018674275987207833,
        stalls=200.0,
        varies=0.0016819856181377437,
        fault=Fault("loader", (1,), 2267.741610726223),
        seed=498157,
    ),
]
HEALTHY = [
    replace(DDP, seed=7, stalls=900.0, **SMALL),
    replace(HSDP, seed=8, stalls=400.0, noise=0.05, **SMALL),
    # One of two devices is slower by 1.7 % in every step: devices differ by that.
    replace(
        FSDP,
        data=2,
        layers=8,
        moves=0.7178418228082158,
        noise=0.03515804494513712,
        varies=0.005275800944374355,
        seed=828670,
    ),
]


# A stall and a slow kernel are named in ``test_rank_sets`` and ``test_overlap_sets`` too.
ALWAYS = [job for job in FAULTY if job.fault.what in ("device", "link", "sync", "host", "garbage")]


@cache
def found_in(job: Job) -> RankComparison:
    return compare(parts_of(job))


def named(job: Job) -> str:
    return f"{job.name}, {job.fault.what}"


@pytest.mark.parametrize("job", broad(FAULTY, ALWAYS), ids=named)
def test_who_makes_a_job_slower_why_and_by_how_much(job: Job) -> None:
    found = found_in(job)
    assert judged(job, found) == "right"
    share = found.verdict.cost_share
    assert share is not None
    assert cost(job) / WITHIN < share < cost(job) * WITHIN


@pytest.mark.parametrize(
    "job",
    [
        replace(PIPELINE, fault=Fault("host", (0, 1), 23.0), seed=900, noise=0.02, moves=2.0, **SMALL),
        replace(CUBE, fault=Fault("host", (4, 5, 6, 7), 24.0), seed=903, noise=0.02, **SMALL),
    ],
    ids=named,
)
def test_of_a_whole_stage_of_slow_hosts_the_cost_is_not_that_to_a_mean_that_they_raise(job: Job) -> None:
    share = found_in(job).verdict.cost_share
    assert share == pytest.approx(cost(job), rel=0.1)


@pytest.mark.parametrize("job", HEALTHY, ids=named)
def test_of_a_healthy_job_nobody_is_named(job: Job) -> None:
    assert judged(job, found_in(job)) == "right"


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (FAULTY[0], "Rank 4 (GPU 0 of host host1) makes each step"),
        (FAULTY[2], "Host host1 (ranks 4-7) makes each step"),
        (FAULTY[3], "The link of ranks 0-3 (host host0) makes each step"),
        (FAULTY[5], "Stage 1 of the pipeline (ranks 2-3, host host1) makes each step"),
    ],
)
def test_the_first_sentence_names_the_place(job: Job, said: str) -> None:
    assert verdict(compared(found_in(job), every=False)).startswith(said)


def test_devices_of_ranks_that_see_their_own_alone_have_no_number() -> None:
    """With one visible device each, every rank calls its own 0: the host's device 0 may be another's."""
    alone = pl.lit(0, pl.Int32).alias("device")
    parts = [
        msgspec.structs.replace(
            one,
            collectives=one.collectives.with_columns(alone),
            overlapped=one.overlapped.with_columns(alone),
        )
        for one in parts_of(FAULTY[0])
    ]
    shown = compared(compare(parts), every=False)
    assert verdict(shown).startswith("Rank 4 (host host1) makes each step")
    assert not any(" -i " in str(block) for block in advice(shown))


def test_behind_a_slow_link_ranks_are_late_for_its_sake() -> None:
    found = found_in(FAULTY[3])
    late = found.attributed.filter(pl.col("culprit").is_in(found.verdict.ranks), pl.col("cause") != "link")
    assert late["waited_ns"].sum() < 0.05 * found.attributed.filter(cause="link")["waited_ns"].sum()


@pytest.mark.parametrize(("times", "cause"), [(1.01, "compute"), (1.10, "clocks")])
def test_a_device_is_slower_from_three_hundredths_on(times: float, cause: str) -> None:
    usual = pl.DataFrame({"name": ["a", "b", "c"], "usual_ns": [100_000, 200_000, 300_000]})
    kernels = usual.with_columns(
        rank=3, step=pl.lit("1"), launches=10, usual_launches=10, duration_ns=pl.col("usual_ns") * times
    )
    assert kernel_cause(kernels, [3], "1")[0] == cause


def test_clocks_of_hosts_that_only_send_to_each_other_are_known() -> None:
    """Each host holds one stage; the collectives that end at one instant are within hosts."""
    assert {rank for rank, _ in recorded(PIPELINE)} == set(found_in(FAULTY[5]).paired.clocks)


def test_the_finding_names_the_host_and_the_device_of_a_slow_rank() -> None:
    (one,) = findings_of_ranks(found_in(FAULTY[0]))
    assert one.title.startswith("Rank 4 on host host1, GPU 0 keeps the others waiting")
    (several,) = findings_of_ranks(found_in(FAULTY[2]))
    assert several.title.startswith("Ranks 4-7 on host host1 keep the others waiting")
