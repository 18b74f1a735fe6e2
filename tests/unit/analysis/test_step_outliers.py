"""Steps that took longer than the others, and why."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.analysis.step_outliers import step_distribution, step_outliers
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read
from traces import event

Make = Callable[..., Trace]
Event = dict[str, Any]


def steps_of(*lengths: float, extra: list[Event] | None = None) -> list[Event]:
    """Steps, each with one op that launches one kernel 20 µs in and 10 µs long."""
    events, at = list(extra or []), 0.0
    for number, length in enumerate(lengths):
        events += [
            event("user_annotation", f"ProfilerStep#{number}", at, length),
            event("cpu_op", "aten::mm", at + 10, 10),
            event("cuda_runtime", "cudaLaunchKernel", at + 12, 3, correlation=number + 1),
            event("kernel", "k", at + 20, 10, tid=7, device=0, stream=7, correlation=number + 1),
        ]
        at += length
    return events


def test_even_steps_have_no_outlier(trace_of: Make) -> None:
    run = LoadedRun((trace_of(*steps_of(100, 101, 99, 100, 102)),))
    assert step_outliers(run) == ()
    row = step_distribution(run).row(0, named=True)
    assert (row["steps"], row["duration_median_ns"], row["busy_median_ns"]) == (5, 100_000, 10_000)
    assert (
        row["duration_p90_ns"]
        == statistics.quantiles([100, 101, 99, 100, 102], n=10, method="inclusive")[-1] * 1000
    )


def test_an_outlier_names_what_took_the_time(trace_of: Make) -> None:
    wait = event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 230, 2_000)
    (found,) = step_outliers(LoadedRun((trace_of(*steps_of(100, 100, 2_200, 100, 100, extra=[wait])),)))
    assert (found.name, found.duration_us, found.median_us) == ("ProfilerStep#2", 2_200.0, 100.0)
    first, second = found.differences[:2]
    assert {(first.kind, first.name), (second.kind, second.name)} == {
        ("idle", "data-loading"),
        ("op", "enumerate(DataLoader)#_Iter.__next__"),
    }
    assert first.extra_us == pytest.approx(2_000, rel=0.02)
    assert second.count == 1


def test_a_slow_kernel_is_named(trace_of: Make) -> None:
    events = steps_of(100, 100, 160, 100)
    slow = [e for e in events if e["cat"] == "kernel"][2]
    slow["dur"] = 75
    (found,) = step_outliers(LoadedRun((trace_of(*events),)))
    assert (found.differences[0].kind, found.differences[0].extra_us) == ("kernel", 65.0)


def test_two_steps_have_no_exception(trace_of: Make) -> None:
    assert step_outliers(LoadedRun((trace_of(*steps_of(100, 900)),))) == ()


def test_the_founding_articles_first_step(shared_data: Path) -> None:
    """\"Why does the ProfilerStep#2 take so long?\" — the op inside it was slow to dispatch, the device was
    idle."""
    (found,) = step_outliers(LoadedRun((read(shared_data / "h200/mm_64_warm_eager.json.gz"),)))
    assert found.name == "ProfilerStep#2"
    assert {d.kind for d in found.differences} <= {"op", "idle"}
    assert ("idle", "launch-bound") in {(d.kind, d.name) for d in found.differences}
