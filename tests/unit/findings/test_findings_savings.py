"""What changes save, and how serious that is."""

from __future__ import annotations

import polars as pl
import pytest

import traces
from kinetoscope.analysis.replay.path import NOT_REPLAYED
from kinetoscope.findings import savings
from kinetoscope.findings.model import Saving
from kinetoscope.findings.rank_view import RankView
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun


@pytest.mark.parametrize(
    ("share", "freed", "expected"),
    [
        (0.2, 0.0, "high"),
        (0.05, 0.0, "medium"),
        (0.01, 0.0, "low"),
        (0.001, 0.0, None),
        (0.0, 0.1, "low"),
        (0.0, 0.01, "info"),
        (0.0, 0.001, None),
    ],
)
def test_severity_is_the_share_of_the_step(share: float, freed: float, expected: str | None) -> None:
    assert savings.severity(Saving(1.0, "", True, share, freed)) == expected


def test_severity_is_kept_between_what_a_rule_allows() -> None:
    large, nothing = Saving(1.0, "", True, 0.5), savings.nothing("")
    assert savings.severity(large, at_most="medium") == "medium"
    assert savings.severity(large, at_most="low") == "low"
    assert savings.severity(large, at_most="info") == "info"
    assert savings.severity(large, at_least="low") == "high"
    assert savings.severity(nothing, at_least="medium") == "medium"
    assert savings.severity(nothing, at_most="medium") is None
    assert savings.severity(Saving(1.0, "", True, 0.01), at_least="high") == "high"
    assert savings.severity(large, at_least="low", at_most="low") == "low"


def view(every_us: float, kernel_us: float, unprofiled_us: float | None = None) -> RankView:
    """One step of ten launches, one every so often, of a kernel of some length."""
    events = [traces.step(1, 0, 10 * every_us)]
    for number in range(10):
        at = number * every_us + 1
        events.append(traces.call("cudaLaunchKernel", at, 1, number + 1))
        start = at + 2 + number * max(kernel_us - every_us, 0)
        events.append(traces.kernel(f"k{number % 6}", start, kernel_us, number + 1))
    trace = traces.trace(*events)
    timings = StepTimings(unprofiled_s=() if unprofiled_us is None else (unprofiled_us / 1e6,))
    return RankView(LoadedRun((trace,), Manifest(ranks=(RankRecord(rank=0, steps=timings),))), trace)


def between(view: RankView, first: int, last: int) -> pl.DataFrame:
    """The idle time after some of its kernels."""
    ends = view.work.select(end=pl.col("start_ns") + pl.col("duration_ns"))["end"]
    return pl.DataFrame({"start_ns": ends[first:last], "end_ns": view.work["start_ns"][first + 1 : last + 1]})


def test_shorter_kernels_save_all_of_it_where_the_device_sets_the_pace() -> None:
    bound = view(every_us=5, kernel_us=20)
    saving = savings.device(bound, bound.work, "half", saved=pl.col("duration_ns") / 2)
    assert saving.us == pytest.approx(100, rel=0.01)
    assert saving.share == pytest.approx(saving.us / bound.step_us)
    assert saving.on_critical_path
    assert saving.basis == "half; all of it on the critical path"


def test_shorter_kernels_save_little_where_the_host_does() -> None:
    late = view(every_us=20, kernel_us=10)
    saving = savings.device(late, late.work, "half", saved=pl.col("duration_ns") / 2)
    assert saving.us == pytest.approx(0)  # a step that is followed by the next has no end to move
    assert saving.freed_share == pytest.approx(0.5)
    assert not saving.on_critical_path
    assert saving.basis == "half; 50.0 µs of device time per step, 0 µs of it on the critical path"


def test_without_the_profiler_the_device_may_set_the_pace() -> None:
    # Recorded, the host takes 12 µs a launch; without the profiler it keeps up, by how much is not known:
    # 0.45 of that is usual, and what kernels of 5 µs would leave the step with. 1 µs of it is the device's
    # no more.
    late = view(every_us=12, kernel_us=10, unprofiled_us=101)
    saving = savings.device(late, late.work, "", saved=pl.col("duration_ns") / 2)
    assert saving.us == pytest.approx(100 - 0.45 * 120)


def test_a_step_that_was_timed_longer_than_its_kernels_take_does_not_make_them_longer() -> None:
    bound = view(every_us=5, kernel_us=20, unprofiled_us=210)
    one = bound.work.head(1)
    assert savings.device(bound, one, "", saved="duration_ns").us == pytest.approx(20)
    parts = bound.replay.critical_path()
    assert sum(part.us for part in parts) == pytest.approx(210)
    assert [part.us for part in parts if part.text == NOT_REPLAYED] == [pytest.approx(10)]


def quiet_and_not(runs_us: float) -> RankView:
    """A step of 400 µs, which takes ``runs_us`` without the profiler: an op of 180 µs in which nothing else
    begins or ends, and ten launches, 20 µs apart."""
    events = [traces.step(1, 0, 400), traces.host("aten::sort", 15, 180)]
    for number in range(10):
        at = 200 + 20 * number
        events.append(traces.call("cudaLaunchKernel", at, 1, number + 1))
        events.append(traces.kernel("k", at + 3, 2, number + 1))
    trace = traces.trace(*events)
    timings = StepTimings(unprofiled_s=(runs_us / 1e6,))
    return RankView(LoadedRun((trace,), Manifest(ranks=(RankRecord(rank=0, steps=timings),))), trace)


def test_a_profiler_slows_what_has_events_and_not_what_is_quiet() -> None:
    """220 µs of the step have events: without the profiler they take half of that."""
    view = quiet_and_not(180 + 110)
    assert view.replay.pace == pytest.approx(0.5, abs=0.01)
    assert savings.host(view, view.host("sort"), "").us == pytest.approx(180, abs=1)
    assert savings.host(view, view.host("Launch"), "").us == pytest.approx(10 * 0.5, abs=0.5)
    # All of it by as much, once events would be slowed more than a profiler does.
    faster = quiet_and_not(130)
    of_sort = savings.host(faster, faster.host("sort"), "").us
    assert of_sort == pytest.approx(130 * 180 / (180 + 220 / 2.8), abs=1)


def test_a_saving_of_almost_nothing_is_none() -> None:
    late = view(every_us=20, kernel_us=10)
    assert savings.device(late, late.work, "basis", saved=pl.lit(1)) == savings.nothing("basis")
    assert savings.device(late, late.work.clear(), "basis", saved="duration_ns").us == 0


def test_host_work_saved_is_idle_time_saved() -> None:
    late = view(every_us=20, kernel_us=10)
    calls = late.host("Launch")
    assert savings.host(late, calls, "").us == pytest.approx(10)  # a launch of 1 µs every 20
    assert savings.host(late, calls, "", share=0.5).us == pytest.approx(5)
    own = calls.with_columns(share=pl.lit(0.1))
    assert savings.host(late, own, "").us == pytest.approx(1)


def test_idle_time_is_scaled_to_the_step_without_the_profiler() -> None:
    recorded, faster = view(20, 10), view(20, 10, unprofiled_us=150)
    four = between(recorded, 2, 6)
    saving = savings.idle(recorded, four, "basis")
    assert (saving.us, saving.basis) == (pytest.approx(40), "basis")
    assert saving.share == pytest.approx(40 / recorded.step_us)
    every = savings.idle(faster, faster.gaps, "basis")
    assert every.us == pytest.approx(50, abs=1)  # what of 150 µs is not the device's
    assert every.basis == "basis; of the step's time without the profiler"


def test_what_goes_with_device_work_is_saved_once() -> None:
    late = view(every_us=20, kernel_us=10)
    waited = savings.idle(late, between(late, 2, 6), "b")
    together = savings.device(late, late.work, "a", "duration_ns", waited.change)
    assert waited.us == pytest.approx(40)
    assert together.us == pytest.approx(waited.us + 10)  # ten launches of 1 µs; the rest is the host's
    assert together.freed_share == pytest.approx(1)
    assert together.basis.endswith("a, among it 100 µs of device time per step")


def test_what_launches_nothing_else_than_what_goes_goes_with_it() -> None:
    """Of an op of 60 µs that launches two kernels, the inner one of 20 µs and its launch go with its kernel;
    all of it goes with both."""
    events = [traces.step(1, 0, 100), traces.host("aten::linear", 10, 60)]
    for number, at in ((1, 20), (2, 45)):
        events += [
            traces.host("aten::op", at, 20),
            traces.call("cudaLaunchKernel", at + 5, 5, number),
            traces.kernel(f"k{number}", at + 12, 5, number),
        ]
    trace = traces.trace(*events)
    both = RankView(LoadedRun((trace,)), trace)
    saved = [savings.device(both, both.work.head(rows), "", "duration_ns").us for rows in (1, 2)]
    assert saved == [pytest.approx(20), pytest.approx(60)]
    # Without steps an op may be the first of its sort, and load its kernel.
    trace = traces.trace(*events[1:])
    first = RankView(LoadedRun((trace,)), trace)
    gone = savings.device(first, first.work, "", "duration_ns").change.host
    assert (gone["end_ns"] - gone["start_ns"]).to_list() == [5_000, 5_000]


def test_the_heaviest_groups_come_first_and_lone_kernels_beside_the_path_do_not() -> None:
    bound = view(every_us=5, kernel_us=20)
    events = bound.work.with_columns(saved_ns=pl.col("duration_ns") / 2)
    groups = list(savings.heaviest(bound, events, "name", basis=""))
    assert [group["name"][0] for group, _ in groups] == ["k0", "k1", "k2", "k3"]  # twice each; k4, k5 once
    assert all(saving.us == pytest.approx(20) for _, saving in groups)
    late = view(every_us=100, kernel_us=1)
    events = late.work.with_columns(saved_ns=pl.col("duration_ns") / 100)
    assert list(savings.heaviest(late, events, "name", basis="")) == []
    assert list(savings.heaviest(late, events.clear(), "name", basis="")) == []
