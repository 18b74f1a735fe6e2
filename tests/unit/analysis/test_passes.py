"""The passes of a recording, matched, and laid over the steps that nobody recorded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from kinetoscope.analysis.passes.as_it_runs import as_it_runs, data_differs, laid_over, slowest
from kinetoscope.analysis.passes.match import match
from kinetoscope.analysis.passes.unprofiled import Unprofiled, rare_steps, rounds, spread, unprofiled
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings, TimedSteps
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

STEP_US = 1000.0


def made(steps: Sequence[Sequence[tuple[str, str]]], *, every: float = 100, length: float = 50) -> Trace:
    """A trace of steps that launch kernels of these names and grids, one every so often."""
    events, number = [], 0
    for index, kernels in enumerate(steps):
        begin = index * STEP_US
        events.append(traces.step(index, begin, STEP_US))
        for place, (name, grid) in enumerate(kernels):
            number += 1
            at = begin + 10 + place * every
            events.append(traces.call("cudaLaunchKernel", at, 4, number))
            events.append(
                traces.kernel(name, at + 6, length, number, grid=[int(grid), 1, 1], block=[32, 1, 1])
            )
    return traces.trace(*events)


def plain(names: str, grid: str = "1") -> list[tuple[str, str]]:
    return [(name, grid) for name in names]


def matched_names(light: Trace, full: Trace) -> list[tuple[str, str]]:
    rows = match(light, full).rows
    return [(light.device_events["name"][i], full.device_events["name"][j]) for i, j in rows.iter_rows()]


def test_equal_steps_match_kernel_by_kernel() -> None:
    light, full = made([plain("abc"), plain("abc")]), made([plain("abc")] * 3)
    found = match(light, full)
    assert found.rows.rows() == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2)]
    assert found.share == 1.0


def test_kernels_that_one_pass_alone_has_are_not_matched() -> None:
    light, full = made([plain("abxcd")]), made([plain("abcyd")])
    assert match(light, full).rows.rows() == [(0, 0), (1, 1), (3, 2), (4, 4)]
    assert match(light, full).share == 0.8
    assert all(one == other for one, other in matched_names(light, full))


def test_another_shape_is_another_kernel() -> None:
    light = made([[("a", "1"), ("b", "8"), ("c", "1")]])
    full = made([[("a", "1"), ("b", "9"), ("c", "1")]])
    assert match(light, full).rows.rows() == [(0, 0), (2, 2)]


def test_each_step_takes_the_one_that_is_like_it_and_a_step_like_none_stays_out() -> None:
    light, full = made([plain("xyz"), plain("abcd"), plain("pqr")]), made([plain("abcd"), plain("xyz")])
    found = match(light, full)
    assert found.rows.rows() == [(0, 4), (1, 5), (2, 6), (3, 0), (4, 1), (5, 2), (6, 3)]
    assert found.share == 0.7


def test_passes_without_device_work_match_nothing() -> None:
    found = match(made([[]]), made([plain("a")]))
    assert (len(found.rows), found.share) == (0, 0.0)


@settings(deadline=None, max_examples=15)
@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_matches_are_alike_in_order_and_never_twice(ours: str, theirs: str) -> None:
    light, full = made([plain(ours)], every=60, length=10), made([plain(theirs)], every=60, length=10)
    rows = match(light, full).rows.rows()
    assert all(one == other for one, other in matched_names(light, full))
    assert all(first[0] < second[0] and first[1] < second[1] for first, second in pairwise(rows))
    if ours == theirs:
        assert len(rows) == len(ours)


def pieces(*rows: tuple[int | None, str, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, {"next": pl.UInt32, "cause": pl.String, "idle_ns": pl.Int64}, orient="row")


def test_a_gap_takes_the_causes_of_the_gap_before_the_same_kernel() -> None:
    rows = pl.DataFrame({"light": [0, 1, 2], "full": [5, 6, 7]}, {"light": pl.UInt32, "full": pl.UInt32})
    light = pieces(
        (0, "unexplained", 60), (0, "launch-bound", 40), (1, "launch-bound", 10), (None, "start-or-end", 7)
    )
    full = pieces((5, "host-op", 300), (5, "data-loading", 100), (7, "allocator", 1000))
    assert laid_over(light, full, rows) == {
        "host-op": 75.0, "data-loading": 25.0, "launch-bound": 10.0, "start-or-end": 7.0
    }  # fmt: skip


def test_rounds_drop_nothing() -> None:
    assert rounds([1, 2, 3, 4, 5], 2) == [1.5, 4.0]
    assert rounds([1, 2, 3], 1) == [1, 2, 3]
    assert rounds([1, 2], 4) == [1.5]
    assert rounds([], 2) == []


@pytest.mark.parametrize(("n", "low", "high"), [(1, 1, 1), (6, 1, 6), (20, 6, 15), (40, 14, 27)])
def test_the_interval_of_a_median_is_between_order_statistics(n: int, low: int, high: int) -> None:
    found = spread([value / 1e6 for value in range(n, 0, -1)])
    assert (found.low, found.high, found.n) == (pytest.approx(low), pytest.approx(high), n)
    assert found.median == pytest.approx((n + 1) / 2)


def timed(*step_us: float, data_us: float = 0.0, clock: str = "device") -> TimedSteps:
    seconds = tuple(us / 1e6 for us in step_us)
    waited = (data_us / 1e6,) * len(seconds)
    none = (0.0,) * len(seconds)
    return TimedSteps(step_s=seconds, host_s=seconds, data_s=waited, sync_s=none, gc_s=none, clock=clock)  # type: ignore[arg-type]


def test_the_steps_before_the_recording_count_and_a_drift_is_seen() -> None:
    found = unprofiled(StepTimings(before=timed(*[100.0] * 20), after=timed(*[120.0] * 22)))
    assert found is not None
    assert found.step.median == pytest.approx(100)  # what follows runs with the profiler's hooks
    assert (found.step.n, found.counts, found.drift) == (20, (20, 22), True)
    assert found.around == (pytest.approx(100), pytest.approx(120))
    released = unprofiled(StepTimings(before=timed(*[100.0] * 20), after=timed(*[120.0] * 22), released=True))
    assert released is not None
    assert (released.step.n, released.drift) == (20, True)  # the program's pace changed: not to be averaged
    few = unprofiled(StepTimings(before=timed(100, 101), after=timed(120, 121)))
    assert few is not None
    assert not few.drift


def test_steps_after_the_recording_count_where_nothing_of_the_profiler_is_left() -> None:
    before, after = timed(*[100.0, 104.0] * 10), timed(*[102.0] * 22, data_us=3)
    left = unprofiled(StepTimings(before=before, after=after))
    gone = unprofiled(StepTimings(before=before, after=after, released=True))
    assert left is not None
    assert gone is not None
    assert (left.step.n, gone.step.n, gone.counts) == (20, 42, (20, 22))
    assert gone.waiting is not None
    assert gone.waiting.data_us == pytest.approx(3)  # the median of all 42
    host = unprofiled(StepTimings(before=before, after=timed(*[102.0] * 22, clock="host"), released=True))
    assert host is not None
    assert host.step.n == 20  # two clocks are not one sample


def test_of_a_program_that_was_still_warming_up_the_steps_after_the_recording_count():
    before, after = timed(*[60.0, 55.0, 50.0, 45.0] * 5), timed(*[36.0, 38.0] * 10)
    gone = unprofiled(StepTimings(before=before, after=after, released=True))
    assert gone is not None
    assert (gone.step.median, gone.step.n, gone.drift) == (pytest.approx(37), 20, True)
    left = unprofiled(StepTimings(before=before, after=after))
    assert left is not None
    assert left.step.n == 20
    assert left.step.median == pytest.approx(52.5)
    # A loader's queue is full after the recording's pause: its steps are faster for a while.
    loader = timed(*[60.0, 55.0, 50.0, 45.0] * 5, data_us=20)
    fed = unprofiled(StepTimings(before=loader, after=after, released=True))
    assert fed is not None
    assert fed.step.median == pytest.approx(52.5)


def test_bursts_of_batches_are_taken_in_rounds_of_the_workers() -> None:
    bursts = timed(*[10.0, 10.0, 10.0, 370.0] * 5)
    bursts = TimedSteps(step_s=bursts.step_s, data_s=tuple(max(0.0, s - 10e-6) for s in bursts.step_s))
    found = unprofiled(StepTimings(before=bursts, loader_workers=4))
    assert found is not None
    assert found.waiting is not None
    assert (found.step.median, found.waiting.data_us) == (pytest.approx(100), pytest.approx(90))
    assert "rounds of 4" in found.words


def test_rare_long_steps_count_at_the_mean_with_what_the_host_did_in_them() -> None:
    """One step in twenty collects garbage: 20 usual steps of 4 ms, one of 124 ms, as `gc.collect()` makes
    them."""
    step = (4e-3,) * 19 + (124e-3,)
    collected = (0.0,) * 19 + (110e-3,)
    none = (0.0,) * 20
    found = unprofiled(StepTimings(before=TimedSteps(step_s=step, data_s=none, sync_s=none, gc_s=collected)))
    assert found is not None
    assert (found.step.median, found.mean_us) == (pytest.approx(4000), pytest.approx(10_000))
    assert found.rare is not None
    assert (found.rare.count, found.rare.of, found.rare.cause) == (1, 20, "garbage-collection")
    assert (found.rare.extra_us, found.rare.cause_us) == (pytest.approx(6000), pytest.approx(5500))
    assert found.rare.longest_us == pytest.approx(124_000)


CHECKPOINT = [10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 70.0]


def numbered(first: int, steps_ms: Sequence[float], between_ms: Sequence[float] = ()) -> TimedSteps:
    return TimedSteps(
        step_s=tuple(value / 1e3 for value in steps_ms),
        between_s=tuple(value / 1e3 for value in between_ms),
        first=first,
    )


def test_what_comes_after_every_so_many_steps_is_shared_out_by_whole_rounds() -> None:
    """Twelve steps before the recording have one checkpoint, nineteen after it three: their mean is not that
    of the program."""
    steps = CHECKPOINT * 10
    before, after = numbered(8, steps[8:20]), numbered(36, steps[36:55])
    found = unprofiled(StepTimings(before=before, after=after, released=True))
    assert found is not None
    assert found.round is not None
    assert (found.round.steps, found.round.seen) == (8, 3)
    assert found.round.round_us == pytest.approx(1e3 * sum(CHECKPOINT))
    assert found.round.between_us == pytest.approx(60_000)
    assert found.round.per_step_us == pytest.approx(1e3 * sum(CHECKPOINT) / 8)
    assert found.mean_us == pytest.approx(found.round.per_step_us)
    assert found.step.median == pytest.approx(10_000)


@pytest.mark.parametrize("between", [False, True])
def test_the_run_s_first_checkpoint_loads_what_it_needs_and_no_figure_counts_it(between: bool) -> None:
    """A program's first ``optimizer.state_dict()`` imports torch._dynamo: 1.5 s, once."""
    series = CHECKPOINT * 10
    series[7] = 1500.0
    steps = [min(value, 10.0) for value in series] if between else series
    more = [value - 10.0 for value in series] if between else [0.0] * 80
    before, after = numbered(2, steps[2:22], more[2:22]), numbered(30, steps[30:80], more[30:80])
    found = known(StepTimings(before=before, after=after, released=True))
    assert found.round is not None
    assert found.round.per_step_us == pytest.approx(1e3 * sum(CHECKPOINT) / 8)
    assert found.mean_us == pytest.approx(10_000 if between else found.round.per_step_us)
    if not between:
        assert found.rare is not None
        assert found.rare.longest_us == pytest.approx(70_000)
        assert (found.rare.count, found.rare.of) == (8, 69)


def test_where_the_first_checkpoint_was_recorded_and_not_timed_no_other_step_is_left_out() -> None:
    steps = CHECKPOINT * 10
    before, after = numbered(1, steps[1:6]), numbered(10, steps[10:80])
    found = known(StepTimings(before=before, after=after, released=True))
    assert found.round is not None
    assert (found.round.steps, found.round.seen) == (8, 9)
    assert found.rare is not None
    assert (found.rare.count, found.rare.of) == (9, 75)


def test_an_evaluation_between_steps_is_of_the_round_and_of_no_step() -> None:
    between = [40.0 if place % 6 == 0 else 0.0 for place in range(20)]
    found = unprofiled(StepTimings(before=numbered(3, [10.0] * 20, between)))
    assert found is not None
    assert found.round is not None
    assert (found.round.steps, found.round.round_us) == (6, pytest.approx(100_000))
    assert found.mean_us == found.step.median == pytest.approx(10_000)


def test_without_numbers_the_longer_part_alone_shows_rounds() -> None:
    parts = [
        TimedSteps(step_s=tuple(value / 1e3 for value in steps)) for steps in (CHECKPOINT * 4, [10.0] * 9)
    ]
    found = unprofiled(StepTimings(before=parts[0], after=parts[1], released=True))
    assert found is not None
    assert found.round is not None
    assert found.round.steps == 8
    assert found.round.per_step_us == pytest.approx(1e3 * sum(CHECKPOINT) / 8)


def known(timings: StepTimings) -> Unprofiled:
    found = unprofiled(timings)
    assert found is not None
    return found


def test_steps_timed_on_later_count_at_the_mean_where_they_keep_the_pace() -> None:
    """Every 25th step saves: neither the steps before the recording nor those after it are enough to know."""
    steps = [70.0 if place % 25 == 24 else 10.0 for place in range(400)]
    around = StepTimings(before=numbered(6, steps[6:26]), after=numbered(34, steps[34:54]), released=True)
    assert known(around).round is None
    found = known(msgspec.structs.replace(around, later=numbered(54, steps[54:154])))
    assert found.round is not None
    assert (found.round.steps, found.round.per_step_us) == (25, pytest.approx(12_400))
    assert found.mean_us == pytest.approx(12_400)
    # The median is of those that are timed with care.
    assert (found.step.n, found.counts) == (40, (20, 20))
    slower = [2 * value for value in steps[54:154]]
    assert known(msgspec.structs.replace(around, later=numbered(54, slower))) == known(around)
    hooked = msgspec.structs.replace(around, later=numbered(54, steps[54:154]), released=False)
    assert known(hooked).round is None


@pytest.mark.parametrize("pace_ms", [18.0, 30.0])
@pytest.mark.parametrize(("before_ms", "after_ms"), [(18.0, 30.0), (30.0, 18.0)])
def test_of_two_paces_that_which_later_steps_keep_is_the_program_s(
    before_ms: float, after_ms: float, pace_ms: float
) -> None:
    """Twenty steps of 0.4 s are a short while where a host is fast and slow in turn: hundreds follow."""
    before, after = numbered(6, [before_ms] * 20), numbered(44, [after_ms] * 20)
    timings = StepTimings(before=before, after=after, released=True)
    later = numbered(64, [pace_ms + 1] * 100)
    found = known(msgspec.structs.replace(timings, later=later))
    assert found.step.median == pytest.approx(1e3 * pace_ms)
    assert found.mean_us == pytest.approx(1e3 * (20 * pace_ms + 100 * (pace_ms + 1)) / 120)
    assert found.drift
    # Where nothing decides, what was there before the recording stands, unless it was still warming up.
    assert (
        known(timings).step.median
        == known(msgspec.structs.replace(timings, later=numbered(64, [90.0] * 100))).step.median
        == pytest.approx(18_000)
    )


def test_of_few_steps_those_stand_whose_pace_later_ones_keep() -> None:
    """Long steps are timed a few times each: three while memory was still taken, and two."""
    before, after = numbered(2, [990.0, 985.0, 971.0]), numbered(8, [604.0, 590.0])
    timings = StepTimings(before=before, after=after, released=True, later=numbered(10, [590.0] * 12))
    found = known(timings)
    assert (found.counts, found.step.median) == ((3, 2), pytest.approx(597_000))
    few = msgspec.structs.replace(timings, later=numbered(10, [590.0] * 5))
    assert known(few).step.median == pytest.approx(971_000)


def test_where_the_host_runs_ahead_its_clock_tells_the_mean_of_later_steps_alone() -> None:
    """Each tenth step reads the loss: by the host's clock nine take 2 ms, the tenth 182, by the device's all
    20, but for two that take 220."""
    host = [182.0 if place % 10 == 9 else 2.0 for place in range(200)]
    host[49] += 200
    host[149] += 200
    before = TimedSteps(
        step_s=(0.02,) * 20, host_s=tuple(value / 1e3 for value in host[:20]), clock="device", first=0
    )
    found = known(StepTimings(before=before, later=numbered(20, host[20:])))
    assert (found.round, found.rare) == (None, None)
    assert found.mean_us == pytest.approx(22_000, rel=0.01)
    assert found.step.median == pytest.approx(20_000)


def test_rare_steps_among_later_ones_have_the_cause_that_was_measured_in_others() -> None:
    steps, none = (4e-3,) * 19 + (124e-3,), (0.0,) * 20
    collected = (0.0,) * 19 + (110e-3,)
    before = TimedSteps(step_s=steps, host_s=steps, data_s=none, sync_s=none, gc_s=collected)
    later = TimedSteps(step_s=((4e-3,) * 15 + (124e-3,)) + (4e-3,) * 20 + (124e-3,) + (4e-3,) * 43)
    rare = known(StepTimings(before=before, later=later)).rare
    assert rare is not None
    assert (rare.count, rare.of, rare.cause) == (3, 100, "garbage-collection")
    assert (rare.extra_us, rare.cause_us) == (pytest.approx(3600), pytest.approx(3300))
    even = (4e-3,) * 20
    elsewhere = msgspec.structs.replace(before, step_s=even, host_s=even, gc_s=none)
    rare = known(StepTimings(before=elsewhere, later=later)).rare
    assert rare is not None
    assert (rare.count, rare.of, rare.cause) == (2, 100, None)


def test_what_takes_little_or_comes_in_rounds_of_the_workers_is_no_round() -> None:
    little = [10.0] * 7 + [13.0]
    found = unprofiled(StepTimings(before=numbered(0, little * 5)))
    assert found is not None
    assert found.round is None
    bursts = msgspec.structs.replace(
        numbered(0, [10.0, 10.0, 10.0, 370.0] * 5), data_s=(0.0, 0.0, 0.0, 0.36) * 5
    )
    found = unprofiled(StepTimings(before=bursts, loader_workers=4))
    assert found is not None
    assert found.round is None


def test_a_round_of_workers_that_start_anew_is_rare_and_its_bursts_are_not() -> None:
    usual, restart = [10.0, 10.0, 10.0, 370.0], [250.0, 10.0, 10.0, 370.0]
    steps = [*usual, *usual, *restart, *usual]
    bursts = TimedSteps(
        step_s=tuple(ms / 1e3 for ms in steps), data_s=tuple(max(0.0, ms - 10) / 1e3 for ms in steps)
    )
    found = unprofiled(StepTimings(before=bursts, loader_workers=4))
    assert found is not None
    assert found.rare is not None
    assert (found.rare.count, found.rare.of, found.rare.cause) == (1, 4, "data-loading")
    assert found.rare.extra_us == pytest.approx(15_000)  # 240 ms in 16 steps
    assert found.rare.cause_us == pytest.approx(15_000)


def test_steps_of_two_lengths_in_turn_and_little_noise_are_not_rare() -> None:
    for steps in ([10.0, 30.0] * 10, [10.0] * 39 + [21.0], [10.0, 10.4] * 20, [10.0]):
        assert rare_steps(timed(*steps)) is None


def test_no_cause_is_named_where_nothing_measured_explains_the_long_steps() -> None:
    found = rare_steps(timed(*[10.0] * 19, 200.0, data_us=1))
    assert found is not None
    assert (found.cause, found.cause_us) == (None, 0.0)


def test_of_old_recordings_the_mean_counts() -> None:
    found = unprofiled(StepTimings(unprofiled_s=(1e-6, 1e-6, 28e-6)))
    assert found is not None
    assert (found.step.median, found.waiting, found.around) == (pytest.approx(10), None, (None, None))
    assert unprofiled(StepTimings()) is None


def run(full: Trace, light: Trace | None, timings: StepTimings, rank: int = 0) -> LoadedRun:
    manifest = Manifest(ranks=(RankRecord(rank=rank, steps=timings),))
    return LoadedRun((full,), manifest, light=() if light is None else (light,))


def test_a_bare_trace_knows_only_what_was_recorded() -> None:
    bare = LoadedRun((made([plain("abc")]),))
    assert as_it_runs(bare) == {}
    assert slowest(bare) is None


def test_busy_is_the_light_pass_device_time_over_the_unprofiled_step() -> None:
    full = made([plain("abcd")] * 2, every=200, length=60)
    light = made([plain("abcd")] * 3, every=120, length=50)
    own = as_it_runs(run(full, light, StepTimings(before=timed(*[400.0] * 20))))[0]
    assert (own.step_us, own.busy_us, own.busy_fraction) == (pytest.approx(400), pytest.approx(200), 0.5)
    assert own.recorded_us == pytest.approx(1000, rel=0.1)
    assert sum(own.idle.values()) == pytest.approx(200)
    assert (
        "light pass (3 steps, 100% of its kernels matched) over 20 steps timed by the device's clock"
        in own.basis
    )


def test_without_a_light_pass_the_full_one_is_scaled() -> None:
    own = as_it_runs(run(made([plain("abcd")] * 2), None, StepTimings(before=timed(*[400.0] * 20))))[0]
    assert own.busy_us == pytest.approx(200)
    assert "scaled from the full pass" in own.basis


def test_passes_of_other_kernels_leave_the_causes_to_the_full_one() -> None:
    full, light = made([plain("abcd")] * 2), made([plain("wxyz")] * 2)
    own = as_it_runs(run(full, light, StepTimings(before=timed(*[400.0] * 20))))[0]
    assert "since the passes' kernels differ" in own.basis


def test_a_device_is_never_busier_than_its_step() -> None:
    own = as_it_runs(run(made([plain("abcd")]), None, StepTimings(before=timed(*[150.0] * 20))))[0]
    assert (own.busy_us, own.busy_fraction, own.idle) == (own.step_us, 1.0, {})
    assert "busy all of it" in own.basis


def test_waiting_for_data_is_what_was_measured_where_the_recording_differs() -> None:
    timings = StepTimings(before=timed(*[400.0] * 20, data_us=150), recorded=timed(1000.0, 1000.0, data_us=0))
    own = as_it_runs(run(made([plain("abcd")] * 2), None, timings))[0]
    assert data_differs(own.timed)
    assert own.idle["data-loading"] == pytest.approx(150)
    assert sum(own.idle.values()) == pytest.approx(200)
    assert "as measured without the profiler" in own.basis
    alike = StepTimings(before=timed(*[400.0] * 20, data_us=150), recorded=timed(1000.0, data_us=155))
    assert "data-loading" not in as_it_runs(run(made([plain("abcd")] * 2), None, alike))[0].idle


def test_a_program_without_a_device_has_a_step_and_no_busy_time() -> None:
    own = as_it_runs(run(made([[], []]), None, StepTimings(before=timed(*[400.0] * 20, clock="host"))))[0]
    assert (own.step_us, own.busy_us, own.busy_fraction, own.idle) == (pytest.approx(400), None, None, {})
    assert own.inflation == pytest.approx(2.5)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.text("abc", max_size=6), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=6), max_size=3),
    st.floats(1, 5000),
    st.floats(0, 5000),
    st.floats(0, 5000),
)
def test_busy_and_idle_sum_to_the_step(
    full: list[str], light: list[str], step_us: float, data_us: float, recorded_us: float
) -> None:
    timings = StepTimings(
        before=timed(*[step_us] * 5, data_us=data_us), recorded=timed(step_us, data_us=recorded_us)
    )
    other = made([plain(names) for names in light]) if light else None
    own = as_it_runs(run(made([plain(names) for names in full]), other, timings))[0]
    if own.busy_us is not None:
        assert own.busy_us + sum(own.idle.values()) == pytest.approx(own.step_us)
        assert 0 <= own.busy_us <= own.step_us
        assert all(us > 0 for us in own.idle.values())


def test_rounds_of_a_job_s_next_phase_are_found_where_those_before_end_elsewhere() -> None:
    """Eight steps, then an evaluation; the second phase begins with two steps that were not timed."""

    def timed(first: int, ends: int, count: int) -> TimedSteps:
        step_s = (0.02,) * count
        between = tuple(0.15 * (number % 8 == ends) for number in range(count))
        return TimedSteps(step_s=step_s, host_s=step_s, between_s=between, first=first)

    before, after, later = timed(0, 7, 20), timed(40, 7, 20), timed(60, 1, 60)
    found = unprofiled(StepTimings(before=before, after=after, later=later, released=True))
    assert found is not None
    assert found.round is not None
    assert found.round.steps == 8
    assert found.round.between_us == pytest.approx(150_000)
