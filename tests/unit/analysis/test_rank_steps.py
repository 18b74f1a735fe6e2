"""Ranks that number their steps differently, as after a worker was started again; clocks that drift."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from kinetoscope.analysis.collectives.pairing import paired
from kinetoscope.analysis.collectives.recorded import COLLECTIVES
from kinetoscope.analysis.ranks.comparison import RankComparison, compare
from kinetoscope.analysis.ranks.parts import RankPart, part
from kinetoscope.analysis.replay.change import NOTHING
from kinetoscope.analysis.replay.ranks import without_lateness
from kinetoscope.analysis.replay.replay import job
from kinetoscope.document.collect.ranks import compared
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.read import read
from rank_sets import Fault, Job, recorded

JOB = Job("late", 4, 2, steps=4, fault=Fault(3, "kernel"), ahead=((0.0, 0.0), (731.0, 5e-5)))


def numbered_from(one: RankPart, first: int) -> RankPart:
    names = {name: f"ProfilerStep#{first + at}" for at, name in enumerate(one.steps["name"])}
    tables = {
        name: getattr(one, name).with_columns(pl.col(column).replace(names))
        for name, column in (("steps", "name"), ("collectives", "step"), ("kernels", "step"))
    }
    return replace(one, **tables)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[RankPart]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    for rank, trace in recorded(JOB):
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return [part(read(path)) for path in sorted(folder.iterdir())]


def verdict(found: RankComparison) -> tuple[object, ...]:
    return found.verdict.ranks, found.verdict.cause, found.verdict.cost_us


@pytest.mark.parametrize("first", [1, 100], ids=["numbers overlap", "none is shared"])
def test_steps_that_are_numbered_differently_are_the_same_steps(parts: list[RankPart], first: int) -> None:
    other = [numbered_from(one, first) if one.facts.rank >= 2 else one for one in parts]
    found, same = compare(other), compare(parts)
    assert compared(found, every=True).incomparable == ""
    assert verdict(found) == verdict(same)
    assert verdict(same)[:2] == ([3], "slow kernel")
    assert found.ideal == same.ideal
    assert compared(found, every=True).paces == compared(same, every=True).paces


def test_few_ranks_that_number_their_steps_differently_are_replayed_together_all_the_same(
    tmp_path: Path,
) -> None:
    def saved(first: int) -> tuple[float, float]:
        for rank, trace in recorded(JOB):
            text = json.dumps(trace)
            if rank >= 2:
                text = re.sub(r"ProfilerStep#(\d+)", lambda it: f"ProfilerStep#{int(it[1]) + first}", text)
            (tmp_path / f"rank{rank}.json").write_text(text)
        run = LoadedRun(tuple(read(path) for path in sorted(tmp_path.iterdir())))
        joint = job(run)
        assert joint is not None
        return joint.step_us, joint.after(NOTHING, without_lateness(run))

    as_recorded, without = saved(0)
    assert without < as_recorded
    assert saved(1) == saved(100) == (as_recorded, without)


def drifting(ppm: dict[int, float], seconds: int = 8) -> pl.DataFrame:
    """All-reduces of all ranks every 20 ms or so, whose ranks' clocks drift and are a second apart."""
    rows = []
    for at in range(50 * seconds):
        end = 20_000_000 * at + 900_000 * (at % 7)
        for rank, drift in ppm.items():
            own = round(end + rank * 10**9 + end * drift * 1e-6)
            rows.append({
                "rank": rank, "device": 0, "id": at, "start_ns": own - 100_000, "end_ns": own,
                "duration_ns": 100_000, "kind": "all-reduce", "semantics": "together", "bytes": 4,
                "signature": f"all-reduce {at % 3}", "sequence": "", "group": "0", "group_name": "0",
                "size": len(ppm), "step": "", "recorded": True, "before": False, "launched_ns": own - 200_000,
                "stream": 7, "sent": None,
            })  # fmt: skip
    return pl.DataFrame(rows, COLLECTIVES)


@pytest.mark.parametrize(
    "ppm", [{0: 0.0, 1: 12.0}, {0: 14.0, 1: 0.0, 2: 0.0}, {0: 0.0, 1: -20.0, 2: 12.0, 3: 4.0}]
)
def test_drift_is_that_against_the_first_rank(ppm: dict[int, float]) -> None:
    found = paired(drifting(ppm), None)
    assert found.table["instance"].null_count() == 0
    for rank, drift in ppm.items():
        assert found.clocks[rank].drift * 1e6 == pytest.approx(drift - ppm[0], abs=0.5)
    assert found.clocks[0].ahead_ns == 0
