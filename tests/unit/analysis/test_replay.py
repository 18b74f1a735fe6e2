"""Replays against machines that run the same program event by event."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import traces
from kinetoscope.analysis.replay.change import (
    ReplayChange,
    in_a_row,
    merge_launches,
    no_wait,
    shorten,
    without_host,
)
from kinetoscope.analysis.replay.graph import gone_until
from kinetoscope.analysis.replay.host import logical_threads, quiet
from kinetoscope.analysis.replay.numbers import larger, shares
from kinetoscope.analysis.replay.replay import StepReplay, replay
from kinetoscope.sources.run import LoadedRun as Recording
from kinetoscope.trace.model import Trace
from rank_replays import replays
from replayed import Changes, Copy, Instruction, Launch, Machine, Program, Run, Sync

NONE = Changes()
EXAMPLES = settings(deadline=None, max_examples=15)
HOST_NS = st.integers(2_000, 60_000)
DEVICE_NS = st.integers(1_000, 80_000)
INSTRUCTIONS: st.SearchStrategy[Instruction] = st.one_of(
    st.builds(Run, st.sampled_from([1, 2]), HOST_NS),
    st.builds(Launch, st.sampled_from([0, 1]), DEVICE_NS, st.booleans()),
    st.builds(Launch, st.just(0), DEVICE_NS),
    st.builds(Copy, DEVICE_NS),
    st.builds(Sync, st.booleans()),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Both threads launch, so that both count; the first launch finds an idle device."""
    body = draw(st.lists(INSTRUCTIONS, max_size=14))
    return [Run(2, 5_000), Launch(0, 2_000), Run(1, draw(HOST_NS)), Launch(0, draw(DEVICE_NS)), *body]


@st.composite
def changes(draw: st.DrawFn, program: Program) -> Changes:
    share = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0])
    work = {n: draw(share) * one.ns for n, one in enumerate(program) if isinstance(one, Launch | Copy)}
    host = {n: draw(share) for n, one in enumerate(program) if isinstance(one, Run)}
    waits = {n for n, one in enumerate(program) if isinstance(one, Sync | Copy) and draw(st.booleans())}
    return Changes(work, host, frozenset(waits))


def as_change(trace: Trace, program: Program, changes: Changes) -> ReplayChange:
    """The same changes in a trace's terms."""
    host, device = trace.host_events, trace.device_events
    names = device["name"].cast(pl.String).str.split(" ").list.last().cast(pl.Int64)
    saved = pl.Series([changes.saved.get(place, 0.0) for place in names], dtype=pl.Float64)
    change = shorten(device["id"], saved)
    for place, share in changes.shares.items():
        change |= without_host(host.filter(pl.col("name").cast(pl.String) == f"op {place}"), share)
    calls = host.filter(pl.col("name").cast(pl.String).str.contains("Synchronize|Memcpy")).sort("start_ns")
    places = [place for place, one in enumerate(program) if isinstance(one, Sync | Copy)]
    free = [n % len(places) in [places.index(place) for place in changes.free] for n in range(len(calls))]
    return change | no_wait(calls["id"].filter(pl.Series(free, dtype=pl.Boolean)))


def run(program: Program, change: Changes = NONE) -> float:
    machine = Machine(change)
    machine.run(program)
    return machine.end_ns / 1000


def recorded(program: Program) -> Trace:
    machine = Machine()
    machine.run(program)
    return traces.trace(*machine.events)


@EXAMPLES
@given(st.data())
def test_a_recording_replays_as_the_machine_ran_and_would_run_changed(data: st.DataObject) -> None:
    program = data.draw(programs())
    change = data.draw(changes(program))
    trace = recorded(program)
    found = replay(trace)
    assert found.step_us == pytest.approx(run(program), abs=1e-3)
    assert found.after(as_change(trace, program, change)) == pytest.approx(run(program, change), abs=1e-3)
    assert found.unexplained == 0


@EXAMPLES
@given(st.data())
def test_steps_take_what_the_machine_needs_a_round_in_the_long_run(data: st.DataObject) -> None:
    program = data.draw(programs())
    change = data.draw(changes(program))
    machine = Machine()
    for step in range(3):
        machine.run(program, step)
    trace = traces.trace(*machine.events)
    found = replay(trace)
    ratio = found.after(as_change(trace, program, change)) / found.step_us
    assert ratio == pytest.approx(in_the_long_run(program, change) / in_the_long_run(program), rel=1e-6)


def in_the_long_run(program: Program, change: Changes = NONE, rounds: int = 240) -> float:
    """What a round takes once the program is steady: of the second half of many."""
    machine = Machine(change)
    for _ in range(rounds):
        machine.run(program)
    half = machine.end_ns
    for _ in range(rounds):
        machine.run(program)
    return (machine.end_ns - half) / rounds


@EXAMPLES
@given(st.data())
def test_more_saved_is_never_slower_and_both_are_no_slower_than_either(data: st.DataObject) -> None:
    program = data.draw(programs())
    trace = recorded(program)
    found = replay(trace)
    one, other = (as_change(trace, program, data.draw(changes(program))) for _ in range(2))
    both = found.after(one | other)
    assert 0 <= both <= min(found.after(one), found.after(other)) + 1e-6
    assert both == pytest.approx(found.after(replace(one | other, both=None)), abs=1e-6)
    assert max(found.after(one), found.after(other)) <= found.step_us
    assert found.after(ReplayChange()) == found.step_us


@EXAMPLES
@given(st.data())
def test_the_critical_path_sums_to_the_step(data: st.DataObject) -> None:
    program = data.draw(programs())
    trace = recorded(program)
    found: StepReplay = replay(trace)
    change = as_change(trace, program, data.draw(changes(program)))
    for done in (ReplayChange(), change):
        assert sum(part.us for part in found.critical_path(done)) == pytest.approx(
            found.after(done), abs=1e-3
        )


def test_kernels_of_two_streams_take_no_less_side_by_side_than_they_were_recorded_to() -> None:
    """Launched at once each stream would be done after 40 µs; recorded, they computed for 70."""
    events = [traces.step(0, 0, 100)]
    for number, (at, length) in enumerate(((10, 30), (35, 40), (70, 10)), 1):
        events += [
            traces.host("aten::mm", at - 9, 10),
            traces.call("cudaLaunchKernel", at, 1, number),
            traces.kernel("gemm", at + 2, length, number, stream=7 + number % 2),
        ]
    trace = traces.trace(*events, traces.call("cudaDeviceSynchronize", 75, 20, 0))
    found = replay(trace)
    lane = trace.host_events.select("lane").head(1)
    at_once = without_host(lane.with_columns(start_ns=pl.lit(0), duration_ns=pl.lit(100_000)))
    shorter = at_once | shorten(pl.Series([1], dtype=pl.UInt32), pl.Series([25_000.0]))
    assert found.after(at_once) == pytest.approx(70)
    assert 50 <= found.after(shorter) < 70
    assert sum(part.us for part in found.critical_path(at_once)) == pytest.approx(70)


def collectives(late_us: float) -> tuple[Trace, Trace]:
    """Two steps of two ranks that meet in one collective of 10 µs each; rank 1 comes ``late_us`` later."""

    def rank(number: int, own_us: float) -> Trace:
        events: list[traces.Event] = []
        for step in range(2):
            begun = step * (100 + late_us)
            called = begun + own_us
            end = begun + 100 + late_us
            device = {"device": number, "stream": 7}
            events += [
                traces.step(step, begun, 100 + late_us),
                traces.host("forward", begun, own_us),
                traces.call("cudaLaunchKernel", called, 1, 10 + step),
                traces.kernel(
                    "ncclDevKernel_AllReduce", called + 2, end - 5 - called - 2, 10 + step, **device
                ),
                traces.call("cudaDeviceSynchronize", called + 1, end - called - 1, 0),
            ]
        return traces.trace(*events, rank=number)

    return rank(0, 83), rank(1, 83 + late_us)


def test_a_straggler_that_is_sped_up_is_no_longer_waited_for() -> None:
    run = Recording(collectives(late_us=40))
    found = replays(run)
    assert found[0].step_us == pytest.approx(140)
    forward = run.traces[1].host_events.filter(pl.col("name").cast(pl.String) == "forward")
    sooner = without_host(forward, 40 / 123)
    assert found[1].after(sooner) == pytest.approx(100)
    assert found[0].after(others={1: sooner}) == pytest.approx(100)
    # The one that waits gains nothing by itself: it only waits longer.
    own = run.traces[0].host_events.filter(pl.col("name").cast(pl.String) == "forward")
    assert found[0].after(without_host(own)) == pytest.approx(140)


def test_one_rank_alone_takes_its_collectives_as_they_were() -> None:
    alone = replays(Recording(collectives(late_us=40)[:1]))[0]
    assert alone.step_us == pytest.approx(140)


def test_merged_kernels_spare_the_ops_of_all_but_the_first() -> None:
    events = [traces.step(0, 0, 90)]
    for number, length in enumerate((10, 20, 5)):
        events += [
            traces.host("aten::mul", 1 + 20 * number, 18),
            traces.call("cudaLaunchKernel", 5 + 20 * number, 2, 1 + number),
            traces.kernel("k", 10 + 20 * number, length, 1 + number),
        ]
    trace = traces.trace(*events)
    chain = {"id": [0, 1, 2], "chain": [0, 0, 0], "saved_ns": [10_000, 0, 5_000]}
    merged = merge_launches(trace, pl.DataFrame(chain, schema_overrides={"id": pl.UInt32}))
    assert dict(merged.device.iter_rows()) == {0: 10_000, 2: 5_000}
    assert merged.host.select("start_ns", "end_ns").rows() == [(21_000, 39_000), (41_000, 59_000)]


def test_overlapping_stretches_go_once_with_the_larger_share() -> None:
    stretches = pl.DataFrame(
        {"start_ns": [0, 5, 5, 40], "end_ns": [20, 10, 30, 50], "share": [0.5, 1.0, 0.25, 1.0]}
    )
    largest = [
        max((share for start, end, share in stretches.iter_rows() if start <= at < end), default=0.0)
        for at in range(60)
    ]
    instants = pl.Series([-3, 0, 1, 1, 7, 10, 20, 29, 41, 50, 59])
    expected = [sum(largest[: max(0, at)]) for at in instants]
    steps = shares(stretches)
    assert gone_until(steps, instants).to_list() == pytest.approx(expected)
    halves = (shares(stretches[half]) for half in (slice(0, None, 2), slice(1, None, 2)))
    assert gone_until(larger(*halves), instants).to_list() == pytest.approx(expected)
    none = shares(stretches.clear())
    assert gone_until(larger(none, steps), instants).to_list() == pytest.approx(expected)
    assert gone_until(none, instants).to_list() == [0.0] * len(instants)


def test_a_thread_is_quiet_in_a_long_op_and_not_while_it_wakes_another() -> None:
    events = [
        traces.call("cudaLaunchKernel", 10, 5, 1, tid=1),
        traces.kernel("k", 20, 5, 1),
        traces.call("cudaLaunchKernel", 300, 5, 2, tid=2),
        traces.kernel("k", 320, 5, 2),
        traces.host("aten::sort", 350, 200, tid=2),
        traces.host("aten::sort", 560, 90, tid=2),
    ]
    trace = traces.trace(*events)
    begun = trace.host_events["start_ns"].min()
    assert isinstance(begun, int)
    (steps,) = quiet(trace).values()
    assert [((at - begun) // 1000 + 10, share) for at, share in steps.iter_rows()] == [(350, 1.0), (550, 0.0)]


def test_threads_that_hand_over_are_one_strand_and_those_that_overlap_are_not() -> None:
    # A step's mark, an op in the 2021 schema, is around all that the other thread does.
    mark = traces.host("ProfilerStep#0", 0, 100)
    forward = [
        traces.host("aten::mm", 1, 20),
        traces.call("cudaLaunchKernel", 2, 2, 1),
        traces.kernel("k", 5, 3, 1),
    ]

    def backward(begun: float) -> list[traces.Event]:
        return [
            traces.host("MmBackward0", begun, 20, tid=2),
            traces.call("cudaLaunchKernel", begun + 1, 2, 2, tid=2),
            traces.kernel("k", begun + 5, 3, 2),
        ]

    assert logical_threads(traces.trace(mark, *forward, *backward(30)))["thread"].to_list() == [0, 0]
    assert logical_threads(traces.trace(mark, *forward, *backward(10)))["thread"].to_list() == [0, 1]


HELD = 1_000.0  # host time behind the waits below, so that the host is what the recording takes


def held(name: str, begun: float, ended: float, correlation: int = 0) -> list[traces.Event]:
    return [traces.call(name, begun, ended - begun, correlation), traces.host("aten::later", ended, HELD)]


@pytest.mark.parametrize(
    ("call", "kernel", "saved_us"),
    [
        # A copy from pageable memory holds the host although its call says it does not.
        (held("cudaMemcpyAsync", 1, 50, 1), traces.kernel("Memcpy HtoD (Pageable -> Device)", 10, 38, 1), 19),
        # One from pinned memory does not, however long the call took.
        (held("cudaMemcpyAsync", 1, 50, 1), traces.kernel("Memcpy HtoD (Pinned -> Device)", 10, 38, 1), 0),
        # An event had happened when the call returned: the latest before is taken for it.
        (held("cudaEventSynchronize", 5, 50), traces.kernel("k", 10, 38, 1), 19),
        # It had happened long before: nothing was waited for.
        (held("cudaEventSynchronize", 30, 50), traces.kernel("k", 10, 10, 1), 0),
        # Freeing memory waits for the device, where it does.
        (held("cudaFree", 20, 50), traces.kernel("k", 10, 38, 1), 19),
        (held("cudaFree", 30, 50), traces.kernel("k", 10, 10, 1), 0),
        # Work that went on when the call returned was not waited for.
        (held("cudaStreamSynchronize", 20, 50), traces.kernel("k", 10, 100, 1), 0),
    ],
)
def test_what_the_host_waits_for(call: list[traces.Event], kernel: traces.Event, saved_us: float) -> None:
    launch = [] if call[0]["args"]["correlation"] else [traces.call("cudaLaunchKernel", 1, 2, 1)]
    trace = traces.trace(*launch, *call, kernel)
    found = replay(trace)
    device = trace.device_events
    assert found.step_us - found.after(shorten(device["id"], device["duration_ns"] * 0.5)) == saved_us


def test_a_launch_into_a_full_queue_waits_for_room() -> None:
    ahead, length = 600, 100.0
    events = [traces.call("cudaLaunchKernel", float(n), 0.9, n + 1) for n in range(ahead)]
    events += [traces.kernel("k", 5 + n * length, length, n + 1) for n in range(ahead + 1)]
    full = 5 + 20 * length + 1  # twenty kernels are done
    events += held("cudaLaunchKernel", float(ahead), full, ahead + 1)
    later = traces.host("aten::much_later", full + HELD, ahead * length)
    trace = traces.trace(*events, later)
    device = trace.device_events
    found = replay(trace)
    saved = found.step_us - found.after(shorten(device["id"], device["duration_ns"] * 0.5))
    assert saved == pytest.approx(20 * length / 2, abs=1)


def test_kernels_of_a_graph_follow_its_one_launch() -> None:
    events = [traces.call("cudaGraphLaunch", 0, 10, 1), traces.call("cudaDeviceSynchronize", 12, 100, 0)]
    events += [traces.kernel("k", 10 + 11 * n, 10, 1) for n in range(9)]
    trace = traces.trace(*events)
    found = replay(trace)
    assert found.step_us == pytest.approx(112)
    halves = shorten(trace.device_events["id"], trace.device_events["duration_ns"] * 0.5)
    assert found.after(halves) == pytest.approx(112 - 45)


def test_a_loop_s_time_reaches_from_call_to_call() -> None:
    calls = pl.DataFrame(
        {
            "lane": [1, 0, 0, 0],
            "start_ns": [5, 0, 30, 100],
            "duration_ns": [7, 10, 10, 10],
        }
    )
    spans = in_a_row(calls, 20).sort("lane", "start_ns")
    assert spans["duration_ns"].to_list() == [30, 10, 10, 7]  # 20 ns to the next, 60 to the one after
