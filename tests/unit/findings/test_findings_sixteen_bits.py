"""What bfloat16 saves, and a scaler that it does not need; and tables that are updated whole."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

import traces
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import dense_embedding_gradients, needless_scaler, no_tensor_cores
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties

H200 = DeviceProperties(0, "NVIDIA H200", 140 << 30, (9, 0), 132)
SGEMM, TF32, ADD = "ampere_sgemm_128x64_tn", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn", "CUDAFunctor_add<float>"
BF16, FP16 = "sm90_xmma_gemm_bf16bf16_bf16f32_f32", "at::native::float16_copy_kernel_cuda(x)"
Launch = tuple[str, str, float]  # op, kernel, µs


def view(*launches: Launch, around: Iterable[traces.Event] = ()) -> RankView:
    """A step of ops with a kernel each, one after the other, and a wait for the last: the device sets the
    pace."""
    around = list(around)
    events, ready = [*around], 10.0
    for number, (op, kernel, took_us) in enumerate(launches, 1):
        at = 5.0 * number
        events += [
            traces.host(op, at, 4),
            traces.call("cudaLaunchKernel", at + 1, 1, number),
            traces.kernel(kernel, ready := max(ready, at + 10), took_us, number),
        ]
        ready += took_us
    waits = max([5.0 * len(launches) + 5, *(event["ts"] + event["dur"] + 1 for event in around)])
    ready = max(ready, waits)
    events += [
        traces.call("cudaStreamSynchronize", waits, ready + 2 - waits, 0),
        traces.step(1, 0, ready + 3),
    ]
    trace = replace(traces.trace(*events), devices=(H200,))
    return RankView(LoadedRun((trace,)), trace)


def by_subject(found: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in found}


def test_bfloat16_saves_the_bytes_of_other_kernels_too() -> None:
    found = by_subject(no_tensor_cores.find(view(("aten::mm", SGEMM, 1003), ("aten::add", ADD, 1003))))
    assert found["TF32"].saving.change.device["saved_ns"].to_list() == [802_400.0]
    assert found["bfloat16"].saving.change.device["saved_ns"].to_list() == [900_000.0, 500_000.0]
    assert found["bfloat16"].proof is None  # no command turns it on


def test_autocast_leaves_norms_and_some_of_a_sum_in_float32() -> None:
    training = traces.host("Optimizer.step#SGD.step", 1, 2, "user_annotation")
    work = ("aten::mm", TF32, 1003), ("aten::add", ADD, 903), ("aten::layer_norm", "layer_norm<float>", 500)
    found = by_subject(no_tensor_cores.find(view(*work, around=[training])))
    assert found.keys() == {"bfloat16"}
    assert found["bfloat16"].saving.change.device["saved_ns"].to_list() == [500_000.0, 300_000.0]
    assert "autocast" in str(found["bfloat16"].snippet)


def test_a_training_step_that_is_replayed_as_a_graph_is_known_by_its_kernels() -> None:
    adam = "multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
    work = ("", TF32, 1003), ("", ADD, 903), ("", adam, 100)
    (found,) = no_tensor_cores.find(view(*work))
    assert "autocast" in str(found.snippet)
    (found,) = no_tensor_cores.find(view(*work[:2]))
    assert found.snippet == "model.bfloat16()"


def test_where_bfloat16_saves_no_more_the_one_line_is_advised() -> None:
    assert by_subject(no_tensor_cores.find(view(("aten::mm", SGEMM, 1003)))).keys() == {"TF32"}


def test_a_program_with_sixteen_bits_or_without_products_is_left_in_float32() -> None:
    mixed = ("aten::mm", TF32, 1003), ("aten::mm", BF16, 100)
    assert not list(no_tensor_cores.find(view(*mixed)))
    assert not list(no_tensor_cores.find(view(("aten::mm", TF32, 50), ("aten::add", ADD, 1003))))
    assert not list(no_tensor_cores.find(view(("aten::mm", "dgemm_double", 900), ("aten::mm", TF32, 50))))


def scaled(*launches: Launch) -> RankView:
    """The scaler's check, its value read, the optimizer's step."""
    last = 5.0 * len(launches)
    read = traces.host("aten::item", last + 6, 300), traces.host("aten::_local_scalar_dense", last + 7, 298)
    wait = traces.call("cudaStreamSynchronize", last + 10, 290, 0)
    other = traces.host("aten::_local_scalar_dense", 1, 3), traces.call("cudaStreamSynchronize", 2, 1, 0)
    step = traces.host("Optimizer.step#SGD.step", last + 310, 20, "user_annotation")
    return view(*launches, around=[*other, *read, wait, step])


CHECK = ("aten::_amp_foreach_non_finite_check_and_unscale_", "multi_tensor_apply_kernel<float>", 50.0)


def test_a_scaler_for_bfloat16_checks_and_waits_for_nothing() -> None:
    (finding,) = needless_scaler.find(scaled(("aten::mm", BF16, 100), CHECK))
    assert finding.title.startswith("A gradient scaler checks gradients 1 time per step")
    assert finding.saving.change.device["saved_ns"].to_list() == [50_000.0]
    assert len(finding.saving.change.waits) == 1  # not the other value's


def test_float16_needs_its_scaler() -> None:
    assert not list(needless_scaler.find(scaled(("aten::mm", BF16, 100), ("aten::to", FP16, 9), CHECK)))
    assert not list(needless_scaler.find(scaled(("aten::mm", "triton_mm", 100), CHECK)))


def table(fill_us: float, rows_us: float) -> RankView:
    backward = traces.host("aten::embedding_dense_backward", 4, 12)
    fill = ("aten::fill_", "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", fill_us)
    rows = ("aten::sum", "embedding_backward_kernel<float>", rows_us)
    update = traces.host("Optimizer.step#Adam.step", 14, 10, "user_annotation")
    adam = ("aten::_fused_adam_", "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", 1000.0)
    return view(fill, rows, adam, around=[backward, update])


def test_a_table_of_which_few_rows_are_touched_is_updated_whole() -> None:
    (finding,) = dense_embedding_gradients.find(table(100, 20))
    assert finding.title.startswith("Gradients of 1 of 1 embedding table are dense")
    saved = finding.saving.change.device.sort("id")["saved_ns"].to_list()
    assert saved == [100_000.0, 700_000.0]  # Adam reads four tensors and writes three


def test_a_table_that_is_touched_all_over_stays_dense() -> None:
    assert not list(dense_embedding_gradients.find(table(100, 60)))


def test_no_more_goes_than_the_optimizer_takes() -> None:
    (finding,) = dense_embedding_gradients.find(table(500, 20))
    assert finding.saving.change.device["saved_ns"].max() == 1_000_000.0
