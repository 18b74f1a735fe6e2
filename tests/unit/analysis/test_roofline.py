"""FLOPs, bytes and shares of peaks, against torch's own counts and by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kinetoscope.analysis.cost.call import Cost, OpCall
from kinetoscope.analysis.cost.formulas import FORMULAS, cost
from kinetoscope.analysis.cost.roofline import costed, kernel_roofline, roofline
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read
from traces import host as event

Make = Callable[..., Trace]
Event = dict[str, Any]
BF16, FP32 = "c10::BFloat16", "float"


def call(
    name: str, *tensors: tuple[list[int], str], strides: list[list[int]] | None = None, **values: str
) -> OpCall:
    """Tensors first; ``v3="[1, 1]"`` is the value of argument 3."""
    count = max([len(tensors), *(int(key[1:]) + 1 for key in values)])
    shapes = [tensors[at][0] if at < len(tensors) else [] for at in range(count)]
    types = [tensors[at][1] if at < len(tensors) else "" for at in range(count)]
    return OpCall(name, shapes, types, strides or [], [values.get(f"v{at}", "") for at in range(count)])


def known(c: OpCall) -> Cost:
    found = cost(c)
    assert found is not None
    return found


def test_a_matrix_product_by_hand() -> None:
    found = known(call("aten::mm", ([2, 3], BF16), ([3, 5], BF16)))
    assert found == Cost(flops=2 * 2 * 3 * 5, bytes=2 * (6 + 15 + 10), dtype="bf16", matrix=True)
    added = known(call("aten::addmm", ([5], BF16), ([2, 3], BF16), ([3, 5], BF16)))
    assert added.bytes == found.bytes + 2 * 5
    batched = known(call("aten::bmm", ([7, 2, 3], FP32), ([7, 3, 5], FP32)))
    assert (batched.flops, batched.bytes) == (7 * 60, 7 * 4 * 31)


def test_elementwise_by_hand() -> None:
    assert known(call("aten::mul", ([4, 8], FP32), ([4, 1], FP32))) == Cost(32, 4 * (32 + 4 + 32), "fp32")
    assert known(call("aten::add_", ([8], FP32), ([8], FP32))).bytes == 4 * 24
    # What is expanded stands in memory once; what the result goes to is not read.
    assert known(call("aten::add", ([4, 8], FP32), ([4, 8], FP32), strides=[[8, 1], [0, 1]])).bytes == 4 * (
        32 + 8 + 32
    )
    assert known(call("aten::clamp_min", ([8], FP32), ([], "Scalar"), ([8], FP32))).bytes == 4 * 16
    assert known(call("aten::copy_", ([8], FP32), ([8], BF16))) == Cost(0, 8 * 4 + 8 * 2, "fp32")
    assert known(call("aten::gt", ([8], FP32))).bytes == 8 * 4 + 8
    assert known(call("aten::sum", ([4, 8], FP32), v1="[0]")).bytes == 4 * (32 + 8)
    assert known(call("aten::_log_softmax", ([2, 8], BF16), v1="1", v2="True")).bytes == 16 * 2 + 16 * 4
    assert (
        known(call("aten::embedding", ([1000, 16], FP32), ([2, 3], "long int"))).bytes
        == 6 * 8 + 2 * 6 * 16 * 4
    )
    assert known(call("aten::mul", ([8], "double"), ([8], "double"))).dtype == "fp64"
    assert known(call("aten::gather", ([9, 9], FP32), ([], "Scalar"), ([2, 3], "long int"))).bytes == 6 * (
        8 + 8
    )


def test_what_cannot_be_known_is_null() -> None:
    assert cost(call("aten::_foreach_add_", ([], "TensorList"), ([], "TensorList"))) is None
    assert cost(call("mylib::magic", ([8], FP32))) is None
    assert cost(call("aten::mm", ([8], FP32), ([8], FP32))) is None  # not the shapes of a matrix product
    assert (
        cost(call("aten::cudnn_convolution", ([1, 3, 8, 8], FP32), ([4, 3, 3, 3], FP32))) is None
    )  # no stride
    assert (
        cost(call("aten::_flash_attention_forward", *[([99, 8, 64], BF16)] * 3, v8="True")) is None
    )  # ragged


junk = st.one_of(
    st.none(), st.text(max_size=3), st.lists(st.integers(-3, 10**10), max_size=4),
    st.sampled_from([BF16, FP32, "[0]", "True"]),
)  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(sorted(FORMULAS)), *[st.lists(junk, max_size=12)] * 4)
def test_no_recorded_arguments_can_raise(
    name: str, shapes: Any, types: Any, strides: Any, values: Any
) -> None:
    found = cost(OpCall(name, shapes, types, strides, [str(value) for value in values]))
    assert found is None or 0 <= found.flops + found.bytes < 1 << 54


sides = st.integers(1, 9)


@settings(deadline=None)  # the first example imports torch
@given(sides, sides, sides, sides)
def test_products_as_torch_counts_them(b: int, m: int, k: int, n: int) -> None:
    counter = pytest.importorskip("torch.utils.flop_counter")
    mm = known(call("aten::mm", ([m, k], BF16), ([k, n], BF16)))
    assert mm.flops == counter.mm_flop.__wrapped__([m, k], [k, n])
    bmm = known(call("aten::baddbmm", ([b, m, n], BF16), ([b, m, k], BF16), ([b, k, n], BF16)))
    assert bmm.flops == counter.bmm_flop.__wrapped__([b, m, k], [b, k, n])


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(5, 9), st.integers(5, 9),
    st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2), st.integers(1, 2),
    st.booleans(),
)  # fmt: skip
def test_convolutions_as_torch_runs_and_counts_them(
    batch: int, cin: int, cout: int, h: int, w: int, kernel: int,
    stride: int, padding: int, dilation: int, groups: int, transposed: bool,
) -> None:  # fmt: skip
    """The result's shape is torch's own, the count is ``flop_counter``'s, forward and backward."""
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter")
    x = [batch, cin * groups, h, w]
    weight = [cin * groups, cout, kernel, kernel] if transposed else [cout * groups, cin, kernel, kernel]
    settings_ = ([stride] * 2, [padding] * 2, [dilation] * 2, transposed, [0, 0], groups)
    with torch.device("meta"):
        out = torch.ops.aten.convolution(torch.empty(x), torch.empty(weight), None, *settings_).shape
    assume(min(out) > 0)
    values = {
        "v3": f"[{stride}, {stride}]",
        "v4": f"[{padding}, {padding}]",
        "v5": f"[{dilation}, {dilation}]",
    }
    found = known(
        call("aten::convolution", (x, FP32), (weight, FP32), **values, v6=str(transposed), v8=str(groups))
    )
    # torch counts a grouped transposed convolution as if every group saw all output channels of its own only.
    assert found.flops == counter.conv_flop_count(x, weight, list(out), transposed)
    assert found.bytes == 4 * sum(torch.Size(s).numel() for s in (x, weight, out))
    backward = known(
        call(
            "aten::convolution_backward", (list(out), FP32), (x, FP32), (weight, FP32),
            v7=str(transposed), v10="[True, True, False]",
        )
    )  # fmt: skip
    assert backward.flops == 2 * found.flops


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(4, 9), st.integers(4, 9), st.integers(1, 3),
    st.integers(0, 3), st.integers(0, 1), st.integers(1, 2), st.booleans(),
)  # fmt: skip
def test_max_pooling_writes_what_torch_writes(
    n: int, c: int, h: int, w: int, kernel: int, stride: int, padding: int, dilation: int, up: bool
) -> None:
    torch = pytest.importorskip("torch")
    assume(2 * padding <= kernel and dilation * (kernel - 1) < min(h, w) + 2 * padding)
    step = [stride] * 2 if stride else []  # none: as far as the kernel is wide
    with torch.device("meta"):
        out, _ = torch.ops.aten.max_pool2d_with_indices(
            torch.empty(n, c, h, w), [kernel] * 2, step, [padding] * 2, [dilation] * 2, up
        )
    values = {
        "v1": str([kernel] * 2), "v2": str(step), "v3": str([padding] * 2), "v4": str([dilation] * 2),
        "v5": str(up),
    }  # fmt: skip
    found = known(call("aten::max_pool2d_with_indices", ([n, c, h, w], FP32), **values))
    assert found.bytes == 4 * n * c * h * w + (4 + 8) * out.numel()


@settings(deadline=None)
@given(st.integers(1, 3), sides, sides, sides, sides, sides)
def test_attention_as_torch_counts_it(b: int, h: int, s: int, t: int, d: int, e: int) -> None:
    counter = pytest.importorskip("torch.utils.flop_counter")
    q, k, v = [b, h, s, d], [b, h, t, d], [b, h, t, e]
    tensors = [(shape, BF16) for shape in (q, k, v)]
    forward = known(call("aten::_cudnn_attention_forward", *tensors, v10="False"))
    assert forward.flops == counter.sdpa_flop_count(q, k, v)
    gradient = ([b, h, s, e], BF16)
    backward = known(call("aten::_cudnn_attention_backward", gradient, *tensors, v14="False"))
    assert backward.flops == counter.sdpa_backward_flop_count(gradient[0], q, k, v)


def test_a_causal_mask_leaves_the_half_below_the_diagonal() -> None:
    tensors = [([2, 3, 4, 8], BF16)] * 3
    pairs = 4 * 5 // 2  # of the 16 pairs of positions
    for name, at, order in (
        ("_cudnn_attention_forward", 10, (0, 1, 2, 3)),
        ("_flash_attention_forward", 8, (0, 2, 1, 3)),
    ):
        shaped = [([shape[i] for i in order], dtype) for shape, dtype in tensors]
        found = known(call(f"aten::{name}", *shaped, **{f"v{at}": "True"}))
        assert found.flops == 2 * 2 * 2 * 3 * 8 * pairs


H200 = [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320}]


def product(
    at: float, n: int, *durations: float, name: str = "nvjet", dtype: str = BF16, first: int = 1
) -> list[Event]:
    """An n×n×n matrix product that launches a kernel for each duration."""
    args = {"Input Dims": [[n, n], [n, n]], "Input type": [dtype, dtype], "Input Strides": [[n, 1], [n, 1]]}
    events = [event("aten::mm", at, 10, "cpu_op", **args)]
    for i, duration in enumerate(durations):
        correlation = first + i
        events.append(event("cudaLaunchKernel", at + 1 + i, 0.5, "cuda_runtime", correlation=correlation))
        where = {"device": 0, "stream": 7, "correlation": correlation, "tid": 7}
        events.append(event(f"{name}{i}" if i else name, at + 20 + 100 * i, duration, "kernel", **where))
    return events


def test_a_call_stands_with_its_longest_kernel_and_the_time_of_all(trace_of: Make) -> None:
    trace = trace_of(*product(0, 1024, 2, 8), deviceProperties=H200)
    row = costed(trace).row(0, named=True)
    assert (row["id"], row["name"], row["time_ns"], row["flops"]) == (1, "nvjet1", 10_000, 2 * 1024**3)
    found = roofline(LoadedRun((trace,))).row(0, named=True)
    assert found["flops_share"] == pytest.approx(2 * 1024**3 / 10e-6 / 989.4e12)
    assert found["bandwidth_share"] == pytest.approx(3 * 1024**2 * 2 / 10e-6 / 4.8e12)
    assert (found["bound"], found["speed_of_light"]) == ("compute", found["flops_share"])


def test_above_a_hundred_percent_is_refused_and_counted(trace_of: Make) -> None:
    trace = trace_of(*product(0, 1024, 1), *product(500, 64, 5, first=9), deviceProperties=H200)
    run = LoadedRun((trace,))
    refused = roofline(run).filter(pl.col("refused"))
    assert refused.select("time_ns", "speed_of_light", "flops_share", "bound").row(0) == (
        1000,
        None,
        None,
        None,
    )
    row = kernel_roofline(run).row(0, named=True)
    assert (row["launches"], row["costed_launches"], row["refused_launches"]) == (2, 2, 1)
    assert row["speed_of_light"] == pytest.approx(3 * 64 * 64 * 2 / 4.8e12 / 5e-6)  # of the other one alone


def test_a_kernel_that_also_ran_for_unknown_ops_has_no_totals(trace_of: Make) -> None:
    other = [event("x", 900, 9, "cpu_op"), event("cudaLaunchKernel", 901, 2, "cuda_runtime", correlation=50),
             event("nvjet", 910, 5, "kernel", device=0, stream=7, correlation=50, tid=7)]  # fmt: skip
    trace = trace_of(*product(0, 256, 10), *other, deviceProperties=H200)
    row = kernel_roofline(LoadedRun((trace,))).row(0, named=True)
    assert (row["flops"], row["bytes"], row["launches"], row["costed_launches"]) == (None, None, 2, 1)
    assert row["speed_of_light"] is not None


def test_fp32_products_in_tf32_are_measured_by_the_tf32_peak(trace_of: Make) -> None:
    trace = trace_of(
        *product(0, 1024, 10, name="cutlass_80_tensorop_s1688gemm_tf32", dtype=FP32), deviceProperties=H200
    )
    assert costed(trace)["peak_flops"].to_list() == [494.7e12]


def test_without_a_known_device_there_are_rates_but_no_shares(trace_of: Make) -> None:
    trace = trace_of(*product(0, 1024, 10), deviceProperties=[{"id": 0, "name": "Mystery 9000"}])
    row = roofline(LoadedRun((trace,))).row(0, named=True)
    assert row["flops_per_s"] == pytest.approx(2 * 1024**3 / 10e-6)
    assert (row["speed_of_light"], row["bound"], row["refused"]) == (None, None, False)


def test_flops_of_a_llama_step_are_those_torch_printed(shared_data: Path) -> None:
    """llama_train_eager was recorded with_flops; its table has what torch counted for all aten::mm."""
    table = (shared_data / "h200/llama_train_eager.table.txt").read_text()
    (row,) = [line.split() for line in table.splitlines() if line.strip().startswith("aten::mm ")]
    host = read(shared_data / "h200/llama_train_eager.json.gz").table("host_events")
    counted = 0
    columns = ["input_dims", "input_types", "input_strides", "concrete_inputs"]
    for arguments in host.filter(pl.col("name").cast(pl.String) == "aten::mm").select(columns).iter_rows():
        counted += known(OpCall("aten::mm", *(json.loads(text) for text in arguments))).flops
    assert counted == pytest.approx(float(row[-1]) * 1000, rel=1e-9)  # printed in KFLOPs


def test_shares_on_a_real_recording_are_plausible(shared_data: Path) -> None:
    table = roofline(LoadedRun((read(shared_data / "h200/llama_train_eager.json.gz"),)))
    products = table.filter(pl.col("op_name").cast(pl.String) == "aten::mm", pl.col("bound") == "compute")
    weighted = (products["flops_share"] * products["time_ns"]).sum() / products["time_ns"].sum()
    assert 0.5 < weighted < 0.9  # large bf16 products on an H200 run at about two thirds of its peak
    assert table.filter(pl.col("refused"))["time_ns"].sum() < 0.03 * table["time_ns"].sum()
    assert table["speed_of_light"].max() <= 1


def test_bytes_of_generated_kernels_are_those_inductor_counted(shared_data: Path) -> None:
    """Inductor wrote its own count beside each of its kernels; it differs only where a tensor is read and
    written."""
    host = read(shared_data / "h200/mixnet_l_backward_module.json.gz").table("host_events")
    columns = ["name", "input_dims", "input_types", "input_strides", "concrete_inputs", "kernel_gigabytes"]
    counted = host.filter(pl.col("kernel_gigabytes") > 0).unique("name", keep="first").select(columns)
    ratios = []
    for name, *arguments, gigabytes in counted.iter_rows():
        found = cost(OpCall(name, *(json.loads(text) if text else [] for text in arguments)))
        if found is not None:
            ratios.append(found.bytes / gigabytes / 1e9)
    assert len(ratios) > 200
    assert sum(abs(ratio - 1) < 1e-6 for ratio in ratios) > 0.6 * len(ratios)
    assert all(0.5 <= ratio <= 1 + 1e-6 for ratio in ratios)


def test_copies_over_the_bus_have_no_share_of_the_memorys_peak(trace_of: Make) -> None:
    arguments = {
        "Input Dims": [[1024], [1024], []],
        "Input type": [FP32, FP32, "Scalar"],
        "Input Strides": [[1], [1], []],
    }
    trace = trace_of(
        event("aten::copy_", 0, 10, "cpu_op", **arguments),
        event("cudaMemcpyAsync", 2, 3, "cuda_runtime", correlation=5),
        event(
            "Memcpy HtoD (Pageable -> Device)", 20, 9, "gpu_memcpy", device=0, stream=7, correlation=5, tid=7
        ),
        deviceProperties=H200,
    )
    row = roofline(LoadedRun((trace,))).row(0, named=True)
    assert (row["bytes"], row["bandwidth_share"]) == (8192, None)
