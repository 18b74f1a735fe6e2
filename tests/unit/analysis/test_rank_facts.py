"""Ranks of real recordings, against brute force on the raw events: to the microsecond."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import polars as pl
import pytest

from kinetoscope import numbers
from kinetoscope.analysis.ranks.attribution import START
from kinetoscope.analysis.ranks.comparison import (
    RankComparison,
    cold_steps,
    compare,
    comparison,
    culprit,
    lengths,
)
from kinetoscope.analysis.ranks.parts import part
from kinetoscope.document.collect.ranks import ranks
from kinetoscope.findings.rank_view import views
from kinetoscope.findings.rules import straggler
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.read import read
from kinetoscope.views import ranks as rank_lines

Collective = tuple[float, float]  # start and duration, µs
SETS = {
    "h200-dist/ddp_straggler_rank{}.json.gz": 2,
    "h200-dist/fsdp_rank{}.json.gz": 2,
    "public/param_v100_dlrm_8rank/rank{}.json.gz": 8,
}


def raw(path: Path) -> dict[str, list[Collective]]:
    """The collectives of a file by their kernel's name, in order; what was launched before it left out."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    launched = {
        event["args"]["correlation"] for event in events if event.get("cat") in ("cuda_runtime",
        "cuda_driver") and "correlation" in event.get("args", {})
    }  # fmt: skip
    found: dict[str, list[Collective]] = defaultdict(list)
    for event in sorted((e for e in events if e.get("cat", "").lower() == "kernel"), key=lambda e: e["ts"]):
        args: dict[str, Any] = event["args"]
        if "nccl" in event["name"] and args["correlation"] in launched:
            size = args.get("In msg nelems", "")
            found[f"{event['name']} {size}"].append((event["ts"], event["dur"]))
    return found


@cache
def together(name: str, shared_data: Path) -> tuple[RankComparison, list[dict[str, list[Collective]]]]:
    """A set compared, and its raw collectives by rank."""
    paths = [shared_data / name.format(rank) for rank in range(SETS[name])]
    parts = [part(read(path, rank=rank)) for rank, path in enumerate(paths)]
    return compare(parts), [raw(path) for path in paths]


@cache
def pair(*paths: Path) -> RankComparison:
    return compare([part(read(path)) for path in paths])


@pytest.mark.parametrize("name", SETS)
def test_waiting_is_what_brute_force_finds(name: str, shared_data: Path) -> None:
    """The nth of a name and size is the same on every rank: these recordings lost none of them. Who leaves
    last, on every rank's own clock, differs by microseconds; who came last is who was in it shortest."""
    compared, ranks = together(name, shared_data)
    waited: dict[int, float] = defaultdict(float)
    last: list[int] = []
    for kernel, first in ranks[0].items():
        if "Broadcast" in kernel:
            continue
        for nth in range(len(first)):
            durations = [own[kernel][nth][1] for own in ranks]
            last.append(durations.index(min(durations)))
            for rank, duration in enumerate(durations):
                waited[rank] += duration - min(durations)
    table = compared.table.filter(pl.col("semantics") != "sender", ~pl.col("before"))
    assert set(table["basis"]) == {"ranks"}
    meetings = table.unique("instance")
    assert len(meetings) == len(last)
    # Of an all-to-all the ends lie up to 7 µs apart, and its law goes by starts; all others agree exactly.
    loose = 7.0 * len(table.filter(pl.col("semantics") == "arrival")) / len(ranks)
    found = dict(table.group_by("rank").agg(pl.col("waiting_ns").sum() / 1000).iter_rows())
    assert found == pytest.approx(dict(waited), abs=1e-3 * len(last) + loose)
    counted = dict(meetings.drop_nulls("last_rank").group_by("last_rank").len().iter_rows())
    assert counted == {rank: last.count(rank) for rank in set(last)}


def test_starts_on_one_host_tell_the_same_to_the_microsecond(shared_data: Path) -> None:
    """All-to-alls of the eight ranks: from a rank's start to the last one's, as the files have them."""
    compared, ranks = together("public/param_v100_dlrm_8rank/rank{}.json.gz", shared_data)
    table = compared.table.filter(pl.col("kind") == "all-to-all")
    name = next(name for name in ranks[0] if "SendRecv" in name)
    expected: dict[int, float] = defaultdict(float)
    for nth in range(len(ranks[0][name])):
        came = max(own[name][nth][0] for own in ranks)
        for rank, own in enumerate(ranks):
            start, duration = own[name][nth]
            expected[rank] += min(max(0.0, came - start), duration)
    found = dict(table.group_by("rank").agg(pl.col("waiting_ns").sum() / 1000).iter_rows())
    assert found == pytest.approx(dict(expected), abs=1.0)


def test_the_held_back_rank_is_the_straggler_and_its_host_is_why(shared_data: Path) -> None:
    """Rank 1 sleeps 20 ms per step, before it begins. Without it is as the same job that was recorded without
    the sleep: its steps take 16.2 ms less, since rank 0's host was later in some of them."""
    compared, _ = together("h200-dist/ddp_straggler_rank{}.json.gz", shared_data)
    verdict, ideal = compared.verdict, compared.ideal
    assert (verdict.status, verdict.rank, verdict.cause) == ("straggler", 1, "host")
    slept = compared.attributed.filter(pl.col("excess_ns") > 15_000_000)
    assert median(slept["excess_ns"].to_list()) == pytest.approx(20e6, rel=0.25)
    assert ideal is not None
    assert abs(ideal.error) < 0.001
    plain = pair(*(shared_data / f"h200-dist/ddp_rank{rank}.json.gz" for rank in range(2)))
    took, asleep = (fmean(lengths(one.parts)["length_ns"].to_list()) for one in (plain, compared))
    steps = 1000 * ideal.recorded_us / asleep  # two and two thirds: none of the way into the first collective
    assert 1000 * (ideal.recorded_us - ideal.without[1]) == pytest.approx(steps * (asleep - took), rel=0.25)


@pytest.mark.parametrize(("name", "rank"), [("ddp_straggler", 1), ("ddp_loader", 1), ("ddp_none", None)])
def test_the_share_of_waiting_is_one_wherever_it_stands(
    name: str, rank: int | None, recorded: Callable[[str], Path]
) -> None:
    """Summed by hand over what each rank was in a collective longer than the other, the first of each rank
    and those of cold steps left out. The finding's title says the same number."""
    run = LoadedRun(tuple(read(recorded(f"h200-dist/{name}_rank{one}.json.gz")) for one in range(2)))
    found = comparison(run)
    cold = {*cold_steps(found.parts)}
    blamed = {one["instance"]: one for one in found.attributed.iter_rows(named=True)}
    waited, its = 0, 0
    for (meeting,), ends in found.table.partition_by("instance", as_dict=True).items():
        why = blamed.get(meeting, {"culprit": None, "where": "", "cause": None})
        is_cold = cold & {*ends["step"], *([why["where"]] if why["cause"] else [])}
        if meeting is None or is_cold or ends["own_ns"].has_nulls() or why["cause"] == START:
            continue
        shortest, longest = sorted(ends["duration_ns"].to_list())
        waited += longest - shortest
        its += (longest - shortest) * (why["culprit"] == 1)
    verdict = found.verdict
    assert verdict.rank == rank
    if rank is None:
        return
    assert verdict.share_of_waiting == pytest.approx(
        its / waited, abs=1e-5
    )  # a broadcast's sender did not wait
    assert culprit(run) == (rank, verdict.share_of_waiting)
    said = ranks(run)
    assert said is not None
    assert said.verdict.cost_us is not None
    cost = numbers.time(said.verdict.cost_us)
    assert f"Rank 1 (GPU 1) makes each step {cost} longer" in rank_lines.verdict(said)
    assert said.verdict.share_of_waiting == verdict.share_of_waiting
    found_by_rule = [one for view in views(run) for one in straggler.find(view)]
    assert found_by_rule
    assert all(one.saving.us == said.verdict.cost_us for one in found_by_rule)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ddp_none", ("even", None, None)),
        ("ddp_loader", ("straggler", 1, "data loader")),
        ("fsdp_none", ("even", None, None)),
    ],
)
def test_two_equal_ranks_and_one_with_a_slow_loader(
    name: str, expected: tuple[str, int | None, str | None], recorded: Callable[[str], Path]
) -> None:
    """Three steps each, the first one cold: in it rank 1 of the slow loader was 65 ms late by its host."""
    compared = pair(*(recorded(f"h200-dist/{name}_rank{rank}.json.gz") for rank in range(2)))
    verdict = compared.verdict
    assert (verdict.status, verdict.rank, verdict.cause) == expected
    assert cold_steps(compared.parts) == ["", "ProfilerStep#0"]


def test_a_host_that_is_slower_at_all_it_does_makes_no_straggler(recorded: Callable[[str], Path]) -> None:
    """Two ranks that do the same: rank 0's host took 1.2 times as long for its ops, in every step."""
    compared = pair(*(recorded(f"h200-dist/fsdp_warm_none_rank{rank}.json.gz") for rank in range(2)))
    assert (compared.verdict.status, compared.verdict.rank) == ("even", None)
    assert cold_steps(compared.parts) == []


def test_a_pipeline_that_sends_in_batches_is_known_pass_by_pass(recorded: Callable[[str], Path]) -> None:
    """Torch's own GPipe on two devices: eight microbatches per step, each sent in a batch of one, whose
    kernel has no arguments. Stage 1 has the loss too, and a slower host."""
    paths = [recorded(f"h200-dist/pipeline_none_rank{rank}.json.gz") for rank in range(2)]
    compared = pair(*paths)
    assert compared.paired.clocks.keys() == {0, 1}  # by what was sent both ways
    sent = compared.table.group_by("instance").agg("rank", pl.col("complete").all())
    assert len(sent) == 3 * 8 * 2
    assert sent["complete"].all()
    ideal = compared.ideal
    assert ideal is not None
    assert (ideal.grain, ideal.steps, list(ideal.by_stage)) == ("passes", 3, ["0", "1"])
    assert ideal.by_stage["1"] > 1.2 > 1.0 > ideal.by_stage["0"]
    backward = compared.parts[0].computed.filter(pl.col("what") == "backward")
    spans = ((backward["end_ns"] - backward["start_ns"]) / 1000).to_list()
    assert spans == pytest.approx(spans_within(paths[0], "Backward"), abs=0.002)


def spans_within(path: Path, name: str) -> list[float]:
    """From the first kernel to the last one's end that each of these annotations launched, µs."""
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if "args" in event and "dur" in event]
    launched = {
        event["args"]["correlation"]: event["ts"] for event in events
        if event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]
    }  # fmt: skip
    found: list[float] = []
    for mark in events:
        if mark["cat"] == "user_annotation" and mark["name"].startswith(f"{name} "):
            own = [
                (event["ts"], event["ts"] + event["dur"]) for event in events
                if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") and "nccl" not in event["name"]
                and mark["ts"] <= launched[event["args"]["correlation"]] <= mark["ts"] + mark["dur"]
            ]  # fmt: skip
            found.append(max(end for _, end in own) - min(start for start, _ in own))
    return found


def test_a_host_that_is_late_once_is_late_at_every_launch(recorded: Callable[[str], Path]) -> None:
    """In FSDP's last step rank 0 waits 19.7 ms, in twelve collectives, for a host that is 2 ms late."""
    compared = pair(*(recorded(f"h200-dist/fsdp_none_rank{rank}.json.gz") for rank in range(2)))
    late = compared.attributed.filter(pl.col("step") == "ProfilerStep#2")
    assert late["waited_ns"].sum() == pytest.approx(19_738_000, abs=1000)
    assert late["lost_ns"].sum() < 4_000_000
