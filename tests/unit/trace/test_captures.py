"""Replayed kernels get the ops of the capture, or none."""

from __future__ import annotations

from kinetoscope.analysis.origins.attribution import attribution, lines_of_work
from kinetoscope.trace.captures import captures, is_capture, with_captures
from kinetoscope.trace.model import Trace
from traces import Event, call, event, host, kernel, trace

STEP = "step[DECODE bs={}]"


def capture_of(*ops: str, batch: int = 4, at: float = 0.0) -> list[Event]:
    """A capture that launches one kernel an op."""
    events = [
        event("user_annotation", f"capture_{batch}_FULL", at, 1000),
        call("cudaStreamBeginCapture", at + 1, 1, 0),
        call("cudaStreamEndCapture", at + 900, 1, 0),
    ]
    for place, op in enumerate(ops):
        start = at + 10 + 10 * place
        events += [
            event("python_function", "nn.Module: Block_0", start, 9),
            event("python_function", f"engine/layers.py({place + 3}): forward", start + 0.2, 8.6),
            event("python_function", "torch/nn/functional.py(99): relu", start + 0.4, 8),
            host(op, start + 1, 7, **{"Input Dims": [[batch, 8]]}),
            call("cudaLaunchKernel", start + 2, 1, 5000 + place),
        ]
    return events


def replay(step: int, *kernels: str, batch: int = 4, streams: tuple[int, ...] = (7,)) -> list[Event]:
    """A step that replays one graph of these kernels."""
    at, correlation = 10_000.0 + 1000 * step, 100 + step
    events = [
        event("user_annotation", STEP.format(batch), at, 100),
        call("cudaGraphLaunch", at + 5, 10, correlation),
    ]
    for place, name in enumerate(kernels):
        one = kernel(name, at + 200 + 10 * place, 8, correlation)
        stream = streams[place % len(streams)]
        events.append(one | {"tid": stream, "args": one["args"] | {"stream": stream}})
    return events


def ops_of(read: Trace) -> list[str | None]:
    device = read.device_events.sort("start_ns")
    return read.host_events["name"].cast(str).gather(device["op"]).to_list()


def test_the_i_th_launch_of_a_capture_is_the_i_th_event_of_each_replay() -> None:
    run = trace(*replay(0, "gemm", "relu"), *replay(1, "gemm", "relu"))
    joined = with_captures(run, [trace(*capture_of("aten::mm", "aten::relu"))])
    assert ops_of(joined) == ["aten::mm", "aten::relu"] * 2
    assert set(joined.argument("input_dims", joined.device_events["op"])) == {"[[4, 8]]"}
    assert set(attribution(joined)["module_name"]) == {"Block_0"}
    assert lines_of_work(joined, None)["line"].to_list() == ["layers.py:3 forward", "layers.py:4 forward"] * 2
    assert joined.host_events["id"].to_list() == list(range(len(joined.host_events)))
    assert joined.device_events["launch"].equals(run.device_events["launch"])


def test_a_capture_of_another_number_or_kind_of_launches_says_nothing() -> None:
    run = trace(*replay(0, "gemm", "relu"))
    for other in (("aten::mm",), ("aten::mm", "aten::relu", "aten::add")):
        assert ops_of(with_captures(run, [trace(*capture_of(*other))])) == [None, None]


def test_a_copy_that_the_driver_does_by_a_kernel_is_the_captured_copy() -> None:
    # torch 2.11, CUDA 13.0: 64 bytes from device to device in a captured step of examples/serve.py.
    run = trace(*replay(0, "gemm", "memcpy32_post"))
    captured = capture_of("aten::mm", "aten::copy_")
    captured[-1] = captured[-1] | {"name": "cudaMemcpyAsync"}
    assert ops_of(with_captures(run, [trace(*captured)])) == ["aten::mm", "aten::copy_"]
    assert ops_of(with_captures(run, [trace(*capture_of("aten::mm", "aten::relu"))])) == [None, None]


def test_an_op_that_is_called_as_its_kernel_must_have_it() -> None:
    run = trace(*replay(0, "triton_poi_a", "triton_poi_b"))
    wrong = trace(*capture_of("triton_poi_b", "triton_poi_a"))
    right = trace(*capture_of("triton_poi_a", "triton_poi_b"))
    assert ops_of(with_captures(run, [wrong])) == [None, None]
    assert ops_of(with_captures(run, [right])) == ["triton_poi_a", "triton_poi_b"]


def test_a_replay_without_its_last_events_is_joined_where_its_last_has_its_ops_name() -> None:
    """ROCm's profiler left the last kernel of each of xDiT's graphs out: 1,566 of 1,567."""
    captured = trace(*capture_of("aten::mm", "triton_poi_a", "aten::mm"))
    run = trace(*replay(0, "gemm", "triton_poi_a"), *replay(1, "gemm", "triton_poi_a"))
    assert ops_of(with_captures(run, [captured])) == ["aten::mm", "triton_poi_a"] * 2
    whole = trace(*capture_of("aten::relu", "triton_poi_a"))
    assert ops_of(with_captures(run, [captured, whole])) == ["aten::relu", "triton_poi_a"] * 2
    for other in (("gemm",), ("gemm", "triton_poi_b"), ("gemm", "triton_poi_a", "gemm", "triton_poi_a")):
        assert ops_of(with_captures(trace(*replay(0, *other)), [captured])) == [None] * len(other)


def test_the_least_batch_that_holds_the_steps_is_meant() -> None:
    run = trace(*replay(0, "k", batch=3), *replay(1, "k", batch=6))
    known = [trace(*capture_of(f"aten::op{size}", batch=size)) for size in (2, 4, 8)]
    assert ops_of(with_captures(run, known)) == ["aten::op4", "aten::op8"]


def test_pieces_are_joined_in_the_order_of_their_capture() -> None:
    pieces = [event for place in range(3) for event in capture_of(f"aten::layer{place}", at=1000.0 * place)]
    events = [event("user_annotation", STEP.format(4), 10_000, 900)]
    for place in range(3):
        at = 10_010.0 + 100 * place
        events += [call("cudaGraphLaunch", at, 5, 70 + place), kernel("k", at + 20, 9, 70 + place)]
    assert ops_of(with_captures(trace(*events), [trace(*pieces)])) == [f"aten::layer{n}" for n in range(3)]


def test_two_that_fit_are_not_guessed_between() -> None:
    run = trace(call("cudaGraphLaunch", 5, 1, 9), kernel("k", 20, 5, 9))
    both = [trace(*capture_of("aten::one")), trace(*capture_of("aten::two"))]
    assert ops_of(with_captures(run, both)) == [None]


def test_an_order_over_streams_is_not_the_captured_one() -> None:
    run = trace(*replay(0, "gemm", "relu", streams=(7, 8)))
    assert ops_of(with_captures(run, [trace(*capture_of("aten::mm", "aten::relu"))])) == [None, None]


def test_a_recording_of_captures_is_told_from_one_of_a_run() -> None:
    capture = trace(*capture_of("aten::mm"))
    assert is_capture(capture)
    assert [one.batch for one in captures(capture)] == [4]
    assert not is_capture(trace(*replay(0, "k")))
    assert not is_capture(trace(*capture_of("aten::mm"), *replay(0, "k")))  # its engine marks a step


def test_a_capture_that_ends_with_one_replay_is_no_step() -> None:
    # Inductor records a graph, and replays it to have the results: xDiT's capture traces are of such a call.
    replays = [replay(step, "gemm", "relu")[1:] for step in range(2)]
    warm_up = [
        one
        for at in range(3)
        for one in (call("cudaLaunchKernel", 8500.0 + at, 1, at), kernel("gemm", 8600.0 + 10 * at, 8, at))
    ]
    capture = capture_of("aten::mm", "aten::relu", at=9000)
    assert is_capture(trace(*warm_up, *capture, *replays[0]))
    assert not is_capture(trace(*warm_up, *capture, *replays[0], *replays[1]))
    again = capture_of("aten::mm", "aten::relu", at=10_050)[1:]
    assert is_capture(trace(*warm_up, *capture, *replays[0], *again, *replays[1]))
    # Of a run that captures little by the way.
    waited = call("cudaDeviceSynchronize", 20_000, 100, 7777)
    assert not is_capture(trace(*warm_up, *capture, *replays[0], waited))


def test_where_the_recording_says_which_capture_is_replayed_that_one_is_meant() -> None:
    noted = [
        event("graph_replay", f"capture {n}", 10_000.0 + 1000 * step, 0.001) for step, n in enumerate([1, 0])
    ]
    run = trace(*noted, *replay(0, "k", batch=3), *replay(1, "k", batch=3))
    numbered = [captures(trace(*capture_of(f"aten::op{n}")))[0] for n in range(2)]
    assert ops_of(with_captures(run, [], numbered)) == ["aten::op1", "aten::op0"]
    assert ops_of(with_captures(run, [], [None, None])) == [None, None]
