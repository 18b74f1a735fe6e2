"""One rank's trace as rules look at it."""

from __future__ import annotations

import pytest

import traces
from kinetoscope.analysis.time import intervals
from kinetoscope.findings.rank_view import RankView, views
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace


def two_steps(rank: int = 0) -> Trace:
    """Two steps of 100 µs, a kernel of 30 µs in each, and one from before that runs into the first."""
    return traces.trace(
        traces.kernel("before", -20, 30),
        traces.step(1, 0, 100),
        traces.call("cudaLaunchKernel", 15, 5, 1),
        traces.kernel("k", 40, 30, 1),
        traces.step(2, 100, 100),
        traces.host("aten::item", 130, 10),
        traces.call("cudaLaunchKernel", 150, 5, 2),
        traces.kernel("k", 195, 30, 2),
        rank=rank,
    )


def test_a_scene_is_its_steps_and_what_they_launched() -> None:
    view = RankView(LoadedRun((two_steps(),)), two_steps())
    assert (view.steps, view.unit) == (2, "step")
    assert view.work["name"].to_list() == ["k", "k"]
    # Two steps by the device's clock, what it did last launched by them included.
    start, end = view.bounds
    assert end - start == view.length_ns == 200_000
    assert view.step_us == 100
    assert view.busy_ns == 60_000
    assert view.us_of(view.work) == 30


def test_without_steps_a_scene_is_the_recording() -> None:
    view = RankView(LoadedRun(()), traces.trace(traces.kernel("k", 0, 10), traces.kernel("k", 30, 10)))
    assert (view.steps, view.unit, view.length_ns) == (1, "recording", 40_000)
    assert view.first_work_ns == view.bounds[0]
    nothing = RankView(LoadedRun(()), traces.nothing())
    assert (nothing.work.is_empty(), nothing.busy_ns, nothing.length_ns) == (True, 0, 1)
    assert nothing.device is None


def test_events_are_found_by_name() -> None:
    view = RankView(LoadedRun((two_steps(),)), two_steps())
    assert len(view.host("^cudaLaunch")) == 2
    assert len(view.kernels("^k$")) == 2
    assert view.kernels("before").is_empty()
    assert len(view.inside(view.trace.device_events)) == 2


def test_idle_time_is_counted_by_cause_and_by_what_ran_meanwhile() -> None:
    trace = two_steps()
    view = RankView(LoadedRun((trace,)), trace)
    idle = view.us_of(view.gaps, "idle_ns")
    assert idle == pytest.approx(view.step_us - 30)
    assert view.us_of(view.idle(*view.gaps["cause"].unique()), "idle_ns") == pytest.approx(idle)
    assert intervals.total(view.idle_during(view.host("aten::item"))) == 10_000


def test_the_first_rank_speaks_for_all() -> None:
    run = LoadedRun((two_steps(0), two_steps(1)))
    assert [(view.rank, view.first) for view in views(run)] == [(0, True), (1, False)]
    assert views(run) is views(run)


def test_the_manifest_tells_of_each_rank_for_itself() -> None:
    timings = StepTimings(settled=True, warmup_s=(0.1,), unprofiled_s=(50e-6, 70e-6))
    run = LoadedRun((two_steps(0), two_steps(1)), Manifest(ranks=(RankRecord(rank=1, steps=timings),)))
    first, second = views(run)
    assert (first.record, first.unprofiled_us, first.settled) == (None, None, False)
    assert second.unprofiled_us == pytest.approx(60)
    assert second.settled
