"""Waiting inside collectives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kinetoscope.analysis.collectives.waiting import exposed_waiting, waiting, waits
from kinetoscope.analysis.idle.gaps import idle
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

Make = Callable[..., Trace]


def reduce_(start: float, duration: float, elements: int = 8, stream: int = 17) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
        "pid": 0, "tid": stream, "ts": start, "dur": duration,
        "args": {"device": 0, "stream": stream, "Collective name": "allreduce", "In msg nelems": elements},
    }  # fmt: skip


def compute(start: float, duration: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": start, "dur": duration,
            "args": {"device": 0, "stream": 7}}  # fmt: skip


def test_the_rank_that_comes_last_waits_for_nobody(trace_of: Make) -> None:
    early = trace_of(reduce_(100, 50), reduce_(200, 20), rank=0)
    late = trace_of(reduce_(1140, 10), reduce_(1200, 20), rank=1)  # its clock is 1000 µs ahead
    table = waiting(LoadedRun((early, late))).sort("rank", "start_ns")
    assert table["transfer_ns"].to_list() == [10_000, 20_000, 10_000, 20_000]
    assert table["waiting_ns"].to_list() == [40_000, 0, 0, 0]
    assert table["last_rank"].to_list()[0] == 1
    assert set(table["basis"]) == {"ranks"}


def test_collectives_that_do_not_end_together_are_not_compared(trace_of: Make) -> None:
    one = trace_of(reduce_(100, 50), reduce_(10_000, 20), reduce_(20_000, 20), rank=0)
    other = trace_of(reduce_(100, 50), reduce_(14_000, 20), reduce_(20_000, 20), rank=1)
    table = waiting(LoadedRun((one, other))).sort("rank", "start_ns")
    assert table["basis"].to_list() == ["ranks", "trace", "ranks"] * 2


def test_one_trace_compares_with_its_own_shortest_of_the_same_size(trace_of: Make) -> None:
    trace = trace_of(reduce_(0, 50), reduce_(100, 10), reduce_(200, 70, elements=9))
    table = waiting(LoadedRun((trace,)))
    assert table["waiting_ns"].to_list() == [40_000, 0, None]
    assert table["basis"].to_list() == ["trace", "trace", None]
    assert table["last_rank"].null_count() == 3


def test_exposed_is_what_the_device_did_nothing_beside(trace_of: Make) -> None:
    trace = trace_of(compute(0, 20), reduce_(10, 50), compute(30, 5), reduce_(100, 10))
    run = LoadedRun((trace,))
    # It waits 40 µs, from 10 to 50; the device computes from 10 to 20 and from 30 to 35.
    assert waiting(run)["exposed_waiting_ns"].to_list() == [25_000, 0]
    assert exposed_waiting(run).rows() == [(0, 0, 25_000)]
    row = idle(run).filter(pl.col("cause") == "waiting-for-rank").row(0, named=True)
    assert (row["idle_ns"], row["busy_inside_collectives_ns"]) == (0, 25_000)


def test_two_collectives_that_wait_at_once_wait_once(trace_of: Make) -> None:
    """10 to 50 on one stream, 20 to 60 on another, of which 12 µs are another kernel's."""
    trace = trace_of(
        reduce_(10, 50), reduce_(100, 10), reduce_(20, 50, stream=18), reduce_(120, 10, stream=18),
        compute(44, 12),
    )  # fmt: skip
    run = LoadedRun((trace,))
    assert waiting(run).sort("start_ns")["exposed_waiting_ns"].to_list() == [34_000, 4_000, 0, 0]
    assert exposed_waiting(run).rows() == [(0, 0, 38_000)]
    waited = waits(run, trace)
    assert (waited["waiting_ns"].sum(), waited["saved_ns"].sum()) == (80_000, 38_000)


def test_a_held_back_rank_is_the_one_waited_for(shared_data: Path) -> None:
    """Rank 1 sleeps 20 ms per step; rank 0 waits for it in every gradient bucket, and never the other way."""
    traces = tuple(read(shared_data / f"h200-dist/ddp_straggler_rank{rank}.json.gz") for rank in (0, 1))
    table = waiting(LoadedRun(traces)).filter(pl.col("basis") == "ranks")
    waited = dict(table.group_by("rank").agg(pl.col("waiting_ns").sum()).rows())
    assert waited[0] > 3 * 20_000_000
    assert waited[1] == 0


def test_rank_seven_comes_last_in_five_of_eight(shared_data: Path) -> None:
    """The data's README counted it by hand; a collective's ranks end within 7 µs."""
    folder = shared_data / "public/param_v100_dlrm_8rank"
    traces = tuple(read(folder / f"rank{rank}.json.gz", rank=rank) for rank in range(8))
    table = waiting(LoadedRun(traces))
    assert set(table["basis"]) == {"ranks"}
    counts = dict(table.filter(pl.col("rank") == 0).group_by("last_rank").len().rows())
    assert counts[7] == 5
    assert sum(counts.values()) == 8
    assert table["waiting_ns"].max() == pytest.approx(7.6e6, rel=0.05)
