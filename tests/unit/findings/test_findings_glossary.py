"""Terms and kernel names."""

from __future__ import annotations

import pytest

from kinetoscope.findings.glossary.explanation import all_terms, meaning, similar
from kinetoscope.findings.glossary.kernel_names import decode
from kinetoscope.findings.registry import rules

KNOWN = {
    "nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT": [
        ("64x8", "tile"), ("64x16", "depth"), ("2x4", "cluster"), ("bz", "beta is zero"),
    ],
    "nvjet_sm90_tst_256x128_64x4_1x2_h_badd_coopA_NNT": [
        ("badd", "beta is not zero"), ("coopA", "cooperative"), ("NNT", "the result is transposed"),
    ],
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x256_32x4_nn_align2>(P)": [
        ("80", "Ampere"), ("tensorop", "tensor cores"), ("s16816gemm", "16x8x16"),
        ("align2", "misaligned-shapes"),
    ],
    "cutlass_80_tensorop_s1688gemm_64x64_32x6_nn_align4": [("s1688gemm", "16x8x8"), ("align4", "4 elements")],
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn": [
        ("ldg8", "8 elements"), ("128x256", "tile"), ("64x3", "depth"),
    ],
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4"
    "_execute_kernel__5x_cublas": [
        ("sm80", "Ampere"), ("ffma", "no tensor cores"), ("tilesize32x32x8", "tile"),
        ("gemm", "matrix product"),
    ],
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1"
    "_execute_segment_k_off_kernel__5x_cudnn": [("fprop", "forward"), ("nhwckrsc_nhwc", "channels-last")],
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN": [
        ("Cijk_Alik_Bljk", "indices"), ("BBS", "bfloat16"), ("MT256x256x64", "macro tile"),
    ],
    "triton_poi_fused_add_mul_0": [("poi", "pointwise"), ("add_mul", "names"), ("0", "number")],
    "triton_red_fused__to_copy_sum_12": [("red", "reduction"), ("to_copy_sum", "names"), ("12", "number")],
    "triton_per_fused_native_layer_norm_3": [("per", "persistent reduction")],
    "triton_tem_fused_mm_3": [("tem", "template")],
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false>>": [
        ("64", "head"), ("128 x 128", "queries x keys"),
    ],
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": [
        ("AllReduce", "collective"), ("bf16", "type"), ("RING", "ring"), ("LL", "latency"),
    ],
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int)": [
        ("vectorized_elementwise_kernel", "neighbouring"), ("4", "at once"), ("CUDAFunctor_add", "computed"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_kernel_names_are_taken_apart(name: str) -> None:
    decoded = decode(name)
    assert decoded is not None
    fields = dict(decoded[1])
    for text, meant in KNOWN[name]:
        assert meant in fields[text], (text, fields)


@pytest.mark.parametrize("name", ["", "hello", "my_kernel_0d1d", "Memset (Device)", "void f<int>(int)"])
def test_unknown_namings_are_not_guessed(name: str) -> None:
    assert decode(name) is None


@pytest.mark.parametrize(
    ("name", "term"),
    [
        ("aten::addmm", "aten::addmm"),
        ("ATEN::ADDMM", "aten::addmm"),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessor", "cudaOccupancyMaxActiveBlocksPerMultiprocessor"),
        ("hipDeviceSynchronize", "hipDeviceSynchronize"),
        ("ProfilerStep#12", "ProfilerStep#*"),
        ("Torch-Compiled Region: 3/1", "Torch-Compiled Region: *"),
        ("aten::silu_backward", "aten::*_backward"),
        ("aten::_foreach_add_", "aten::_foreach_*"),
        ("_recursive_joint_graph_passes (dynamo_timed)", "* (dynamo_timed)"),
    ],
)
def test_names_find_their_term(name: str, term: str) -> None:
    found = meaning(name)
    assert found is not None
    assert found[0] == term


def test_rules_that_the_glossary_names_exist() -> None:
    import re

    for term, text in all_terms().items():
        for slug in re.findall(r"[Rr]ule ([a-z-]+[a-z])", text):
            assert slug in rules(), (term, slug)


def test_terms_are_read_whole() -> None:
    terms = all_terms()
    assert (
        terms["hipGraphLaunch"]
        == terms["cudaGraphLaunch"]
        == "Launches a whole recorded graph with one call."
    )
    assert "===" not in "".join(terms)
    assert all(text and text == " ".join(text.split()) and text.endswith(".") for text in terms.values())


def test_a_misspelt_name_is_led_back() -> None:
    assert meaning("aten::adddmm") is None
    assert "aten::addmm" in similar("aten::adddmm")
