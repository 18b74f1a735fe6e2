"""Categories of kernels: one ordered table, the first rule that fits decides.

To teach kinetoscope a kernel, add one line. ``kernel`` is a regular expression on the kernel's name, ``op``
on the name of the innermost op that launched it, ``under`` on any op or annotation around it, ``call`` on the
call of the runtime or driver that launched it; all that are given must fit. ``(?i)`` is implied. ``why`` says
what the names are, for the reader and for ``kinetoscope explain``.

The order is: what a name settles beyond doubt (Triton's prefixes, collectives), then what the launching op
settles (one and the same cutlass kernel is a convolution under ``aten::convolution`` and a matmul under
``aten::mm``), then what the kernel's name suggests, then what the op's name suggests.
"""

from __future__ import annotations

from typing import NamedTuple

from kinetoscope.analysis.events.torch_names import DMA, OPTIMIZER

OTHER = "other"  # unknown family: no rule knows the name, and no advice is given on it
COMMUNICATION = "communication"
COPY = "copy"
MEMSET = "memset"

CONVOLUTION = (
    r"(^|::)_?(cudnn_|miopen_|mkldnn_|slow_|thnn_|_slow_)?(depthwise_)?conv(olution|_|[123]d|$|_depthwise)"
    r"|_conv_(depthwise|transpose)"
)


class KernelRule(NamedTuple):
    category: str
    why: str
    kernel: str | None = None
    op: str | None = None
    under: str | None = None
    call: str | None = None


RULES: tuple[KernelRule, ...] = (
    KernelRule(COPY, "a small copy that the driver does by a kernel, in replayed graphs", r"^memcpy\d+\w*$"),
    KernelRule(MEMSET, "a memset that the driver does by a kernel, in replayed graphs", r"^memset\d+\w*$"),
    # Inductor puts its kernel's kind into the name's second part, as `python module.py -p` reads it.
    KernelRule("pointwise", "Inductor: triton_poi_fused_…", r"^triton_poi_"),
    KernelRule(
        "persistent reduction", "Inductor: triton_per_fused_…, the row stays in registers", r"^triton_per_"
    ),
    KernelRule("reduction", "Inductor: triton_red_fused_…, loops over the row", r"^triton_red_"),
    KernelRule(
        "template", "Inductor: triton_tem_fused_…, a matmul/conv/attention template", r"^triton_(tem|mm|bmm)_"
    ),
    KernelRule("foreach", "Inductor: triton_for_fused_…, one kernel for many tensors", r"^triton_for_"),
    KernelRule("split scan", "Inductor: triton_spl_fused_…, a scan split over blocks", r"^triton_spl_"),
    KernelRule("user Triton", "Inductor launches a user's Triton kernel under this prefix", r"^triton_use_"),
    KernelRule(
        "pointwise",
        "Inductor without unique kernel names: triton_; its kind is not in the name",
        r"^triton_(\d+)?$",
    ),
    # Collectives.
    KernelRule(COMMUNICATION, "NCCL and RCCL", r"^(void )?(nccl|rccl)|nccl(Dev)?Kernel|mscclKernel|mscclpp"),
    KernelRule(
        COMMUNICATION,
        "NVSHMEM, DeepEP (whose scans, cdpsk::ep::CUB_…, are not), symmetric memory",
        r"nvshmem|deep_?ep::|(^|\W)dpsk::ep::|symm(etric)?_mem|multimem_",
    ),
    KernelRule(
        COMMUNICATION,
        "custom all-reduce of vLLM, SGLang, TensorRT-LLM, aiter, torch",
        r"cross_device_reduce|(one|two)_shot_all_?reduce|all_?reduce_kernel|allreduce_(fusion|prototype)"
        r"|quick_?reduce|barrier_all|userbuffers_|mnnvl|moe_?(a2a|all_?to_?all)|all_?gather|reduce_?scatter",
    ),
    # Attention: its own kernels, and whatever the fused attention ops launch around them.
    KernelRule(
        "attention",
        "flash, cuDNN's and CK's fused attention, and what cuDNN launches around its backward",
        r"flash_|fmha|_sdpa_|FlashAttn|mha_(fwd|bwd)|cudnn::fusion::(compute_dot_do_o|convert_dq)",
    ),
    KernelRule(
        "attention",
        "attention kernels of Triton, AOTriton, FlashInfer, SageAttention, aiter, vLLM; linear attention",
        r"attn_(fwd|bwd)|attention|_attn_|BatchDecode|BatchPrefill|paged_?attn|pa_(fwd|decode)|mla_"
        r"|sage_?(attn|fwd|bwd)|qk_int\d*_sv|MergeStates?|delta_rule",
    ),
    KernelRule(
        "attention",
        "what a fused attention op launches around its kernel",
        op=r"(flash|efficient|cudnn)_attention|_fused_sdp_choice",
    ),
    # Convolution: the kernel's own name, or a GEMM or a layout change that the convolution op launched.
    KernelRule(
        "convolution",
        "implicit GEMM, Winograd, FFT and direct convolutions",
        r"implicit_?gemm|implicit_convolve|_(fprop|dgrad|wgrad)_|winograd|conv\dd|(d|w)grad\dd|grouped_conv"
        r"|igemm_(fwd|bwd|wrw)|ImplicitGemmConvolution|[sh]\d*cudnn|^cudnn_.*_conv|im2col|col2im"
        r"|conv_depthwise|naive_conv|Im2d2Col|fft2d_(r2c|c2r)|convolve_sgemm",
    ),
    KernelRule(
        "convolution",
        "cuDNN's offset tables and MIOpen's layout changes serve a convolution",
        r"cask_cudnn::compute|nchwToNhwc|nhwcToNchw|SubTensorOp(WithScalar|WithCastTensor)"
        r"|^batched_transpose_\d",
    ),
    KernelRule(
        "convolution",
        "a GEMM, split-K sum or padding that a convolution op launched",
        r"gemm|nvjet|cutlass|splitk|xmma|cudnn|Cijk_|^ck|ck::|miopen|pointwise_kernel_scal|transpose",
        op=CONVOLUTION,
    ),
    # Matrix products.
    KernelRule(
        "matmul",
        "cuBLAS: nvjet (Hopper on), *gemm*, splitKreduce; CUTLASS; hipBLASLt and rocBLAS: Cijk_ (Tensile); "
        "TensorRT-LLM: bmm_…; experts' products of vLLM and aiter; not all of FBGEMM",
        r"nvjet|(^|[^b]|(^|[^f])b)gemm|gemv|splitk|cublas|^Cijk_|rocblas|hipblas|cutlass|s\d+\d+gemm"
        r"|wmma_tensorop|xmma|dot_kernel|wvSplitK|reduce_1Block_kernel|_matmul|^bmm_|fused_moe_kernel|fmoe_"
        r"|cusparse|spmm",
    ),
    # Everything eager that the optimizer's step launched; its matrix products (Muon) are matmuls, above.
    KernelRule(
        "optimizer",
        "a fused optimizer",
        r"Fused(Adam|SGD|Adagrad|Optimizer|Lion|LAMB)|adam(w)?_(kernel|cuda)|lamb_"
        r"|multi_tensor_(adam|sgd|lamb)",
    ),
    KernelRule("optimizer", "eager work inside Optimizer.step#… or zero_grad", under=OPTIMIZER),
    # Kinds whose kernels carry the name.
    KernelRule(
        "normalization",
        "batch, layer, group, instance and RMS normalisation",
        r"batch_?norm|layer_?norm|rms_?norm|group_?norm|instance_?norm|RowwiseMoments|GammaBeta|LayerNorm"
        r"|GroupNorm|BatchNorm|cudnn::bn_|bn_(fw|bw)_|MIOpenBatchNorm|ComputeInternalGradients"
        r"|ComputeFusedParams",
    ),
    KernelRule(
        "expert routing",
        "which token goes to which expert, and their sums back: vLLM, TensorRT-LLM, Megatron",
        r"moe::dev::(routing|finalize|permute)|routing(Indices|Main|Deep)|moe_(align|sum|permute|unpermute)"
        r"|(finalize|permute|expand)\w*(Moe|Rows|Experts)|topk_?gating|count_and_sort_expert|expert_offset",
    ),
    KernelRule("softmax", "softmax and log-softmax, forward and backward", r"soft_?max"),
    KernelRule(
        "loss",
        "loss functions",
        r"nll_loss|NLLCriterion|cross_?entropy|mse_|l1_loss|kl_div|bce_|binary_cross|ctc_loss|margin_loss",
    ),
    KernelRule(
        "pooling",
        "max, average and adaptive pooling",
        r"pool(ing)?_?(\dd|forward|backward|fw|bw|kernel|nchw|nhwc)|maxpool|avgpool|pool_|mlopool"
        r"|adaptive_?(average|avg|max)|roi_(align|pool)",
    ),
    KernelRule(
        "random",
        "random numbers, dropout",
        r"distribution_(elementwise|nullary|unary)|philox|dropout|bernoulli|curand|randperm|rocrand|random_"
        r"|multinomial|SamplingFrom",
    ),
    KernelRule("sort", "sort, top-k, unique", r"sort|top_?k|bitonic|unique_|histogram|argsort|RunLength"),
    KernelRule(
        "scan",
        "cumulative sums and other scans",
        r"scan_|_scan|DeviceScan|cumsum|tensor_kernel_scan|prefix_sum",
    ),
    KernelRule(
        "elementwise",
        "rotary positions and index ramps touch each element once",
        r"rotary|rope_|elementwise_kernel_with_index|arange",
    ),
    KernelRule(
        "embedding",
        "embedding tables: lookup, bag, backward",
        r"embedding|EmbeddingBag|krn_partial|compute_grad_weight|sum_and_scatter|linearize_index|tbe_"
        r"|bounds_check_indices|jagged|bucketize_sparse|lxu_cache|segment_sum_csr",
    ),
    KernelRule(
        "quantization",
        "to and from fp8, fp4 and int8, with the scales: vLLM, TensorRT-LLM, Transformer Engine, FBGEMM",
        r"quant(i[zs]|_|<|\(|$)|(cast|cvt|convert)\w*_to_fp[48]|cast_transpose|block_scale_interleave",
    ),
    KernelRule(
        "embedding",
        "gather, scatter, index; KV-cache stores",
        r"index|gather|scatter|kv_?cache|kv_indices|token_ids|clamp_position|masked_select|take_|_put_"
        r"|nonzero|flag_kernel|write_indices|DeviceSelect|DevicePartition",
    ),
    KernelRule(
        COPY,
        "kernels that only move or cast bytes: copy_, to, cat, split, stack, transpose",
        r"copy|CatArray|chunk_cat|transpose|permute_|pad_kernel|constant_pad|reflection_pad|split_with_sizes"
        rf"|flip_|roll_cuda|swizzle|{DMA}",
    ),
    KernelRule(
        "foreach",
        "one launch over a list of tensors, outside an optimizer",
        r"multi_tensor_apply|foreach|lpnorm_cleanup",
    ),
    KernelRule(
        "recurrent", "cuDNN's and MIOpen's LSTM, GRU and RNN cells", r"(^|[^a-z])(lstm|gru|rnn)[_A-Z]|RNNcell"
    ),
    KernelRule("FFT", "cuFFT, rocFFT", r"(^|_)fft_|_fft(_|\W|$)|cufft|rocfft"),
    KernelRule(
        "linear algebra",
        "factorisations and triangular solves: cuSOLVER, rocSOLVER, MAGMA",
        r"cusolver|rocsolver|magma|potrf|getrf|geqrf|trs[mv]|syev|gesv|lu_factor",
    ),
    KernelRule(
        "elementwise",
        "gated activations of serving libraries",
        r"act_and_mul|activation|silu|gelu|relu|swiglu|(^|_)bias_|_bias(_|<|$)|residual",
    ),
    KernelRule(
        "reduction", "sums, means, norms, arg-max", r"reduce|norm_kernel|DeviceReduce|argm(ax|in)|ReduceAdd"
    ),
    KernelRule(
        "elementwise",
        "one thread an element: TensorIterator's kernels, fills, triangles",
        r"elementwise|pointwise|FillFunctor|triu_tril|tril_indices|arange|linspace|gpu_kernel|CUDAFunctor"
        r"|upsample|grid_sample|fill_?(kernel|buffer)|cuda_kernel|where_|masked_fill|threshold|parallel_for"
        r"|for_each|Op(\dd)?Tensor",
    ),
    # The op's name, where the kernel's says nothing.
    KernelRule("convolution", "launched by a convolution op", op=CONVOLUTION),
    KernelRule(
        "matmul",
        "launched by a matrix-product op",
        op=r"::(mm|bmm|addmm|baddbmm|addbmm|addmv|mv|dot|matmul|linear|einsum"
        r"|_scaled_mm|_grouped_mm|_int_mm)(_|$)",
    ),
    KernelRule("normalization", "launched by a normalisation op", op=r"norm(_|$|alization)"),
    KernelRule(
        "embedding",
        "launched by an indexing or embedding op",
        op=r"embedding|index|gather|scatter|LookupFunction",
    ),
    KernelRule("sort", "launched by a sorting op", op=r"::(sort|topk|argsort|unique)"),
    KernelRule(
        "attention",
        "launched somewhere inside an attention op",
        under=r"scaled_dot_product_|::_?(flash|efficient|cudnn)_attention",
    ),
    KernelRule(
        "user Triton",
        "a bare identifier: C++ kernels carry a signature, Triton names a kernel after its Python function",
        r"triton|^_?[a-z][a-z0-9_]*_kernel(_[a-z0-9_]*)?$",
    ),
    KernelRule(
        "user Triton",
        "a bare identifier that the driver was given: C++ kernels are launched through the runtime",
        r"^_?[a-z][a-z0-9_]*$",
        call=r"^cuLaunchKernel(Ex)?$|^hipModuleLaunchKernel$",
    ),
)
