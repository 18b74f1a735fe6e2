"""What findings save of a job whose ranks wait for each other."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from msgspec.structs import replace

import traces
from kinetoscope.analysis.collectives.waiting import waits
from kinetoscope.analysis.ranks.comparison import comparison
from kinetoscope.analysis.replay import ranks
from kinetoscope.analysis.replay.change import without_host
from kinetoscope.analysis.replay.ranks import without_lateness
from kinetoscope.findings import savings
from kinetoscope.findings.ledger import Job, settle
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.rank_view import views
from kinetoscope.findings.registry import find
from kinetoscope.findings.rules import overhead_bound, straggler
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.trace.model import Trace

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "h200-dist"
STEPS, OWN_US, LATE_US, MOVES_US = 4, 3_000, 2_000, 500
# The recorded window begins with the first work: of the first step some is not in it.
NEAR = 0.06
ARRIVES_US, RETURNS_US = 2, 5


@cache
def rank(number: int, late_us: float, last_us: float, size: int = 2) -> Trace:
    """Steps of host code and one collective, which the host waits for. Rank ``number`` comes ``late_us``
    after ``OWN_US``, the last of all ``last_us`` after it."""
    events: list[traces.Event] = []
    length = OWN_US + last_us + ARRIVES_US + MOVES_US + RETURNS_US
    group = {
        "Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "dtype": "Float",
        "Group size": size, "Process Group Name": "0", "Process Group Ranks": str([*range(size)]),
    }  # fmt: skip
    for step in range(STEPS):
        begun = step * length
        there = begun + OWN_US + late_us
        came, ended, end = there + ARRIVES_US, begun + length - RETURNS_US, begun + length
        events += [
            traces.step(step, begun, length),
            traces.host("aten::forward", begun + 1, OWN_US / 2),
            traces.host("aten::tokenize", begun + 1 + OWN_US / 2, OWN_US / 2 + late_us - 2),
            traces.call("cudaLaunchKernel", there, 1, step + 1),
            traces.kernel("ncclDevKernel_AllReduce", came, ended - came, step + 1, number, 7, **group),
            traces.call("cudaDeviceSynchronize", there + 1, end - there - 1, 0),
        ]  # fmt: skip
    return traces.trace(*events, rank=number)


@pytest.fixture(scope="module")
def late_job() -> LoadedRun:
    return LoadedRun((rank(0, 0, LATE_US), rank(1, LATE_US, LATE_US)))


def finding(rule: str, saving: Saving, rank: int = 0) -> Finding:
    return Finding(rule=rule, rank=rank, title="", saving=saving, evidence=[], advice="")


def faster(run: LoadedRun, rank: int, op: str, share: float) -> Saving:
    """The saving if an op takes so much less of its time on one rank."""
    view = next(view for view in views(run) if view.rank == rank)
    return savings.of(view, without_host(view.host(f"^{op}$"), share), "")


def test_what_holds_the_late_rank_back_is_saved_once(late_job: LoadedRun) -> None:
    waiting, _ = views(late_job)
    (late,) = straggler.find(waiting)
    stall = faster(late_job, 1, "aten::tokenize", LATE_US / (OWN_US / 2 + LATE_US - 2))
    found = settle(late_job, [replace(late, rule="straggler"), finding("stall", stall, 1)])
    assert sum(one.remaining.saving_us for one in found) == pytest.approx(LATE_US, rel=NEAR)
    by_rule = {one.rule: one for one in found}
    assert by_rule["straggler"].saving.us == pytest.approx(LATE_US, rel=NEAR)
    assert by_rule["stall"].saving.us == pytest.approx(LATE_US, rel=NEAR)
    # Who is named stands first, at the cost that the comparison tells; what explains it keeps what is left.
    assert found[0].rule == "straggler"
    assert found[0].remaining.saving_us == comparison(late_job).verdict.cost_us
    assert found[1].remaining.saving_us == pytest.approx(0, abs=NEAR * LATE_US)
    assert found[1].remaining.also == "straggler"


def test_what_shortens_the_way_of_a_rank_that_waits_saves_nothing(late_job: LoadedRun) -> None:
    early, late = (faster(late_job, rank, "aten::forward", 1.0) for rank in (0, 1))
    (alone,) = settle(late_job, [finding("own", early)])
    assert (alone.remaining.saving_us, alone.paced_by) == (pytest.approx(0, abs=1), 1)
    assert alone.saving.us == early.us > OWN_US / 3
    # The rank that is waited for gains until the other is: the ranks together all of it.
    (slow,) = settle(late_job, [finding("own", late, 1)])
    assert (slow.remaining.saving_us, slow.paced_by) == (pytest.approx(OWN_US / 2, rel=NEAR), None)
    (both,) = settle(late_job, [finding("own", early), finding("own", late, 1)])
    assert both.ranks == (0, 1)
    assert both.remaining.saving_us == pytest.approx(OWN_US / 2, rel=NEAR)


def test_a_rank_is_the_critical_one_once_the_late_one_is_fixed(late_job: LoadedRun) -> None:
    (late,) = straggler.find(views(late_job)[0])
    own = finding("own", faster(late_job, 0, "aten::forward", 1.0))
    peer = finding("own", faster(late_job, 1, "aten::forward", 1.0), 1)
    found = settle(late_job, [own, peer, replace(late, rule="straggler")])
    assert [(one.rule, one.paced_by) for one in found] == [("straggler", None), ("own", None)]
    # Where in its way the late rank loses its time nobody knows: it is taken off all of it, forward too.
    share = LATE_US / (OWN_US + LATE_US)
    left = OWN_US / 2 * (1 - share)
    assert [one.remaining.saving_us for one in found] == pytest.approx([LATE_US, left], rel=NEAR)
    assert sum(one.remaining.saving_us for one in found) <= Job(late_job).step_us


def test_all_rules_together_save_what_the_late_rank_loses_and_what_all_do(late_job: LoadedRun) -> None:
    found = find(late_job)
    assert sum(one.remaining.saving_us for one in found) <= Job(late_job).step_us
    assert {one.rule for one in found if one.paced_by is not None and one.remaining.saving_us > 1} == set()


def test_what_waits_in_a_collective_does_not_work(late_job: LoadedRun) -> None:
    early, late = views(late_job)
    assert early.busy_share > 0.4
    for view in (early, late):
        assert view.working_us == pytest.approx(MOVES_US, rel=NEAR)
    alone = views(LoadedRun(late_job.traces[:1]))[0]
    assert alone.working_share == alone.busy_share


def test_of_many_ranks_those_stand_for_all_that_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = tuple(rank(number, late, LATE_US, 3) for number, late in enumerate((0, 0, LATE_US)))
    whole = Job(LoadedRun(traces))
    monkeypatch.setattr(ranks, "MOST", 2)
    some = Job(LoadedRun(traces))
    joined = ranks.together(some.run)
    assert joined is not None
    assert 2 in joined[1]
    assert len(joined[1]) == 2
    for one in (whole, some):
        assert one.saves(without_lateness(one.run)) == pytest.approx(LATE_US, rel=NEAR)


def test_ranks_that_meet_nowhere_take_as_long_as_the_slowest() -> None:
    quick, slow = (
        traces.trace(
            traces.step(0, 0, 100), traces.step(1, 100, 100),
            traces.host("aten::a", 0, own), traces.host("aten::a", 100, own), rank=number,
        )
        for number, own in ((0, 20), (1, 80))
    )  # fmt: skip
    run = LoadedRun((quick, slow))
    first = savings.of(views(run)[0], without_host(quick.host_events.filter(pl.col("name") == "aten::a")), "")
    (found,) = settle(run, [finding("own", first)])
    assert (first.us, found.remaining.saving_us, found.saving.us) == (pytest.approx(20), 0, pytest.approx(20))


@pytest.mark.parametrize(
    ("name", "first"), [("fsdp_warm_none", "made-on-host"), ("pipeline_none", "overhead-bound")]
)
def test_nobody_is_called_a_straggler_whom_the_comparison_of_ranks_clears(name: str, first: str) -> None:
    run = load(*(FIXTURES / f"{name}_rank{number}.json.gz" for number in range(2)))
    assert comparison(run).verdict.rank is None
    assert [finding for view in views(run) for finding in straggler.find(view)] == []
    assert find(run)[0].rule == first


def test_what_a_kernel_takes_is_without_its_waiting_as_is_the_devices_share() -> None:
    run = load(*(FIXTURES / f"fsdp_warm_none_rank{number}.json.gz" for number in range(2)))
    view = views(run)[0]
    (found,) = overhead_bound.find(view)
    said = re.search(r"launching (\d+) kernels of ([\d.]+) µs each", found.title)
    assert said is not None
    waited_us = waits(run, view.trace)["saved_ns"].sum() / 1000
    kernels = view.work.filter(pl.col("kind") == "kernel")["duration_ns"].sum() / 1000
    assert int(said[1]) * float(said[2]) == pytest.approx(
        (kernels - waited_us) / len(view.trace.steps), rel=0.01
    )


def test_a_cost_is_of_the_programs_own_step_where_that_was_timed(
    late_job: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = comparison(late_job).verdict
    assert ranks.verdict_as_it_runs(late_job) == recorded
    assert recorded.cost_us is not None
    assert recorded.cost_share is not None
    assert recorded.cost_us / recorded.cost_share == pytest.approx(Job(late_job).step_us, rel=1e-6)
    monkeypatch.setattr(ranks, "slowest", lambda _: SimpleNamespace(step_us=1_000.0))
    assert ranks.verdict_as_it_runs(late_job).cost_us == 1_000 * recorded.cost_share
