"""Advice knows what the program does, and what it is given for: each case was once advised wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from msgspec.structs import replace

import traces
from eager import NODE, Eager
from kinetoscope.analysis.origins.lines import OpLines
from kinetoscope.compilation import recompiles
from kinetoscope.compilation.model import Recompilation
from kinetoscope.findings import in_force, savings
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import (
    allocator_churn,
    cold_start_step,
    copies_inside_ops,
    dtype_casts,
    eager_remainder,
    host_op_stall,
    index_backward,
    layout_conversion,
    low_bandwidth,
    low_flops,
    made_on_host,
    optimizer_not_fused,
    pageable_copy,
    profiler_inflation,
    recompilation,
    results_on_host,
    small_grid,
    sync_in_step,
    unfused_attention,
    unfused_elementwise,
)
from kinetoscope.recording.manifest import Manifest, OptimizerStep, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties, Trace

H200 = DeviceProperties(index=0, name="NVIDIA H200", properties={})


def view(*events: traces.Event, device: DeviceProperties | None = None) -> RankView:
    trace: Trace = traces.trace(*events)
    if device is not None:
        trace = replace(trace, devices=(device,))
    return RankView(LoadedRun((trace,)), trace)


def launched(
    op: str,
    kernel: str,
    number: int,
    took_us: float,
    maker: str = "cuda",
    around: str | None = None,
    **arguments: Any,
) -> list[traces.Event]:
    """An op that launches one kernel; every hundred microseconds one."""
    at = 100.0 * number
    outer = [traces.host(around, at - 2, 30)] if around else []
    return [
        *outer,
        traces.host(op, at, 20, **arguments),
        traces.call(f"{maker}LaunchKernel", at + 5, 5, number),
        traces.kernel(kernel, at + 30, took_us, number),
    ]


def flat(parts: Iterable[list[traces.Event]]) -> list[traces.Event]:
    return [event for part in parts for event in part]


def only(found: Iterable[Finding]) -> Finding:
    (finding,) = found
    return finding


# What gives the device more behind each launch.


def test_larger_batches_are_for_training() -> None:
    served = view(*launched("aten::mm", "gemm", 1, 2))
    trained = view(
        *launched("aten::mm", "gemm", 1, 2, around="autograd::engine::evaluate_function: MmBackward0")
    )
    assert "larger batches" not in in_force.fewer_launches(served).advice
    assert "larger batches" in in_force.fewer_launches(trained).advice


def test_a_program_that_generates_is_advised_several_prompts_at_once() -> None:
    program = Eager()
    for _ in range(3):
        program.run("aten::mm", kernel="gemm")
        program.step()
    for found_by, advised in (("request", True), ("module", False)):
        advice = in_force.fewer_launches(program.view(found_by)).advice
        assert ("several prompts at once" in advice) == advised


def test_no_graph_holds_what_waits_for_the_device() -> None:
    """Two of the three calls; the profiler's own flush is none of the step's."""
    waits = [
        event
        for at in (200, 300)
        for event in (
            traces.host("aten::nonzero", at, 50),
            traces.call("cudaStreamSynchronize", at + 10, 30, 0),
        )
    ]
    flush = traces.call("cudaDeviceSynchronize", 400, 10, 0)
    events = *launched("aten::mm", "gemm", 1, 2), *launched("aten::mm", "gemm", 5, 2)
    waiting = in_force.fewer_launches(view(traces.step(1, 0, 600), *events, *waits, flush))
    assert "nothing in it waits for the device (2 calls per step now)" in waiting.advice
    assert in_force.fewer_launches(view(traces.step(1, 0, 600), *events, flush)).advice.endswith("fixed.")


def test_what_is_compiled_is_not_told_to_compile() -> None:
    region = traces.host("Torch-Compiled Region: 0/0", 90, 60)
    remedy = in_force.fewer_launches(view(region, *launched("aten::mm", "gemm", 1, 2)))
    assert remedy.advice.startswith("Replay the compiled code as a CUDA graph")


def test_one_compiled_helper_is_no_compiled_program() -> None:
    region = traces.host("Torch-Compiled Region: 0/0", 90, 60)
    eager = flat(launched("aten::mm", "gemm", number, 2) for number in range(2, 20))
    remedy = in_force.fewer_launches(view(region, *launched("aten::add", "triton_poi", 1, 2), *eager))
    assert remedy.advice.startswith("Put more work behind each launch (torch.compile)")


@pytest.mark.parametrize(
    ("kernel", "single"),
    [
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1", False),
        ("sm80_xmma_gemm_f16f32_f16f32_f32_tn_n", False),
        ("cutlass_80_tensorop_s1688gemm_128x64_tn_align4", True),
        ("ampere_sgemm_128x64_tn", True),
    ],
)
def test_products_of_sixteen_bits_may_add_up_in_thirty_two(kernel: str, single: bool) -> None:
    products = pl.DataFrame({"name": [kernel, "softmax"], "product": [True, False]})
    assert unfused_attention.in_single_precision(products) is single


@pytest.mark.parametrize(("side", "advice"), [(1, "room for more tiles"), (64, "The device is full")])
def test_products_that_fill_the_device_need_another_kernel_not_more_tiles(side: int, advice: str) -> None:
    sizes = [[15360, 4096], [4096, 24576]]
    event = launched(
        "aten::mm", "gemm", 1, 20_000, **{"Input Dims": sizes, "Input type": ["c10::BFloat16"] * 2}
    )
    event[-1]["args"] |= {"grid": [side, side, 1], "block": [256, 1, 1]}
    device = replace(H200, multiprocessors=132)
    finding = only(low_flops.find(view(*event, device=device)))
    assert advice in finding.advice


def test_making_the_device_s_context_is_a_cold_start() -> None:
    """A recording of a program's beginning: 30 s of one call, of which nothing was said."""
    found = only(
        cold_start_step.find(
            view(
                *launched("aten::add", "add", 1, 2),
                traces.call("cudaDeviceGetStreamPriorityRange", 200, 30_000, None),
                *launched("aten::mm", "gemm", 400, 2),
            )
        )
    )
    assert "cudaDeviceGetStreamPriorityRange" in found.title
    assert found.saving.us == pytest.approx(30_000, rel=0.01)


def test_what_is_captured_is_not_told_to_capture() -> None:
    graph = [traces.call("cudaGraphLaunch", 20, 5, 99), traces.kernel("gemm", 40, 5, 99)]
    remedy = in_force.fewer_launches(view(*graph, *launched("aten::add", "add", 1, 2)))
    assert "Launched one by one are 50% of the work, most by aten::add: capture that as well" in remedy.advice
    assert remedy.mode is None


def test_no_graphs_for_makers_without_them() -> None:
    calls = [
        {**e, "cat": "mtia_runtime"} if "Launch" in e["name"] else e
        for e in launched("aten::mm", "gemm", 1, 2)
    ]
    assert "graph" not in in_force.fewer_launches(view(*calls)).advice


# Optimizers.


@pytest.mark.parametrize(
    ("name", "snippet"),
    [
        ("AdamW", "optimizer = torch.optim.AdamW(model.parameters(), fused=True)"),
        ("SGD", "optimizer = torch.optim.SGD(model.parameters(), fused=True)"),
        ("Shampoo", "optimizer.step = torch.compile(optimizer.step)"),
    ],
)
def test_a_fused_optimizer_is_advised_where_there_is_one(name: str, snippet: str) -> None:
    around = f"Optimizer.step#{name}.step"
    step = traces.host(around, 90, 4000, "user_annotation")
    kernels = flat(launched("aten::mul_", "void elementwise_kernel<f>(int)", i, 5) for i in range(1, 36))
    assert only(optimizer_not_fused.find(view(step, *kernels))).snippet == snippet


def in_groups(
    groups: int, of: int = 1, kernel: str = "multi_tensor_apply_kernel", us: float = 2, blocks: int = 1
) -> RankView:
    """An optimizer that updates so many groups, of so many parameters each, with two ops on lists."""
    program = Eager()
    for _ in range(2):
        for number in range(groups * of):
            program.backward("torch::autograd::AccumulateGrad", sequence=number)
        with program.around("Optimizer.step#SGD.step"):
            for _ in range(groups):
                for op in ("aten::_foreach_mul_", "aten::_foreach_add_"):
                    program.run(op, kernel=kernel, us=us, grid=blocks)
        program.step()
    return program.view()


@pytest.mark.parametrize("kernel", ["multi_tensor_apply_kernel", "multi_tensor_apply<FusedSgdMathFunctor>"])
def test_parameters_in_groups_of_their_own_belong_together_fused_or_not(kernel: str) -> None:
    """160 groups of two ops of 20 µs each; two groups remain."""
    finding = only(optimizer_not_fused.find(in_groups(160, kernel=kernel)))
    assert finding.title == "The optimizer updates 160 groups of one parameter each, one after the other"
    assert finding.saving.us == pytest.approx(158 * 2 * 20, rel=0.02)
    assert finding.saving.condition


@pytest.mark.parametrize(("options", "saved_us"), [(8, 152 * 2 * 20), (160, None)])
def test_groups_remain_that_have_options_of_their_own(options: int, saved_us: float | None) -> None:
    """As a learning rate for each layer, or one for each parameter."""
    view = in_groups(160)
    updates = (OptimizerStep("SGD", 160, options),)
    kept = Manifest(ranks=(RankRecord(rank=0, steps=StepTimings(found_by="optimizer", updates=updates)),))
    findings = list(optimizer_not_fused.find(RankView(LoadedRun((view.trace,), kept), view.trace)))
    expected = [pytest.approx(saved_us, rel=0.02)] if saved_us else []
    assert [finding.saving.us for finding in findings] == expected
    assert not any(finding.saving.condition for finding in findings)


@pytest.mark.parametrize(("blocks", "kept"), [(4, 4 * 65_536 * 8 / 4.8e12 / 30e-6), (132 * 16, 1.0)])
def test_kernels_of_one_list_fill_the_device(blocks: int, kept: float) -> None:
    """160 groups of two kernels of 30 µs: of 4 blocks, and of as many as run at a time."""
    finding = only(optimizer_not_fused.find(in_groups(160, us=30, blocks=blocks)))
    left_us = max(160 * 2 * 30 * (1 - 158 / 160 * (1 - kept)), 2 / 160 * 160 * 2 * 20)
    assert finding.saving.us == pytest.approx(160 * 2 * 30 - left_us, abs=100)


@pytest.mark.parametrize("groups", [in_groups(160, of=2), in_groups(12)])
def test_groups_of_several_parameters_and_a_few_of_one_are_not_taken_for_such(groups: RankView) -> None:
    assert not any(finding.subject for finding in optimizer_not_fused.find(groups))


# Recompilations.


def recompiled(guard: str) -> Recompilation:
    return Recompilation(
        frame=0, compile_id="0/1", function="f", file="a.py", line=1, cost_s=1.0, advice="", limit_hit=False,
        reasons=(recompiles.parse(f"0/0: {guard}"),),
    )  # fmt: skip


def test_mark_dynamic_is_for_sizes_and_names_the_one() -> None:
    size = recompiled("tensor 'x' size mismatch at index 1. expected 8, actual 16")
    assert recompilation.snippet(size) == "torch._dynamo.mark_dynamic(x, 1)"
    assert recompilation.snippet(recompiled("___check_obj_id(L['m'], 140218)")) is None
    assert recompilation.snippet(recompiled("tensor 'x' dtype mismatch. expected Float, actual Half")) is None


def test_the_limit_is_the_configuration_s_own() -> None:
    assert recompiles.limit(None) == 8
    assert recompiles.limit('{"a": 1, "recompile_limit": 1000000, "b": false}') == 1_000_000
    assert recompiles.limit('{"accumulated_recompile_limit": 256, "cache_size_limit": 64}') == 64


# Kernels that are what they are by design.


def busy_calls(
    op: str, kernel: str, dims: list[list[int]], took_us: float, around: str | None = None
) -> RankView:
    arguments: dict[str, Any] = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)}
    return view(
        *flat(launched(op, kernel, i, took_us, around=around, **arguments) for i in range(1, 6)), device=H200
    )


def test_low_bandwidth_leaves_attention_alone() -> None:
    dims = [[64, 16, 2048, 64]] * 3
    flash = busy_calls("aten::mul", "void flash_fwd_kernel<int>(int)", dims[:2], 2000)
    plain = busy_calls("aten::mul", "void elementwise_kernel<MulFunctor>(int)", dims[:2], 2000)
    assert list(low_bandwidth.find(plain))
    assert not list(low_bandwidth.find(flash))


def test_the_rate_of_slow_calls_is_that_of_all_of_them() -> None:
    """The first call of a program is often several times as long: it is not what the others do."""
    arguments = {"Input Dims": [[4096, 4096]] * 2, "Input type": ["c10::BFloat16"] * 2}
    took = [95, 60, 60, 60, 60]
    name = "void elementwise_kernel<MulFunctor>(int)"
    calls = flat(launched("aten::mul", name, i, us, **arguments) for i, us in enumerate(took, 1))
    found = only(low_bandwidth.find(view(*calls, device=H200)))
    assert f"{5 * 3 * 2 * 4096 * 4096 / sum(took) / 1e6:.2f} TB/s" in found.title


def test_slow_convolutions_are_not_concatenated() -> None:
    products = busy_calls("aten::mm", "gemm", [[4096, 4096], [4096, 4096]], 5000)
    assert only(low_flops.find(products)).snippet == "torch.cat(parts) @ w"
    arguments = {
        "Input Dims": [[256, 512, 28, 28], [512, 512, 3, 3], [], [], []],
        "Input type": ["c10::BFloat16", "c10::BFloat16", *["ScalarList"] * 3],
        "Concrete Inputs": ["", "", "[1, 1]", "[1, 1]", "[1, 1]"],
    }
    op = "aten::cudnn_convolution"
    calls = flat(launched(op, "conv2d_fprop", i, 9000, **arguments) for i in range(1, 6))
    found = only(low_flops.find(view(*calls, device=H200)))
    assert found.snippet == "torch.backends.cudnn.benchmark = True"


# Layouts.


def converting(
    channels: int, weight: list[int], maker: str = "cuda", kernel: str = "nchwToNhwcKernel"
) -> RankView:
    dims = [[64, channels, 56, 56], weight]
    op = "aten::cudnn_convolution" if maker == "cuda" else "aten::miopen_convolution"
    return view(
        *flat(launched(op, kernel, i, 40, maker, **{"Input Dims": dims}) for i in range(1, 6)),
    )


def test_channels_last_is_advised_for_ordinary_convolutions_alone() -> None:
    assert only(layout_conversion.find(converting(64, [64, 64, 3, 3]))).snippet is not None
    assert not list(layout_conversion.find(converting(64, [64, 1, 3, 3])))  # depthwise


def test_channels_last_on_amd_takes_a_switch() -> None:
    found = only(
        layout_conversion.find(converting(64, [64, 64, 3, 3], "hip", "batched_transpose_32x32_half"))
    )
    assert "PYTORCH_MIOPEN_SUGGEST_NHWC" in found.advice


def test_casts_are_no_conversions_of_layout() -> None:
    assert not list(
        layout_conversion.find(converting(64, [64, 64, 3, 3], "hip", "SubTensorOpWithCastTensor1d"))
    )


# The driver's memory.


def allocating(start_up: int, in_steps: int) -> list[traces.Event]:
    calls = [traces.call("cudaMalloc", 10 * i, 8, 0) for i in range(start_up)]
    steps = [traces.step(n, 10_000 + 1000 * n, 1000) for n in range(4)]
    within = [
        event
        for n in range(4)
        for i in range(in_steps)
        for event in (
            traces.call("cudaMalloc", 10_100 + 1000 * n + 50 * i, 40, 0),
            traces.call("cuMemAlloc_v2", 10_102 + 1000 * n + 50 * i, 30, 0),  # inside of it
        )
    ]
    work = [
        event
        for n in range(4)
        for event in (
            traces.call("cudaLaunchKernel", 10_500 + 1000 * n, 5, n + 1),
            traces.kernel("gemm", 10_510 + 1000 * n, 100, n + 1),
        )
    ]
    return [*calls, *steps, *within, *work]


def test_an_allocation_counts_once_and_start_up_does_not() -> None:
    assert not list(allocator_churn.find(view(*allocating(start_up=50, in_steps=0))))
    found = only(allocator_churn.find(view(*allocating(start_up=50, in_steps=3))))
    assert found.title.startswith("3 driver allocations and frees per step")


def test_a_program_without_steps_takes_memory_at_its_start() -> None:
    """As eager matmul_add does: each of its tensors is made once, between its first kernels."""
    launches = [
        event
        for i in range(100)
        for event in (
            traces.call("cudaLaunchKernel", 1000 * i, 5, i + 1),
            traces.kernel("gemm", 1000 * i + 10, 50, i + 1),
        )
    ]
    early = [traces.call("cudaMalloc", 1000 * i + 100, 200, 0) for i in range(20)]
    late = [traces.call("cudaMalloc", 1000 * i + 100, 200, 0) for i in range(60, 80)]
    assert not list(allocator_churn.find(view(*launches, *early)))
    assert list(allocator_churn.find(view(*launches, *late)))


# Causes.


def selecting(parts: int) -> RankView:
    """The backward of so many selections: each fills a whole tensor, and from the second on one is added."""
    events: list[traces.Event] = [traces.step(1, 0, 100_000)]
    number = 0
    for part in range(parts):
        at = 1000.0 * part + 100
        node = "autograd::engine::evaluate_function: SelectBackward0"
        events += [traces.host(node, at, 500), traces.host("SelectBackward0", at + 1, 200)]
        events += [traces.host("aten::select_backward", at + 2, 150)]
        inside = [
            ("aten::zero_", 20, "void FillFunctor<float>(int)"),
            ("aten::copy_", 60, "direct_copy_kernel_cuda"),
        ]
        for op, offset, name in [*inside, *([("aten::add_", 300, "void add<float>(int)")] if part else [])]:
            number += 1
            events += [
                traces.host(op, at + offset, 30),
                traces.call("cudaLaunchKernel", at + offset + 5, 5, number),
                traces.kernel(name, at + offset + 15, 12, number),
            ]
    return view(*events)


def test_selections_fill_and_add_whole_tensors() -> None:
    table = index_backward.whole_tensors(selecting(8))
    assert sorted(table["op_name"].cast(str).to_list()) == ["aten::add_"] * 7 + ["aten::zero_"] * 8
    assert "15 full-size tensors (7 additions)" in only(index_backward.find(selecting(8))).title
    assert not list(index_backward.find(selecting(1)))  # the last token


def writing(parts: int) -> RankView:
    """The backward of so many writes into one tensor: each copies its whole gradient, and cuts out a part."""
    program = Eager()
    node = "torch::autograd::CopySlices"
    for _ in range(parts):
        with program.around(NODE + node, node):
            program.run("aten::copy_", kernel="Memcpy DtoD (Device -> Device)", us=90.0)
            program.run("aten::clone", "aten::copy_", us=4.0)
            program.run("aten::copy_", us=3.0)
    program.step()
    return program.view()


def test_writes_into_parts_copy_the_whole_gradient() -> None:
    finding = only(index_backward.find(writing(8)))
    assert finding.title.startswith("Writing into parts of a tensor in a loop (8 writes per step)")
    assert finding.affected_us == pytest.approx(8 * 90)
    assert finding.saving.us == pytest.approx(8 * 90, rel=0.15)
    assert not list(index_backward.find(writing(2)))


def test_copies_are_the_op_s_that_makes_them() -> None:
    inside = launched("aten::copy_", "direct_copy_kernel_cuda", 1, 50, around="aten::mm")
    written = launched("aten::copy_", "direct_copy_kernel_cuda", 2, 50, around="aten::contiguous")
    driver = launched("aten::addmm", "Memcpy DtoD (Device -> Device)", 3, 50)
    table = copies_inside_ops.inside_ops(view(*inside, *written, *driver))
    assert table.select("maker", "duration_ns").rows() == [("aten::mm", 50_000)]


def test_short_ops_on_the_cpu_add_up_where_one_line_calls_them() -> None:
    """Two steps; in each three ops of 50 µs of one line and one of 40 µs of another, which the device waits
    for."""
    events = [event for number in (1, 11) for event in launched("aten::mm", "gemm", number, 20)]
    for at in (200, 1200):
        lines = ["/p/train.py(7): step"] * 3 + ["/p/train.py(9): step"]
        names = ["aten::div", "aten::sub", "aten::div", "aten::rand"]
        for i, (line, name) in enumerate(zip(lines, names, strict=True)):
            took = 40 if name == "aten::rand" else 50
            events.append(traces.event("python_function", line, at + 100 * i, 90))
            events.append(traces.host(name, at + 100 * i + 10, took))
    steps = [traces.step(1, -1, 1000), traces.step(2, 999, 1001)]
    last = launched("aten::mm", "gemm", 19, 20)
    found = list(host_op_stall.find(view(*steps, *events, *last)))
    assert [one.affected_us for one in found] == [150.0, 40.0]
    assert [(one.subject, one.source, one.title) for one in found] == [
        (
            "aten::div",
            "/p/train.py:7",
            "The device waits while aten::div, aten::sub compute on the CPU",
        ),
        (
            "aten::rand",
            "/p/train.py:9",
            "The device waits while aten::rand computes on the CPU",
        ),
    ]


def test_what_one_function_computes_on_the_cpu_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event for number in (1, 11) for event in launched("aten::mm", "gemm", number, 20)]
    for at in (200, 1200):
        names = ["aten::div", "aten::_upsample_bicubic2d_aa", "aten::rand"]
        events += [traces.host(name, at + 100 * i, 50) for i, name in enumerate(names)]
    found = view(traces.step(1, -1, 1000), traces.step(2, 999, 1001), *events)
    rows = found.trace.host_events["name"].cast(str).to_list()
    lines = {"aten::div": 64, "aten::_upsample_bicubic2d_aa": 67, "aten::rand": 90}
    known = OpLines(
        pl.DataFrame(
            {
                "line": [f"serve.py:{lines[name]}" if name in lines else None for name in rows],
                "function": [
                    None if name not in lines else "prepare" if lines[name] < 90 else "" for name in rows
                ],
            }
        ),
        1.0,
    )
    monkeypatch.setattr(RankView, "lines", known)
    prepared, drawn = host_op_stall.find(found)
    assert (
        prepared.title == "The device waits while aten::div, aten::_upsample_bicubic2d_aa compute on the CPU"
    )
    assert (prepared.affected_us, drawn.affected_us) == (100.0, 50.0)
    assert (prepared.source, drawn.source) == ("serve.py:64", "serve.py:90")


def test_what_is_converted_and_then_sent_is_sent_as_it_is() -> None:
    finding = only(
        host_op_stall.find(
            view(
                traces.step(1, 0, 2000),
                *launched("aten::mm", "gemm", 1, 20),
                traces.host("aten::_to_copy", 200, 400),
                traces.host("aten::copy_", 650, 60),
                traces.call("cudaMemcpyAsync", 660, 40, 99),
                traces.kernel("Memcpy HtoD (Pageable -> Device)", 690, 10, 99, bytes=1 << 20)
                | {"cat": "gpu_memcpy"},
                *launched("aten::mm", "gemm", 10, 400),
            )
        )
    )
    assert finding.title.endswith("while aten::_to_copy computes on the CPU what is then sent to it")
    assert finding.advice.startswith("Send it as it is")


def uploaded(kind: str, size: int = 1 << 20) -> RankView:
    """A blocking copy of the batch, as ``tensor.to(device)`` makes it, between two products."""
    return view(
        traces.step(1, 0, 2000),
        *launched("aten::mm", "gemm", 1, 400),
        traces.host("aten::copy_", 200, 400),
        traces.call("cudaMemcpyAsync", 210, 40, 99),
        traces.kernel(f"Memcpy HtoD ({kind} -> Device)", 540, 10, 99, bytes=size) | {"cat": "gpu_memcpy"},
        traces.call("cudaStreamSynchronize", 260, 300, 0),
        *launched("aten::mm", "gemm", 10, 400),
    )


def test_the_wait_that_ends_a_copy_from_pageable_memory_goes_with_it() -> None:
    batch = uploaded("Pageable")
    (finding,) = pageable_copy.find(batch)
    waits = batch.trace.host_events["name"].gather(finding.saving.change.waits).cast(pl.String)
    assert sorted(waits) == ["cudaMemcpyAsync", "cudaStreamSynchronize"]
    assert not list(sync_in_step.find(batch))
    assert finding.snippet == "x = x.pin_memory().to(device, non_blocking=True)"


def test_results_that_go_to_pageable_memory_are_made_smaller_or_copied_into_what_is_kept() -> None:
    read = view(
        traces.step(1, 0, 4000),
        *launched("aten::mm", "gemm", 1, 400),
        traces.host("aten::copy_", 200, 3000),
        traces.call("cudaMemcpyAsync", 210, 2980, 99),
        traces.kernel("Memcpy DtoH (Device -> Pageable)", 540, 2600, 99, bytes=4 << 20)
        | {"cat": "gpu_memcpy"},
        *launched("aten::mm", "gemm", 10, 400),
    )
    (finding,) = pageable_copy.find(read)
    assert finding.advice.startswith("Compute on the device what is made of it")
    assert finding.snippet is not None
    assert finding.snippet.startswith("kept.copy_(x, non_blocking=True)")


def parts(back: int) -> RankView:
    """Ten tensors of 4 MB that are copied to the device before a product, and so many of them back."""
    copies = [("HtoD (Pageable -> Device)", at) for at in range(10)]
    copies += [("DtoH (Device -> Pageable)", 20 + at) for at in range(back)]
    return view(
        traces.step(1, 0, 40_000),
        *(
            event
            for name, at in copies
            for event in (
                traces.host("aten::copy_", 1000 * at, 900),
                traces.call("cudaMemcpyAsync", 1000 * at + 10, 800, 100 + at),
                traces.kernel(f"Memcpy {name}", 1000 * at + 100, 700, 100 + at, bytes=4 << 20)
                | {"cat": "gpu_memcpy"},
            )
        ),
        *launched("aten::mm", "gemm", 15_000, 400),
    )


def test_parts_of_a_model_that_travel_to_the_device_and_back_had_better_stay_there() -> None:
    finding = only(pageable_copy.find(parts(back=10)))
    assert finding.title.startswith("10 tensors travel to the device and back per step: 41.9 MB each way")
    assert finding.advice.startswith("Keep the parts of the model on the device")
    assert (
        finding.saving.condition == "all parts fit into the device's memory"
    )  # no trace says how much it has
    assert finding.saving.change.device["saved_ns"].to_list() == [700_000] * 20
    assert not list(results_on_host.find(parts(back=10)))


@pytest.mark.parametrize("computes", [False, True])
def test_what_the_host_does_to_tensors_that_come_back_goes_with_the_copies(computes: bool) -> None:
    """``grad = torch.from_numpy(np.where(mask, grad.cpu().numpy(), 0)).to(device)`` of ten weights."""
    events = [traces.step(1, 0, 100_000)]
    for at in range(20):
        name = "HtoD (Pageable -> Device)" if at % 2 else "DtoH (Device -> Pageable)"
        began = 4000 * at
        events += [
            traces.host("aten::copy_", began, 1000),
            traces.call("cudaMemcpyAsync", began + 10, 900, 100 + at),
            traces.kernel(f"Memcpy {name}", began + 100, 700, 100 + at, bytes=4 << 20)
            | {"cat": "gpu_memcpy"},
        ]
        if computes and at % 2 == 0:
            events += [
                traces.host("aten::mm", began + 2000, 100),
                traces.call("cudaLaunchKernel", began + 2010, 10, 200 + at),
                traces.kernel("gemm", began + 2100, 400, 200 + at),
            ]
    finding = only(pageable_copy.find(view(*events)))
    host = finding.saving.change.host
    between = host.filter(host["end_ns"] - host["start_ns"] == 3_000_000)
    assert len(between) == (0 if computes else 10)
    assert ("what the host does to them" in finding.advice) is not computes


def test_what_mostly_stays_on_the_device_does_not_travel() -> None:
    finding = only(pageable_copy.find(parts(back=3)))
    assert "from or to pageable memory" in finding.title


def sent(maker: str, took_us: float, *between: str, size: int = 1 << 20, launches: bool = False) -> RankView:
    """A tensor that an op makes, and which is copied to the device after the ops between; with a product
    before and after."""
    began = 410 - took_us - 10 * len(between)
    return view(
        traces.step(1, 0, 2000),
        *launched("aten::mm", "gemm", 1, 200),
        traces.host(maker, began, took_us),
        *([traces.call("cudaLaunchKernel", began + 1, 1, 98), traces.kernel("fill", 320, 5, 98)] * launches),
        *(traces.host(name, 410 - 10 * place, 5) for place, name in enumerate(between, 1)),
        traces.host("aten::to", 411, 205),
        traces.host("aten::copy_", 412, 200),
        traces.call("cudaMemcpyAsync", 420, 40, 99),
        traces.kernel("Memcpy HtoD (Pageable -> Device)", 540, 60, 99, bytes=size) | {"cat": "gpu_memcpy"},
        traces.call("cudaStreamSynchronize", 470, 140, 0),
        *launched("aten::mm", "gemm", 10, 400),
    )


@pytest.mark.parametrize(
    ("maker", "between"),
    [("aten::zeros", ()), ("aten::randn", ()), ("aten::arange", ("aten::unsqueeze", "aten::expand"))],
)
def test_what_is_made_on_the_cpu_and_sent_is_better_made_on_the_device(
    maker: str, between: tuple[str, ...]
) -> None:
    made = sent(maker, 100, *between)
    finding = only(made_on_host.find(made))
    assert finding.title == f"1 tensor per step is made on the CPU ({maker}) and sent to the device: 1.05 MB"
    gone = finding.saving.change
    assert sorted(made.trace.host_events["name"].gather(gone.waits).cast(pl.String)) == [
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
    ]
    assert sorted(gone.host.unique()["start_ns"]) == [(410 - 100 - 10 * len(between)) * 1000, 411_000]
    assert gone.device["saved_ns"].to_list() == [60_000]
    assert not list(pageable_copy.find(made))
    assert not list(sync_in_step.find(made))


@pytest.mark.parametrize(
    "made",
    [
        sent("aten::mul", 100),  # a batch that was scaled on the CPU
        sent("aten::zeros", 100, "aten::mul"),
        sent("aten::randn", 20),  # a core draws no 1 MB in 20 µs: it drew something else
        sent("aten::zeros", 2),
        sent("aten::zeros", 100, launches=True),  # made on the device
    ],
)
def test_what_was_not_made_directly_before_it_was_sent_is_a_batch(made: RankView) -> None:
    assert not list(made_on_host.find(made))
    assert list(pageable_copy.find(made))


def test_nobody_is_told_to_lock_the_pages_of_a_few_numbers() -> None:
    few = uploaded("Pageable", 64)
    assert not list(pageable_copy.find(few))
    (finding,) = sync_in_step.find(few)
    assert finding.advice.startswith("This is a small tensor of the CPU")
    assert finding.snippet == "x = x.to(device, non_blocking=True)"


def test_a_blocking_copy_from_pinned_memory_need_not_block() -> None:
    pinned = uploaded("Pinned")
    assert not list(pageable_copy.find(pinned))
    (finding,) = sync_in_step.find(pinned)
    assert "waits for the device once per step" in finding.title
    assert "non_blocking=True" in finding.advice
    assert finding.snippet == "x = x.to(device, non_blocking=True)"


@pytest.mark.parametrize(
    ("op", "advised"),
    [("aten::nonzero", "torch.where"), ("aten::_local_scalar_dense", "detach()"), ("mine::op", "detach()")],
)
def test_what_asks_for_the_wait_says_what_to_write(op: str, advised: str) -> None:
    """Masks are no losses."""
    (finding,) = sync_in_step.find(
        view(
            traces.step(1, 0, 2000),
            *launched("aten::mm", "gemm", 1, 400),
            traces.host(op, 200, 400),
            traces.call("cudaStreamSynchronize", 260, 300, 0),
            *launched("aten::mm", "gemm", 10, 400),
        )
    )
    assert finding.snippet is not None
    assert advised in finding.snippet


def cast(at: float, number: int, around: str | None) -> list[traces.Event]:
    """60 µs of the host for a cast of 5 µs, or 80 with what is around it."""
    outer = [] if around is None else [traces.host(around, at, 80)]
    return [
        *outer,
        traces.host("aten::to", at + 10, 60),
        traces.host("aten::_to_copy", at + 20, 40),
        traces.call("cudaLaunchKernel", at + 30, 10, number),
        traces.kernel("bfloat16_copy_kernel_cuda", at + 45, 5, number),
    ]


@pytest.mark.parametrize(
    ("around", "length", "share"),
    [
        (None, 60, 1.0),  # the program asks for it
        ("aten::linear", 60, 0.5),  # autocast does
        ("autograd::engine::evaluate_function: ToCopyBackward0", 80, 1.0),
    ],
)
def test_casts_that_the_program_asks_for_go_whole(around: str | None, length: float, share: float) -> None:
    calls = [event for i in range(4) for event in cast(100.0 * i, i + 1, around)]
    optimizer = [
        traces.host("Optimizer.step#AdamW.step", 500, 60, "user_annotation"),
        traces.host("aten::_fused_adamw_", 510, 40),
        traces.call("cudaLaunchKernel", 520, 10, 9),
        traces.kernel("FusedAdamMathFunctor", 540, 20, 9),
    ]
    (finding,) = dtype_casts.find(view(traces.step(1, -1, 601), *calls, *optimizer))
    assert finding.saving.change.device["saved_ns"].to_list() == [share * 5000] * 4
    whole = finding.saving.change.host.filter(pl.col("end_ns") - pl.col("start_ns") == 1000 * length)
    assert whole.unique()["share"].to_list() == [share] * 4
    assert (finding.snippet is None) == (around != "aten::linear")


@pytest.mark.parametrize(("between", "masked"), [("aten::div", False), ("aten::masked_fill", True)])
def test_written_out_attention_takes_its_calls_along(between: str, masked: bool) -> None:
    """Of the 320 µs from the first product's call to the last one's end, the longest op's 20 stay."""
    kernels = [
        ("aten::bmm", "ampere_sgemm_128x64_tn"),
        (between, "vectorized_elementwise_kernel"),
        ("aten::_softmax", "softmax_warp_forward"),
        ("aten::bmm", "ampere_sgemm_128x64_tn"),
    ]
    events = [event for i, (op, name) in enumerate(kernels, 1) for event in launched(op, name, i, 10)]
    (finding,) = unfused_attention.find(view(traces.step(1, 0, 500), *events))
    stretch = finding.saving.change.host.filter(pl.col("share") < 1)
    assert stretch.select("start_ns", "end_ns").rows() == [(100_000, 420_000)]
    assert stretch["share"].item() == pytest.approx(1 - 20 / 320)
    assert ("FlexAttention with a block mask" in finding.advice) == masked
    assert "scaled_dot_product_attention" in finding.advice
    module = traces.host("nn.Module: MultiheadAttention_3", 95, 360, "python_function")
    (finding,) = unfused_attention.find(view(traces.step(1, 0, 500), module, *events))
    assert "need_weights=False" in finding.advice
    assert "need_weights=False" in str(finding.snippet)


@pytest.mark.parametrize(
    ("product", "chains"), [("ampere_sgemm_128x64_tn", 1), ("nvjet_sm90_hsh_bf16_128x64", 0)]
)
def test_what_fused_attention_takes_is_no_chain_to_compile_unless_there_is_none(
    product: str, chains: int
) -> None:
    kernels = [
        ("aten::bmm", product),
        ("aten::div", "vectorized_elementwise_kernel"),
        ("aten::masked_fill", "vectorized_elementwise_kernel"),
        ("aten::_softmax", "softmax_warp_forward"),
        ("aten::bmm", product),
    ]
    events = [event for i, (op, name) in enumerate(kernels, 1) for event in launched(op, name, i, 10)]
    found = list(unfused_elementwise.find(view(traces.step(1, 0, 600), *events)))
    assert len(found) == chains


@pytest.mark.parametrize(
    ("name", "advised"),
    [
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>()", "channels_last"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_cudnn", "larger batch"),
        ("tensor_kernel_scan_innermost_dim", "another dimension"),
    ],
)
def test_nobody_is_told_to_cut_what_a_library_cut(name: str, advised: str) -> None:
    event = launched("aten::op", name, 1, 400)
    event[-1]["args"] |= {"grid": [32, 1, 1], "block": [512, 1, 1]}
    device = replace(H200, multiprocessors=132)
    trains = traces.host("Optimizer.step#SGD.step", 580, 10)
    finding = only(small_grid.find(view(traces.step(1, 0, 600), *event, trains, device=device)))
    assert advised in finding.advice
    assert (finding.snippet is not None) == (advised == "channels_last")


@pytest.mark.parametrize(
    ("options", "begins"),
    [({"stacks": True, "shapes": False}, "Record without --stacks. "), ({"stacks": False}, None)],
)
def test_less_can_only_be_recorded_where_more_was(options: dict[str, bool], begins: str | None) -> None:
    inflated = view(traces.step(1, 0, 600), *launched("aten::mm", "gemm", 1, 2))
    inflated = replace(inflated, run=replace(inflated.run, manifest=SimpleNamespace(options=options)))
    vars(inflated)["as_it_runs"] = SimpleNamespace(inflation=2.0, recorded_us=600.0, step_us=300.0)
    found = [finding.advice for finding in profiler_inflation.find(inflated)]
    assert [advice.startswith(str(begins)) for advice in found] == ([True] if begins else [])


def test_a_fused_chain_spares_its_launches_where_the_host_sets_the_pace() -> None:
    """Four kernels of 5 µs, one every 100 µs: shorter ones alone would save nothing, three that are gone save
    their ops of 20 µs."""
    kernels = flat(launched("aten::mul", "vectorized_elementwise_kernel", i, 5) for i in range(1, 5))
    slow = view(traces.step(1, 0, 600), *kernels)
    others = pl.when(pl.col("id") > 0)
    chain = slow.work.select(
        "id", shorter=others.then(4000).otherwise(0), saved_ns=others.then(5000).otherwise(0)
    )
    assert savings.device(slow, chain, "shorter", "shorter").us == 0
    assert savings.fused(slow, chain).us == pytest.approx(60)


def test_a_fused_chain_takes_as_long_as_its_longest_kernel_wherever_that_is() -> None:
    program = Eager()
    for _ in range(3):
        for us in (100, 400, 200):
            program.run("aten::mul", us=us)
        program.step()
    (finding,) = unfused_elementwise.find(program.view())
    assert finding.saving.us == pytest.approx(100 + 200, rel=0.05)


@pytest.mark.parametrize(("took_us", "named"), [(2, False), (50, True)])
def test_a_large_eager_part_is_named_without_anything_to_fuse(took_us: float, named: bool) -> None:
    region = traces.host("Torch-Compiled Region: 0/0", 90, 60)
    compiled = launched("aten::add", "triton_poi", 1, 100)
    eager = launched("aten::mm", "gemm", 5, took_us)
    assert bool(list(eager_remainder.find(view(region, *compiled, *eager)))) is named
