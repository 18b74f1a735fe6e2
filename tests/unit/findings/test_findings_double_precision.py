"""Work in double precision: what of it is found, and the part that single precision saves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules.double_precision import find
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties
from traces import Event, call, host, kernel, step, trace

STEP_US = 730
ADDS = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<double>>"
ADAM = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>, float const*, double, double, double>"
DGEMM = "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x32_16x4_nn_align1>"
SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_kernel"


def view(device: str, *kernels: tuple[str, str, float]) -> RankView:
    events: list[Event] = []
    for number in range(3):
        at = number * STEP_US  # as long as its kernels, within a few per cent
        events.append(step(number, at, STEP_US))
        start = at + 20
        for place, (op, name, us) in enumerate(kernels):
            which = 10 * number + place + 1
            events.append(host(op, at + 10 * place, 8))
            events.append(call("cudaLaunchKernel", at + 10 * place + 2, 3, which))
            events.append(kernel(name, start, us, which, grid=[64, 1, 1], block=[256, 1, 1]))
            start += us
        events.append(call("cudaStreamSynchronize", at + 70, start - at - 68, 0))
    found = replace(trace(*events), devices=(DeviceProperties(0, device, None, (8, 9), 100, {}),))
    run = LoadedRun((found,))
    return RankView(run, found)


# Rates of products in double and single precision, TFLOP/s; where TF32 is faster still, a fifth of that.
PRODUCT = {
    "NVIDIA H100 80GB HBM3": 1 - 66.9 / 66.9 * 0.2,
    "NVIDIA GeForce RTX 4090": 1 - 1.29 / 82.6,
    "Tesla V100-SXM2-16GB": 1 - 7.8 / 15.7,
}


@pytest.mark.parametrize("device", PRODUCT)
def test_single_precision_saves_half_of_the_bytes_and_what_the_rates_of_products_say(device: str) -> None:
    (found,) = find(view(device, ("aten::add", ADDS, 303), ("aten::mm", DGEMM, 403)))
    assert found.affected_us == pytest.approx(706)
    assert found.saving.us == pytest.approx(150 + 400 * PRODUCT[device], rel=0.04)
    assert not found.saving.condition


@pytest.mark.parametrize(
    "op", ["aten::linalg_cholesky_ex", "aten::_linalg_solve_ex", "aten::triangular_solve"]
)
def test_what_factorizes_or_solves_may_need_the_digits(op: str) -> None:
    (found,) = find(view("NVIDIA H100 80GB HBM3", ("aten::mm", DGEMM, 403), (op, ADDS, 303)))
    assert found.saving.condition == "the seven digits of single precision are enough"
    (found,) = find(
        view("NVIDIA H100 80GB HBM3", ("aten::mm", DGEMM, 403), ("aten::linalg_vector_norm", ADDS, 303))
    )
    assert not found.saving.condition


def test_a_double_argument_and_a_few_doubles_are_no_finding() -> None:
    assert not list(find(view("NVIDIA H100 80GB HBM3", ("aten::_fused_adam_", ADAM, 700))))
    assert not list(find(view("NVIDIA H100 80GB HBM3", ("aten::add", ADDS, 60), ("aten::mm", SGEMM, 700))))
