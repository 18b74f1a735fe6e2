"""Idle time, its causes, and that it sums to what is not busy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinetoscope.analysis.idle.gaps import gaps, idle
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read
from traces import host

Make = Callable[..., Trace]
Event = dict[str, Any]


def kernel(name: str, start: float, duration: float, correlation: int, **args: Any) -> Event:
    args = {"device": 0, "stream": 7, "correlation": correlation, **args}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def launch(correlation: int, start: float, duration: float = 5, tid: int = 1) -> Event:
    return host("cudaLaunchKernel", start, duration, "cuda_runtime", tid, correlation=correlation)


def step(number: int, start: float, duration: float) -> Event:
    return host(f"ProfilerStep#{number}", start, duration, "user_annotation")


def causes(trace: Trace) -> dict[str, float]:
    """Idle µs by cause."""
    return {cause: ns / 1000 for cause, ns in idle(LoadedRun((trace,))).select("cause", "idle_ns").rows()}


def test_a_late_launch_is_launch_bound_and_names_its_op(trace_of: Make) -> None:
    trace = trace_of(
        step(1, 0, 200),
        host("aten::mm", 80, 30),
        launch(1, 90),
        kernel("k", 100, 50, 1),
    )
    assert causes(trace) == {"launch-bound": 100, "start-or-end": 50}
    first = gaps(LoadedRun((trace,))).row(0, named=True)
    assert first["text"] == "aten::mm was launched when the device was already idle"
    assert trace.host_events["name"].cast(pl.String)[first["host_event"]] == "aten::mm"


def test_work_that_was_queued_in_time_is_not_the_hosts_doing(trace_of: Make) -> None:
    trace = trace_of(
        step(1, 0, 300),
        launch(1, 1), launch(2, 10),
        kernel("k", 10, 90, 1), kernel("k", 102, 98, 2),
    )  # fmt: skip
    assert causes(trace) == {"launch-bound": 10, "between-kernels": 2, "start-or-end": 100}


def test_running_dry_in_a_synchronisation_costs_the_way_to_the_next_launch(trace_of: Make) -> None:
    trace = trace_of(
        step(1, 0, 310),
        launch(1, 1),
        kernel("k", 10, 90, 1),
        host("aten::item", 40, 80),
        host("cudaStreamSynchronize", 50, 60, "cuda_runtime"),  # until 110; the device runs dry at 100
        launch(2, 200),
        kernel("k", 210, 100, 2),
    )
    assert causes(trace) == {"launch-bound": 10, "synchronization": 110}
    texts = gaps(LoadedRun((trace,))).filter(pl.col("cause") == "synchronization")["text"].unique().to_list()
    assert texts == [
        "the host waited in cudaStreamSynchronize, inside aten::item; nothing was queued behind it"
    ]


@pytest.mark.parametrize(
    ("name", "category", "cause"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation", "data-loading"),
        ("_compile.compile_inner (dynamo_timed)", "cpu_op", "compilation"),
        ("cudaMalloc", "cuda_runtime", "allocator"),
        ("hipFree", "cuda_runtime", "allocator"),
        ("gloo:all_reduce", "user_annotation", "waiting-for-rank"),
        ("aten::sort", "cpu_op", "host-op"),
    ],
)
def test_what_the_thread_did_meanwhile_names_the_cause(
    trace_of: Make, name: str, category: str, cause: str
) -> None:
    trace = trace_of(
        step(1, 0, 5000),
        launch(1, 1), kernel("k", 10, 90, 1),
        host(name, 200, 3000, category),
        launch(2, 3990), kernel("k", 4000, 1000, 2),
    )  # fmt: skip
    # The rest of the gap: 100 µs before and 790 µs after, both shorter than a silence, and the launch itself.
    assert causes(trace) == {cause: 3000, "launch-bound": 10 + 100 + 800}


@pytest.mark.parametrize(
    ("events", "computing"),
    [
        # 40 µs of its own: longer than the op that launches, 10 µs.
        ([host("aten::div", 200, 40)], ["aten::div"]),
        ([host("aten::div", 200, 9)], []),
        ([host("aten::to", 200, 60), host("aten::copy_", 210, 45)], ["aten::copy_"]),
        ([host("aten::transpose", 200, 40)], []),
        ([host("aten::flatten_dense_tensors", 200, 40)], []),
        ([host("MulBackward0", 200, 40)], []),
        ([host("aten::pin", 200, 40), host("cudaEventQuery", 210, 5, "cuda_runtime")], []),
        ([host("aten::conv1d", 200, 90), host("aten::pad", 210, 60)], ["aten::conv1d"]),
    ],
)  # fmt: skip
def test_an_op_that_calls_no_runtime_and_takes_longer_than_a_launch_computes_on_the_cpu(
    trace_of: Make, events: list[Event], computing: list[str]
) -> None:
    trace = trace_of(
        step(1, 0, 1000),
        host("aten::mm", 0, 10), launch(1, 1), kernel("k", 10, 90, 1),
        *events,
        host("aten::mm", 300, 10), launch(2, 301), kernel("k", 310, 690, 2),
    )  # fmt: skip
    found = gaps(LoadedRun((trace,))).filter(pl.col("cause") == "host-op")
    assert trace.host_events["name"].gather(found["host_event"]).cast(pl.String).to_list() == computing
    spans = [event["dur"] for event in events if event["name"] in computing]
    assert (found["end_ns"] - found["start_ns"]).sum() == 1000 * sum(spans)


def test_a_thread_that_records_nothing_is_unexplained(trace_of: Make) -> None:
    trace = trace_of(
        step(1, 0, 30_000),
        launch(1, 1), kernel("k", 10, 90, 1),
        launch(2, 20_100), kernel("k", 20_110, 9_890, 2),
    )  # fmt: skip
    assert causes(trace) == {"unexplained": 20_000, "launch-bound": 20}


def test_the_text_is_that_of_most_of_the_time(trace_of: Make) -> None:
    """Two gaps that the device made of its own, 2 and 3 µs, and one silence of 5 ms."""
    trace = trace_of(
        step(1, 0, 10_000),
        launch(1, 1), launch(2, 12), launch(3, 23),
        kernel("k", 10, 90, 1), kernel("k", 102, 98, 2), kernel("k", 203, 97, 3),
        host("aten::mm", 5300, 30), launch(4, 5310), kernel("k", 5320, 4680, 4),
    )  # fmt: skip
    texts = dict(idle(LoadedRun((trace,))).select("cause", "text").rows())
    assert (
        texts["unexplained"]
        == "the launching thread recorded nothing: Python, or a library that is not profiled"
    )


def test_where_the_launching_thread_is_silent_the_one_before_it_says_why(trace_of: Make) -> None:
    trace = trace_of(
        launch(1, 0), kernel("k", 10, 90, 1),
        host("DataLoader wait", 100, 10),
        host("enumerate(DataLoader)#x.__next__", 120, 3_000, "user_annotation"),
        host("autograd::engine::evaluate_function: MmBackward0", 3_150, 60, tid=2),
        launch(2, 3_190, tid=2), kernel("k", 3_200, 10, 2),
    )  # fmt: skip
    assert causes(trace)["data-loading"] == 3_000


def test_work_launched_before_the_recording_is_its_start(trace_of: Make) -> None:
    trace = trace_of(step(1, 0, 400), kernel("k", 50, 50, 900), launch(1, 200), kernel("k", 210, 190, 1))
    assert causes(trace) == {"start-or-end": 50, "launch-bound": 110}


def test_device_work_without_any_host_event_still_sums_up(trace_of: Make) -> None:
    trace = trace_of(kernel("k", 0, 10, 1), kernel("k", 30, 10, 2))
    assert causes(trace) == {"unexplained": 20}


def test_a_host_that_waits_for_a_collective_begun_before_the_recording(trace_of: Make) -> None:
    trace = trace_of(
        step(1, 0, 200),
        host("cudaEventSynchronize", 0, 160, "cuda_runtime"),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 100, 60, 900),
        launch(1, 165), kernel("k", 170, 30, 1),
    )  # fmt: skip
    assert causes(trace) == {"waiting-for-rank": 100, "launch-bound": 10}


# A program: for each launch, how long the host was busy before it (µs), with what, and how long its work
# took; the work starts when it has arrived and its stream is free. Two threads launch on two streams.
programs = st.lists(
    st.tuples(
        st.integers(0, 3000),
        st.sampled_from(
            ["aten::x", "cudaMalloc", "cudaDeviceSynchronize", "enumerate(DataLoader)#x", "", "launchless"]
        ),
        st.integers(0, 500),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs, with_step=st.booleans())
def test_pieces_of_any_program_are_its_idle_time(
    trace_of: Make, program: list[tuple[int, str, int, bool]], with_step: bool
) -> None:
    events: list[Event] = []
    now, free = 0, {7: 0, 8: 0}
    for number, (before, doing, length, other) in enumerate(program, start=1):
        tid, stream = (2, 8) if other else (1, 7)
        if doing not in ("", "launchless") and before:
            category = "cuda_runtime" if doing.startswith("cuda") else "cpu_op"
            events.append(host(doing, now, before, category, tid))
        now += before
        if doing != "launchless":
            events.append(launch(number, now, tid=tid))
        begin = max(now + 4, free[stream])
        events.append(kernel("k", begin, length, number, stream=stream))
        free[stream] = begin + length
        now += 6
    if with_step:
        events.append(step(1, 2, now))
    trace = trace_of(*events)
    within, pieces = window(trace), gaps(LoadedRun((trace,)))
    busy = intervals.clip(intervals.union(work(trace)), within.start_ns, within.end_ns)
    assert intervals.total(pieces) == within.length_ns - intervals.total(busy)
    assert intervals.total(intervals.union(pieces)) == intervals.total(pieces)
    assert intervals.intersect(pieces, busy).is_empty()


# What is known of these recordings: how they were made (see the data's README) fixes why the device was idle.
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("h200/mm_64_warm_eager", "launch-bound"),
        ("h200/mm_64_cold_eager", "launch-bound"),
        ("h200/llama_generate_eager", "launch-bound"),
        ("h200/densenet121_infer_bs1_compile", "launch-bound"),
        ("h200/forum_return_first", "compilation"),
        ("h200/forum_noreturn_first", "compilation"),
        ("public/kineto_v100_resnet50_2021schema", "data-loading"),
        ("public/tl_mi300x_ddp_resnet18_train", "allocator"),
    ],
)
def test_known_causes(shared_data: Path, name: str, cause: str) -> None:
    table = idle(LoadedRun((read(shared_data / f"{name}.json.gz"),)))
    assert table["cause"][0] == cause
    assert table["idle_ns"][0] > 0.75 * table["idle_ns"].sum()


@pytest.mark.parametrize(
    "name",
    [
        "h200/mm_4096_warm_compile_max-autotune",
        "h200/forum_eager",
        "h200/llama_train_eager_stack",
        "h200-dist/ddp_straggler_rank0",
        "public/kineto_v100_resnet50_2021schema",
        "public/param_v100_dlrm_8rank/rank1",
    ],
)
def test_causes_sum_to_the_idle_time_exactly(shared_data: Path, name: str) -> None:
    trace = read(shared_data / f"{name}.json.gz")
    within = window(trace)
    busy = intervals.clip(intervals.union(work(trace), ["device"]), within.start_ns, within.end_ns)
    want = {device: within.length_ns - ns for device, ns in intervals.length(busy, ["device"]).rows()}
    run = LoadedRun((trace,))
    assert dict(idle(run).group_by("device").agg(pl.col("idle_ns").sum()).rows()) == want
    pieces = gaps(run)
    overlap = intervals.intersect(pieces, busy, ["device"])
    assert overlap.is_empty()
    assert intervals.total(intervals.union(pieces, ["device"])) == sum(want.values())
