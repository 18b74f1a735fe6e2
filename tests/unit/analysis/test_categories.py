"""What sort of work a kernel is, by its name and by what launched it."""

from __future__ import annotations

import re

import pytest

from kinetoscope.analysis.events.backward import updates
from kinetoscope.analysis.kernels import taxonomy
from kinetoscope.analysis.kernels.work import categories
from traces import Event, call, copy, host, kernel, trace

ANONYMOUS = "void at::native::(anonymous namespace)::"
# Kernel names as recordings of vLLM, SGLang, TensorRT-LLM, Megatron, torch on CUDA and ROCm and DeepSpeed
# have them.
BY_NAME = {
    "triton_poi_fused_add_mul_0": "pointwise",
    "triton_red_fused_native_layer_norm_3": "reduction",
    "triton_per_fused__softmax_1": "persistent reduction",
    "triton_tem_fused_mm_7": "template",
    "triton_for_fused_0": "foreach",
    "triton_spl_fused_cumsum_0": "split scan",
    "nvjet_sm90_tst_64x8_64x16_1x4_h_bz_NNT": "matmul",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn": "matmul",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1": "matmul",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)": "matmul",
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, float, 128, 16, 4, 4, false, true>(float)": "matmul",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn_align8>(P)": "matmul",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int> >(int)": "matmul",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN": "matmul",
    "deep_gemm::sm90_fp8_gemm_1d2d_impl": "matmul",
    "bgemm_kernel": "matmul",
    # FBGEMM names a library, of which products are the lesser part.
    "void fbgemm_gpu::f8f8bf16_rowwise_gemm<int>(int)": "matmul",
    "void split_embedding_backward_codegen_dense_unweighted_exact_kernel_warp_per_row_1<float>": "embedding",
    "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*, int const*, int*)": "copy",
    "cunn_ClassNLLCriterion_updateOutput_kernel": "loss",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4> >(Flash_fwd_params)": "attention",
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<int>(flash::Flash_bwd_params)": "attention",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<int>)": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64": "attention",
    "_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelINS_20FmhaFwdTilePartitionerE": "attention",
    "void vllm::paged_attention_v2_kernel<unsigned short, 128>(float*)": "attention",
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<int>(int)": "attention",
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64": "convolution",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)": "convolution",
    "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x32_wt32x32x8": "convolution",
    "dgrad2d_c1_k1_nhwc_specialized": "convolution",
    "void cudnn::ops::nchwToNhwcKernel<float, float>(int)": "convolution",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)": "communication",
    "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)": "communication",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "communication",
    "void at::native::batch_norm_backward_kernel<float, float, float, int>(int)": "normalization",
    f"{ANONYMOUS}vectorized_layer_norm_kernel<float, float>(int)": "normalization",
    "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(int)": "normalization",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10>(float*)": "softmax",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(float*)": "softmax",
    "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>(int)": "loss",
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int)": "pooling",
    f"{ANONYMOUS}distribution_elementwise_grid_stride_kernel<float, 4>(int)": "random",
    "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<int>(int)": "sort",
    "void at::native::(anonymous namespace)::sbtopk::gatherTopK<float, 2>(int)": "sort",
    "void at_cuda_detail::cub::DeviceScanKernel<int>(int)": "scan",
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float>(int)": "embedding",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(int)": "embedding",
    "void at::native::vectorized_gather_kernel<16, long>(char*)": "embedding",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1>(float*)": "copy",
    "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(int)>(int)": "copy",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps> >": "reduction",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >": "elementwise",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)": "elementwise",
    "void vllm::act_and_mul_kernel<c10::BFloat16>(int)": "elementwise",
    f"{ANONYMOUS}multi_tensor_apply_kernel<at::native::TensorListMetadata<1> >": "foreach",
    f"{ANONYMOUS}multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float> >": "optimizer",
    # Expert parallelism, serving, recommendation and other vendors.
    "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*, long*)": "communication",
    "void dpsk::ep::internode::combine<(dpsk::ep::internode::Mode)1>(int4*)": "communication",
    "dpsk::ep::cuda::get_dispatch_layout(long const*, int*, int*, bool*)": "communication",
    "void cdpsk::ep::CUB_200500_900_NS::DeviceScanKernel<int>(int)": "scan",
    "void tensorrt_llm::kernels::moe_comm::moeAllToAllKernel<true>(int)": "communication",
    "userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int)": "communication",
    "bmm_E4m3_E4m3E4m3_Fp32_t128x8x512_s3_et128x8_m128x8x32_cga1x1x1_16dp256b_rM_TN": "matmul",
    "bmm_Bfloat16_E2m1E2m1_Fp32_t128x64x256_s5_et128x64_m128x64x64": "matmul",
    "void moe::dev::routing::routingDeepSeek::routingMainKernel<int>(int)": "expert routing",
    "void moe::dev::routing::routingCustom::routingIndicesBlockKernel<int>(int)": "expert routing",
    "void moe::dev::finalize::finalizeKernelVecLoad<int>(int)": "expert routing",
    "void moe::dev::activation::activationDeepSeekKernel<int>(int)": "elementwise",
    "void vllm::moe::moe_align_block_size_kernel<int>(int const*)": "expert routing",
    "void tensorrt_llm::kernels::quantize_with_block_size<(T)2, __half, 32, true>(int)": "quantization",
    "void vllm::scaled_fp8_quant_kernel<c10::BFloat16>(int)": "quantization",
    "void per_token_group_quant_8bit_kernel<c10::BFloat16>(int)": "quantization",
    "void transformer_engine::detail::cast_transpose_fused_kernel_notalign<int>(int)": "quantization",
    "per_token_cast_to_fp8_kernel": "quantization",
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256EEEvPT0_": "normalization",
    "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, 1ul>(int)": "embedding",
    "void bounds_check_indices_kernel<long>(at::GenericPackedTensorAccessor<long, 1ul>)": "embedding",
    "void jagged_dense_elementwise_add<float>(int)": "embedding",
    "sage_fwd": "attention",
    "void qk_int_sv_f16_accum_f32_attn_kernel<128, 64>(int)": "attention",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(void const*)": "attention",
    "volta_scudnn_128x64_relu_xregs_large_nn_v1": "convolution",
    "dma_request": "copy",
    f"{ANONYMOUS}adaptive_average_pool<float>(float const*)": "pooling",
    f"{ANONYMOUS}atomic_adaptive_average_gradinput<float>(float*)": "pooling",
    "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, true, float>(float)": "foreach",
    "void LSTM_elementWise_fp<__half, __half, float>(int)": "recurrent",
    "void regular_fft<256u, EPT<16u>, 1u>(int)": "FFT",
    "void getrf_wo_pivot_params_<float>(int)": "linear algebra",
    "__amd_rocclr_fillBufferAligned": "elementwise",
    "my_fused_thing_kernel": "user Triton",
    "QuantumFlux": "other",
}


def category_of(*events: Event) -> str:
    """The category of the last device event."""
    recorded = trace(*events)
    return str(categories(recorded).cast(str).to_list()[-1])


@pytest.mark.parametrize(("name", "category"), BY_NAME.items())
def test_the_name_of_a_kernel_tells_its_category(name: str, category: str) -> None:
    assert category_of(kernel(name, 0, 1)) == category


def under(kernel_name: str, *chain: str) -> str:
    """The category of a kernel launched inside a chain of ops and annotations, outermost first."""
    around = [
        host(name, i, 100 - 2 * i, "user_annotation" if name.startswith("Optimizer") else "cpu_op")
        for i, name in enumerate(chain)
    ]
    return category_of(*around, call("cudaLaunchKernel", 50, 1, 9), kernel(kernel_name, 60, 5, 9))


ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_256x64_32x4_nt_align2>(P)"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1> >(int)"


@pytest.mark.parametrize(
    ("name", "chain", "category"),
    [
        (GEMM, ["aten::linear", "aten::addmm"], "matmul"),
        (
            GEMM,
            ["aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution"],
            "convolution",
        ),
        (
            GEMM,
            ["autograd::engine::evaluate_function: ConvolutionBackward0", "aten::convolution_backward"],
            "convolution",
        ),
        (ADD, ["aten::convolution_backward", "aten::sum"], "elementwise"),
        (ADD, ["aten::add"], "elementwise"),
        (ADD, ["Optimizer.step#AdamW.step", "aten::_foreach_add_"], "optimizer"),
        (FOREACH, ["Optimizer.step#AdamW.step", "aten::_foreach_mul_"], "optimizer"),
        (FOREACH, ["Optimizer.zero_grad#SGD.zero_grad", "aten::_foreach_zero_"], "optimizer"),
        (FOREACH, ["aten::_foreach_norm"], "foreach"),
        (GEMM, ["Optimizer.step#Muon.step", "aten::mm"], "matmul"),
        ("triton_poi_fused_add_0", ["Optimizer.step#AdamW.step"], "pointwise"),
        ("void cudnn::fusion::compute_dot_do_o<true>(int)", ["aten::_cudnn_attention_backward"], "attention"),
        ("unheard_of(int)", ["aten::cudnn_convolution"], "convolution"),
        ("unheard_of(int)", ["aten::addmm"], "matmul"),
        ("unheard_of(int)", ["aten::native_layer_norm"], "normalization"),
        ("unheard_of(int)", ["aten::frobnicate"], "other"),
    ],
)
def test_the_ops_around_a_launch_tell_its_category(name: str, chain: list[str], category: str) -> None:
    assert under(name, *chain) == category


def test_what_a_closure_runs_in_an_optimizers_step_is_no_update() -> None:
    found = trace(
        host("Optimizer.step#AdamW.step", 0, 1000),
        *(host("aten::mul", 100, 50), call("cudaLaunchKernel", 110, 5, 1), kernel(ADD, 200, 5, 1)),
        host("Optimizer.zero_grad#AdamW.zero_grad", 200, 50),
        *(
            host("aten::_foreach_zero_", 205, 20),
            call("cudaLaunchKernel", 210, 5, 2),
            kernel(FOREACH, 300, 5, 2),
        ),
        host("autograd::engine::evaluate_function: MulBackward0", 400, 100, tid=2),
        *(
            host("aten::mul", 410, 20, tid=2),
            call("cudaLaunchKernel", 415, 5, 3, tid=2),
            kernel(ADD, 450, 5, 3),
        ),
        *(
            host("aten::_foreach_mul_", 600, 50),
            call("cudaLaunchKernel", 610, 5, 4),
            kernel(FOREACH, 650, 5, 4),
        ),
    )
    assert categories(found).to_list() == ["elementwise", "optimizer", "elementwise", "optimizer"]
    update = updates(found).row(0, named=True)
    assert (update["start_ns"], update["duration_ns"]) == (500_000, 500_000)


def test_a_bare_name_given_to_the_driver_is_tritons() -> None:
    def launched_by(name: str) -> str:
        return category_of(call(name, 50, 1, 9), kernel("tiled", 60, 5, 9))

    assert launched_by("cuLaunchKernelEx") == launched_by("hipModuleLaunchKernel") == "user Triton"
    assert launched_by("cudaLaunchKernel") == "other"


def test_copies_and_memsets_are_what_the_file_says() -> None:
    assert category_of(copy(0, 1)) == "copy"
    assert category_of(kernel("Memset (Device)", 0, 1) | {"cat": "gpu_memset"}) == "memset"


def test_a_recorded_collective_is_communication_whatever_the_kernels_name() -> None:
    recorded = kernel("void custom_transport(int)", 0, 1, **{"Collective name": "allreduce", "Group size": 8})
    assert category_of(recorded) == "communication"


def test_without_device_work_there_are_no_categories() -> None:
    assert categories(trace(host("aten::mm", 0, 1))).is_empty()


def test_every_rule_says_something_and_why() -> None:
    for rule in taxonomy.RULES:
        assert rule.why
        patterns = [pattern for pattern in (rule.kernel, rule.op, rule.under) if pattern is not None]
        assert patterns
        for pattern in patterns:
            re.compile(pattern)
