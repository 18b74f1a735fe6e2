"""Which products are taken for float32 on the ordinary cores, by names from real recordings."""

from __future__ import annotations

import re

import pytest

from kinetoscope.findings.rules.no_tensor_cores import PLAIN


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)", True),
        ("void cudnn::detail::dgrad2d_alg1_1<float, 0, 6, 6, 5, 4, 4, false, true>(int, int)", True),
        ("void cudnn::cnn::wgrad_alg1_engine<float, float, 128, 5, 5, 3, 3, 3, false>(int)", True),
        ("void wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>(int, int, int)", True),
        ("void wgrad_alg0_engine<__half, 128, 5, 5, 3, 3, 3, false, 512>(int, int, int)", False),
        # A channel by itself is no product.
        ("void cudnn::cnn::wgrad2d_grouped_direct_kernel<false, true, int, float, float, float>()", False),
        ("sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32", False),
    ],
)
def test_cudnn_engines_on_float32_are_products_without_tensor_cores(name: str, plain: bool) -> None:
    assert bool(re.search(PLAIN, name)) == plain
