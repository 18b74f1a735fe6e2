"""Loops that wait for their data loader, replayed and changed, against the same loops run event by event."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from kinetoscope.analysis.passes.loader import Loader, loader
from kinetoscope.analysis.replay.change import (
    NO_LATE_BATCHES,
    NOTHING,
    ReplayChange,
    faster_loader,
    without_host,
)
from kinetoscope.analysis.replay.path import LATE_BATCHES
from kinetoscope.analysis.replay.replay import StepReplay, alone, job, replay
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings, TimedSteps
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from loading import NEXT, Loop, in_the_long_run, recording, timed

EXAMPLES = settings(deadline=None, max_examples=40)
FEW = settings(deadline=None, max_examples=15)


@st.composite
def loops(draw: st.DrawFn, *, device: bool = False, handover: bool = False) -> Loop:
    batch_us = draw(st.floats(10.0, 4_000.0))
    before_us, after_us = draw(st.floats(20.0, 400.0)), draw(st.floats(20.0, 400.0))
    return Loop(
        workers=draw(st.integers(1, 6)),
        batch_us=lambda _: batch_us,
        handover_us=draw(st.sampled_from([0.01, 0.02, 0.05])) * (before_us + after_us) if handover else 0.0,
        before_us=before_us,
        after_us=after_us,
        kernel_us=draw(st.sampled_from([0.0, 100.0, 600.0])) if device else 0.0,
        syncs=device,
        prefetch=draw(st.integers(2, 4)),
    )


def without_waiting(loop: Loop) -> float:
    return in_the_long_run(replace(loop, batch_us=lambda _: 0.0))


def known(loop: Loop) -> Loader:
    steps = timed(loop)
    step_us = 1e6 * sum(steps.step_s) / len(steps.step_s)
    found = loader(StepTimings(before=steps, loader_workers=loop.workers), step_us, loop.kernel_us or None)
    assert found is not None
    return found


@EXAMPLES
@given(loops(device=True, handover=True))
def test_a_step_takes_the_longer_of_itself_and_what_the_workers_take_for_a_batch(loop: Loop) -> None:
    longer = max(without_waiting(loop), loop.batch_us(0) / loop.workers)
    assert in_the_long_run(loop) == pytest.approx(longer, rel=1e-6)


@EXAMPLES
@given(loops(handover=True))
def test_timed_steps_tell_whether_the_loader_binds_and_what_a_step_takes_without_it(loop: Loop) -> None:
    own_us, per_batch_us = without_waiting(loop), loop.batch_us(0) / loop.workers
    ratio = per_batch_us / own_us
    if 1 < ratio < 1.15:  # too near to each other to be told apart
        return
    found = known(loop)
    assert found.binds == (ratio > 1)
    if found.binds:
        assert found.batch_us == pytest.approx(loop.batch_us(0), rel=1e-3)
        # Where every step waits, what it takes to take a batch over is not known.
        assert own_us - loop.handover_us - 1e-3 <= found.compute_us <= own_us * 1.01
    else:
        assert found.handover_us == pytest.approx(loop.handover_us, abs=1e-3)
        assert found.waiting_us == pytest.approx(0, abs=1e-3)


def test_batches_that_take_unlike_times_are_judged_by_whole_rounds() -> None:
    loop = Loop(workers=4, batch_us=lambda number: 1_600 if number % 3 else 2_400, handover_us=2.0)
    found = known(loop)
    assert found.binds
    assert found.compute_us == pytest.approx(202, rel=0.05)
    twice = in_the_long_run(replace(loop, workers=8))
    assert max(found.compute_us, found.batch_us / 8) == pytest.approx(twice, rel=0.1)


def test_a_wait_of_like_length_in_steps_that_became_slower_is_taking_over() -> None:
    """A loader that binds would have been waited for less."""
    timed_steps = TimedSteps(step_s=(1e-3,) * 20, host_s=(1e-3,) * 20, data_s=(2e-4,) * 20)
    recorded = TimedSteps(step_s=(1.5e-3,) * 4, host_s=(1.5e-3,) * 4, data_s=(2.2e-4,) * 4)
    longer = StepTimings(before=timed_steps, recorded=recorded, loader_workers=2)
    less = StepTimings(
        before=timed_steps,
        recorded=TimedSteps(step_s=(1.2e-3,) * 4, host_s=(1.2e-3,) * 4, data_s=(1e-5,) * 4),
        loader_workers=2,
    )
    first, second = loader(longer, 1000, None), loader(less, 1000, None)
    assert first is not None
    assert not first.binds
    assert first.handover_us == pytest.approx(200)
    assert second is not None
    assert second.binds
    assert second.compute_us == pytest.approx(800)


def test_a_faster_loader_saves_no_more_than_what_is_waited_for_it() -> None:
    """Steps that found their batch ready are the fast ones where the machine is busy with other work."""
    steps = [(40e-3, 0.0), (130e-3, 60e-3), (110e-3, 30e-3), (120e-3, 25e-3)] * 5
    step_s, data_s = zip(*steps, strict=True)
    ready_s = tuple(1e-6 if data == 0.0 else 0.0 for data in data_s)
    timed_steps = TimedSteps(step_s=step_s, data_s=data_s, ready_s=ready_s)
    found = loader(StepTimings(before=timed_steps, loader_workers=1), 115e3, None)
    assert found is not None
    assert found.binds
    assert found.step_us - found.compute_us == pytest.approx(found.waiting_us)


@pytest.mark.parametrize("wait_s", [5e-5, 3e-4])
def test_steps_that_say_which_batches_were_ready_are_believed(wait_s: float) -> None:
    """However short or long their waits are."""
    waits, none = (wait_s,) * 20, (0.0,) * 20
    ready, late = (
        loader(
            StepTimings(before=TimedSteps(step_s=(5e-4,) * 20, data_s=waits, ready_s=each), loader_workers=1),
            500,
            None,
        )
        for each in (waits, none)
    )
    assert ready is not None
    assert late is not None
    assert (ready.binds, ready.handover_us) == (False, pytest.approx(1e6 * wait_s))
    assert (late.binds, late.compute_us) == (True, pytest.approx(500 - 1e6 * wait_s))


def test_a_loader_without_workers_is_none() -> None:
    steps = TimedSteps(step_s=(1e-3,) * 20, data_s=(4e-4,) * 20)
    assert loader(StepTimings(before=steps, loader_workers=0), 1000, None) is None
    assert loader(StepTimings(before=steps), 1000, None) is None


def replayed(run: LoadedRun) -> StepReplay:
    return alone(run)[0]


def less_of(run: LoadedRun, name: str, share: float, of: int = 0) -> ReplayChange:
    host = run.traces[of].host_events
    return without_host(host.filter(pl.col("name").cast(pl.String) == name), share)


@FEW
@given(
    loops(device=True),
    st.sampled_from([0.0, 0.3, 0.6]),
    st.sampled_from([1.0, 0.5, 0.1]),
    st.sampled_from([1.0, 1.6]),
)
def test_changes_save_what_they_save_of_the_loop_that_was_timed(
    loop: Loop, less: float, batch_share: float, slower: float
) -> None:
    """However much slower its host was while it was recorded, so that its batches came in time."""
    own_us, per_batch_us = without_waiting(loop), loop.batch_us(0) / loop.workers
    if 1 < per_batch_us / own_us < 1.15:
        return
    run = recording(loop, replace(loop, slower=slower))
    found = replayed(run)
    binds = per_batch_us > own_us
    assert found.waits_for_batches == binds
    assert found.step_us == pytest.approx(in_the_long_run(loop), rel=0.01)
    changed = replace(loop, before_us=loop.before_us * (1 - less))
    if binds:
        changed = replace(changed, batch_us=lambda _: batch_share * loop.batch_us(0))
    change = less_of(run, "aten::before", less) | faster_loader(batch_share)
    assert found.after(change) == pytest.approx(in_the_long_run(changed), rel=0.15)


def waiting() -> Loop:
    return Loop(workers=2, batch_us=lambda _: 2_000, kernel_us=300)


def test_behind_a_binding_loader_nothing_else_saves_alone_or_together() -> None:
    run = recording(waiting(), replace(waiting(), slower=1.5))
    found = replayed(run)
    assert found.step_us == pytest.approx(1_000)
    both = less_of(run, "aten::before", 1) | less_of(run, "aten::after", 1)
    assert found.after(both) == found.after() == found.step_us
    assert found.after(NO_LATE_BATCHES) == pytest.approx(300, rel=0.02)
    assert found.after(faster_loader(0.5)) == pytest.approx(500)


def test_the_critical_path_names_the_loader_and_sums_to_the_step() -> None:
    run = recording(waiting(), waiting())
    found = replayed(run)
    for change in (NOTHING, faster_loader(0.5), NO_LATE_BATCHES):
        path = found.critical_path(change)
        assert sum(part.us for part in path) == pytest.approx(found.after(change))
        assert any(part.text == LATE_BATCHES for part in path) == (change is not NO_LATE_BATCHES)


def test_waits_that_only_the_recording_had_are_not_the_programs() -> None:
    loop = Loop(workers=2, batch_us=lambda _: 300, handover_us=4.0)
    run = recording(loop, replace(loop, batch_us=lambda _: 1_600))
    found = replayed(run)
    assert not found.waits_for_batches
    assert found.step_us == pytest.approx(204)
    assert found.after(less_of(run, "aten::before", 1)) == pytest.approx(104, rel=0.02)


def test_as_recorded_a_step_takes_what_it_took_waiting_and_all() -> None:
    run = recording(waiting(), waiting())
    assert replay(run.traces[0]).step_us == pytest.approx(1_000, rel=0.05)
    assert replayed(run).error == pytest.approx(0, abs=0.05)


def rank(number: int, waits_us: float) -> Trace:
    """Three steps of 140 µs that end in a collective of 10 µs; rank 1 comes to it 40 µs after rank 0."""
    events: list[traces.Event] = []
    for step in range(3):
        begun, called = 140 * step, 140 * step + 83 + 40 * number
        at = {"device": number, "stream": 7}
        if waits_us:
            events.append(traces.host(NEXT, begun, waits_us, "user_annotation"))
        events += [
            traces.step(step, begun, 140),
            traces.host("forward", begun + waits_us, called - begun - waits_us),
            traces.call("cudaLaunchKernel", called, 1, 10 + step),
            traces.kernel("ncclDevKernel_AllReduce", called + 2, begun + 133 - called, 10 + step, **at),
            traces.call("cudaDeviceSynchronize", called + 1, begun + 139 - called, 0),
        ]
    return traces.trace(*events, rank=number)


def test_of_several_ranks_the_one_whose_loader_binds_is_waited_for() -> None:
    step_s = (1.4e-4,) * 20
    slow = StepTimings(before=TimedSteps(step_s=step_s, data_s=(4e-5,) * 20), loader_workers=1)
    records = (
        RankRecord(rank=0, steps=StepTimings(before=TimedSteps(step_s=step_s))),
        RankRecord(rank=1, steps=slow),
    )
    run = LoadedRun((rank(0, 0), rank(1, 40)), Manifest(ranks=records))
    joint = job(run)
    assert joint is not None
    assert joint.waits_for_batches
    assert joint.step_us == pytest.approx(140)
    forward = {trace.rank: less_of(run, "forward", 0.3, trace.rank) for trace in run.traces}
    assert joint.after(forward[joint.rank], forward) == pytest.approx(140)
    assert joint.after(NOTHING, {1: NO_LATE_BATCHES}) == pytest.approx(100, abs=2)
