"""Short kernel names: short, telling, and never the same for two kernels of one report."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kinetoscope.analysis.kernels.names import LONGEST, short_name, short_names

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
MULTIPLY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor"
    "<float, float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::"
    "{lambda(int)#1}>(int)"
)
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::"
    "{lambda(float)#1}, std::array<char*, 2ul>, 4>(int, "
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3})"
)
SUM = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>"
    ", unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)"
)
FOREACH = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>, "
    "std::multiplies<float>, float>(at::native::(anonymous namespace)::TensorListMetadata<1>)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("nvjet_sm90_tst_64x8_64x16_1x4_h_bz_NNT", "nvjet_tst_64x8_64x16_1x4_h_bz_NNT"),
        ("triton_poi_fused_add_mul_0", "triton_poi_fused_add_mul_0"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        (ELEMENTWISE, "vectorized_elementwise<add bf16>"),
        (MULTIPLY, "elementwise<Mul f32>"),
        (CAST, "unrolled_elementwise<direct_copy f32>"),
        (SUM, "reduce<sum f32>"),
        (FOREACH, "multi_tensor_apply<multiplies f32>"),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_256x64_32x4_nt_align2>"
            "(cutlass_80_t::Params)",
            "cutlass_s16816gemm_bf16_256x64_32x4_nt_align2",
        ),
        (
            "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc"
            "_align4>(cutlass_tensorop_t::Params)",
            "cutlass_s1688fprop_tf32_128x128_16x4_nhwc_align4",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4"
            "_execute_kernel__5x_cublas",
            "xmma_gemm_f32_tn_64x64x8",
        ),
        (
            "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_warpgroupsize2x1x1_execute_segment_k_off"
            "_kernel__5x_cublas",
            "xmma_gemm_tf32_nn_128x256x32",
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_cga1x1x1_kernel0_0",
            "cudnn_sdpa_flash_bprop_f16_64x64x64",
        ),
        (
            "Cijk_Ailk_Bjlk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x64_MI16x16x1_SN_LDSB0_AFC1",
            "Cijk_Ailk_Bjlk_BBS_MT64x32x64",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256EEEvPT0_", "aiter::add_rmsnorm_quant_kernel"),
        (
            "_ZN2ck16tensor_operation6device12_GLOBAL__N_15helloILi1EEEvv",
            "ck::tensor_operation::device::hello",
        ),
        ("void (anonymous namespace)::softmax_warp_forward<float, float>(float*)", "softmax_warp_forward"),
    ],
)
def test_short_names_say_what_the_kernel_is(name: str, short: str) -> None:
    assert short_name(name) == short


@given(st.text(max_size=200))
@example(" (")
def test_any_text_has_a_short_name(name: str) -> None:
    assert len(short_name(name)) <= max(LONGEST, len(name) if name.startswith("Mem") else 0)
    assert short_name(name) or not name.removeprefix("void ").strip()


@given(st.lists(st.sampled_from([ELEMENTWISE, MULTIPLY, CAST, "f<1>(int)", "f<2>(int)", "f"]), unique=True))
def test_short_names_of_a_report_are_all_different(names: list[str]) -> None:
    assert len(set(short_names(names))) == len(names)
