"""The what-if against a replay written as a plain loop."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from kinetoscope.analysis.idle import timeline
from kinetoscope.analysis.idle.launches import arrival_ns
from kinetoscope.trace.model import Trace

LATENCY = 1_000


@dataclass(frozen=True)
class Launch:
    """A launch some time after the one before, of a kernel of some length; ``waits``: the host then
    synchronises."""

    host_ns: int
    kernel_ns: int
    waits: bool


LAUNCHES = st.lists(
    st.builds(Launch, st.integers(2_000, 20_000), st.integers(1_000, 40_000), st.booleans()),
    min_size=2,
    max_size=25,
)


def replay(launches: list[Launch], kernels: list[int], host: list[int]) -> tuple[list[tuple[int, ...]], int]:
    """(launch, start, end, synchronise start, synchronise end) of each, and when the device is done: one
    stream, each kernel as soon as it has arrived and the one before has ended; a wait ends when the device is
    idle."""
    now = device = 0
    rows: list[tuple[int, ...]] = []
    for launch, kernel, host_ns in zip(launches, kernels, host, strict=True):
        now += host_ns
        start = max(now + LATENCY, device)
        device = start + kernel
        called = now + 500
        done = max(called, device) if launch.waits else called
        rows.append((now, start, device, called, done))
        now = done
    return rows, device


def trace_of(launches: list[Launch], began_us: int = 0) -> Trace:
    rows, _ = replay(launches, [x.kernel_ns for x in launches], [x.host_ns for x in launches])
    events: list[traces.Event] = []
    for i, ((at, start, end, called, done), launch) in enumerate(zip(rows, launches, strict=True), 1):
        events.append(traces.call("cudaLaunchKernel", began_us + at / 1000, 0.4, i))
        if launch.waits:
            events.append(
                traces.call(
                    "cudaStreamSynchronize", began_us + called / 1000, (done - called) / 1000, 1000 + i
                )
            )
        events.append(traces.kernel("k", began_us + start / 1000, (end - start) / 1000, i))
    return traces.trace(*events)


@settings(max_examples=120, deadline=None)
@given(LAUNCHES)
def test_nothing_shorter_gains_nothing(launches: list[Launch]) -> None:
    trace = trace_of(launches)
    ids = trace.device_events.select("id", pl.lit(0).alias("saved_ns"))
    assert timeline.sooner(trace, ids) == 0


@settings(max_examples=300, deadline=None)
@given(LAUNCHES, st.data())
def test_shorter_kernels_gain_what_a_replay_gains(launches: list[Launch], data: st.DataObject) -> None:
    trace = trace_of(launches)
    left = [data.draw(st.integers(0, launch.kernel_ns)) for launch in launches]
    saved = pl.DataFrame(
        {
            "id": trace.device_events["id"],
            "saved_ns": [x.kernel_ns - n for x, n in zip(launches, left, strict=True)],
        }
    )
    host = [x.host_ns for x in launches]
    _, before = replay(launches, [x.kernel_ns for x in launches], host)
    _, after = replay(launches, left, host)
    gained = timeline.sooner(trace, saved)
    # A launch arrives LATENCY after its call; the trace only tells nearly the least that launches took to
    # start, which is more where all of them queued. But for that the replay in parts is exact.
    assert abs(gained - (before - after)) <= _slack(trace)


def _slack(trace: Trace) -> int:
    """By how much the latency that the trace shows exceeds the real one, once for each part."""
    return (arrival_ns(trace) - LATENCY) * (len(timeline.waits_of(trace)) + 1) + 1


def test_a_launch_bound_chain_gains_nothing_from_shorter_kernels() -> None:
    trace = trace_of([Launch(20_000, 2_000, False)] * 10)
    ids = trace.device_events.select("id", pl.lit(1_000).alias("saved_ns"))
    assert timeline.sooner(trace, ids) == 1_000  # the last kernel's alone


def test_a_device_bound_chain_gains_all_of_it() -> None:
    trace = trace_of([Launch(2_000, 20_000, False)] * 10)
    ids = trace.device_events.select("id", pl.lit(5_000).alias("saved_ns"))
    assert timeline.sooner(trace, ids) == 50_000


def test_shorter_host_work_gains_in_a_launch_bound_chain() -> None:
    trace = trace_of([Launch(20_000, 2_000, False)] * 10)
    spared = trace.host_events.select((pl.col("start_ns") - 10).alias("at"), pl.lit(4_000).alias("saved_ns"))
    assert timeline.sooner_launched(trace, spared) == 40_000


def test_times_since_1970_are_as_exact() -> None:
    """A double tells apart only every 256th nanosecond of today's."""
    trace = trace_of([Launch(2_000, 20_001_000, False)] * 10, began_us=1_780_000_000_000_000)
    ids = trace.device_events.select("id", pl.lit(1_000).alias("saved_ns"))
    assert timeline.sooner(trace, ids) == 10_000
    assert timeline.sooner(trace, ids.with_columns(saved_ns=pl.lit(0))) == 0
    launch_bound = trace_of([Launch(20_000, 2_000, False)] * 10, began_us=1_780_000_000_000_000)
    ids = launch_bound.device_events.select("id", pl.lit(1_000).alias("saved_ns"))
    assert timeline.sooner(launch_bound, ids.head(9)) == 0


THREADS = st.lists(
    st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(3, 10), st.integers(1, 50), st.booleans()),
    min_size=3,
    max_size=14,
)


@settings(deadline=None, max_examples=50)
@given(THREADS)
def test_host_work_of_two_threads_gains_no_more_than_it_took(turns: list[tuple[int, ...]]) -> None:
    events: list[traces.Event] = []
    now = {1: 0, 2: 0}
    device = spared = 0
    for number, (thread, pause, took, length, waits) in enumerate(turns, start=1):
        start = now[thread] + pause
        now[thread] = start + took + 5
        if waits:
            events.append(traces.host("cudaDeviceSynchronize", start, took, "cuda_runtime", thread))
            continue
        events.append(traces.call("cudaLaunchKernel", start, took, number, thread))
        device = max(device, start + took)
        events.append(traces.kernel("k", device, length, number))
        device += length
        spared += took * 1000
    calls = [event for event in events if event["name"] == "cudaLaunchKernel"]
    table = pl.DataFrame(
        {
            "at": [(event["ts"] + event["dur"]) * 1000 for event in calls],
            "saved_ns": [event["dur"] * 1000 for event in calls],
        },
        schema={"at": pl.Int64, "saved_ns": pl.Int64},
    ).sort("at")
    assert timeline.sooner_launched(traces.trace(*events), table) <= spared
