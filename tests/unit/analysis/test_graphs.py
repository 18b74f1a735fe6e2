"""Compiled graphs: which way a call went, of which compile id, and what was its own."""

from __future__ import annotations

from kinetoscope.analysis.compiled.regions import graph_calls, graph_categories, graphs
from kinetoscope.analysis.origins.attribution import belonging
from kinetoscope.analysis.origins.sums import kernels
from kinetoscope.sources.run import LoadedRun
from traces import Event, call, host, kernel, step, trace


def graph(hash_: str, ts: float, dur: float) -> Event:
    return host(f"## Call CompiledFxGraph {hash_} ##", ts, dur, "user_annotation")


def training() -> list[Event]:
    """A compiled forward with one kernel, and its backward, on autograd's thread, with two; an eager kernel
    after."""
    return [
        step(1, 0, 1000),
        host("Torch-Compiled Region: 0/1", 10, 200),
        host("CompiledFunction", 20, 180, **{"Sequence number": 5}),
        graph("fff", 30, 100),
        call("cudaLaunchKernel", 40, 2, 1),
        kernel("triton_poi_fused_0", 300, 10, 1),
        host("autograd::engine::evaluate_function: CompiledFunctionBackward", 400, 200, tid=2)
        | {"args": {"Sequence number": 5}},
        host("CompiledFunctionBackward", 410, 180, tid=2, **{"Sequence number": 5}),
        host("## Call CompiledFxGraph bbb ##", 420, 100, "user_annotation", tid=2),
        call("cudaLaunchKernel", 430, 2, 2, tid=2),
        call("cudaLaunchKernel", 440, 2, 3, tid=2),
        kernel("triton_red_fused_0", 500, 20, 2),
        kernel("nvjet_tst", 520, 60, 3),
        host("Optimizer.step#SGD.step", 700, 100, "user_annotation"),
        call("cudaLaunchKernel", 710, 2, 4),
        kernel("void at::native::elementwise_kernel<1>(int)", 720, 5, 4),
        kernel("lost", 730, 5, 99),
    ]


def test_direction_and_compile_id_of_each_call() -> None:
    calls = graph_calls(trace(*training()))
    assert calls.select("hash", "direction", "compile_id").sort("direction").rows() == [
        ("fff", "forward", "0/1"),
        ("bbb", "backward", "0/1"),
    ]


def test_a_call_outside_of_autograd_is_inference() -> None:
    recorded = trace(host("Torch-Compiled Region: 2/0", 0, 100), graph("abc", 10, 50), graph("xyz", 200, 50))
    assert graph_calls(recorded).select("hash", "direction", "compile_id").rows() == [
        ("abc", "inference", "2/0"),
        ("xyz", "inference", None),
    ]


def test_device_time_by_graph_and_category() -> None:
    run = LoadedRun((trace(*training()),))
    rows = graphs(run).select("graph", "calls", "host_ns", "launches", "device_time_ns").rows()
    assert rows == [("0/1 backward bbb", 1, 100_000, 2, 80_000), ("0/1 forward fff", 1, 100_000, 1, 10_000)]
    categories = graph_categories(run).select("graph", "category", "device_time_ns", "share_of_graph").rows()
    assert categories == [
        ("0/1 backward bbb", "matmul", 60_000, 0.75),
        ("0/1 backward bbb", "reduction", 20_000, 0.25),
        ("0/1 forward fff", "pointwise", 10_000, 1.0),
    ]


def test_what_each_kernel_belongs_to() -> None:
    table = belonging(LoadedRun((trace(*training()),)))
    by_kernel = {
        row["name"]: (row["graph"], row["annotation"], row["op_name"], row["module"])
        for row in table.iter_rows(named=True)
    }
    eager = "void at::native::elementwise_kernel<1>(int)"
    assert by_kernel["triton_poi_fused_0"][:2] == ("0/1 forward fff", "no annotation")
    assert by_kernel["nvjet_tst"][:2] == ("0/1 backward bbb", "no annotation")
    assert by_kernel[eager] == (
        "eager",
        "Optimizer.step#SGD.step",
        "Optimizer.step#SGD.step",
        "no module",
    )
    assert by_kernel["lost"] == ("unattributed",) * 4
    assert set(table["step_name"].cast(str)) == {"ProfilerStep#1"}


def test_a_module_is_the_innermost_whose_forward_launched() -> None:
    recorded = trace(
        host("nn.Module: Model_0", 0, 100, "python_function"),
        host("nn.Module: Linear_0", 10, 50, "python_function"),
        host("aten::linear", 20, 30),
        call("cudaLaunchKernel", 25, 5, 1),
        kernel("gemm", 60, 10, 1),
    )
    assert kernels(LoadedRun((recorded,)), "module")["module"].to_list() == ["Linear_0"]
