"""Modules that Inductor generated, whose kernels several proofs time: mixnet_l's and a Llama step's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import proving
from kinetoscope.bench.request import environment

# Kernels of mixnet_l over the whole range of durations in the model: 550 µs to 1 µs.
MIXNET = {
    "backward": (
        "triton_red_fused__native_batch_norm_legit_functional_convolution_backward_native_batch_norm_backward_118",
        "triton_red_fused__native_batch_norm_legit_functional_native_batch_norm_backward_175",
        "triton_poi_fused_add_cat_div_expand_mul_sigmoid_silu_silu_backward_11",
        "triton_per_fused__native_batch_norm_legit_functional_native_batch_norm_backward_13",
        "triton_poi_fused__to_copy_260",
        "triton_poi_fused__native_batch_norm_legit_functional_convolution_backward_native_batch_norm_backward_166",
    ),
    "forward": (
        "triton_poi_fused_cat_12",
        "triton_red_fused__native_batch_norm_legit_functional_82",
        "triton_poi_fused__native_batch_norm_legit_functional_relu_17",
        "triton_poi_fused_convolution_silu_split_with_sizes_105",
        "triton_per_fused__native_batch_norm_legit_functional_copy__84",
    ),
}


def mixnet(data: Path, direction: str) -> Path:
    """The module of one of the graphs of mixnet_l's step, as it was generated on an H200."""
    return data / f"mixnet_l_{direction}.py.gz"


def llama(out: Path) -> Path:
    """Compile a Llama training step in a process of its own; the folder with its modules."""
    folder = Path("/tmp/kinetoscope-llama")
    subprocess.run(
        [sys.executable, str(proving.ROOT / "tests/gpu/llama_step.py"), str(out / "llama_in_model.json")],
        env={
            **environment(),
            "TORCHINDUCTOR_CACHE_DIR": str(folder),
            "TORCHINDUCTOR_UNIQUE_KERNEL_NAMES": "1",
        },
        check=True,
    )
    return folder
