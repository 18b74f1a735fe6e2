"""Tensors are turned from NCHW to NHWC and back around convolutions.

What it finds
    cuDNN's and MIOpen's own layout kernels (``nchwToNhwcKernel``, ``nhwcToNchwKernel``,
    ``batched_transpose_…``), and Inductor's: pointwise kernels that fuse nothing with a convolution but
    slicing and splitting, and so only rearrange.

Why it is slow
    Tensor cores want channels last. Given NCHW tensors, the library transposes its inputs, convolves, and
    transposes the result back, at full memory traffic each time.

How it decides
    The kernel's name; what is saved is their device time.

What to do
    Keep the whole model in channels_last: ``model.to(memory_format=torch.channels_last)`` and the same for
    its input. Where single layers still convert, their input came from an op that lost the format, or they
    are grouped or depthwise convolutions for which the library has no NHWC kernel.

Source
    PyTorch tutorial "Channels Last Memory Format"; NVIDIA Deep Learning Performance Guide, "Tensor Layouts".
"""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope import numbers
from kinetoscope.findings import evidence, savings
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import Scene

MOVES = r"convolution(_backward)?|split_with_sizes|slice|permute|transpose|clone"
CONVERTS = (
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|^batched_transpose_\d|SubTensorOpWithCastTensor"
    rf"|^triton_poi_fused_(({MOVES})_)*convolution(_backward)?(_({MOVES}))*(_\d+)?$"
)


def find(scene: Scene) -> Iterable[Finding]:
    kernels = scene.kernels(CONVERTS)
    if kernels.is_empty():
        return
    us = scene.us_of(kernels)
    share = us * 1000 * scene.steps / max(scene.busy_ns, 1)
    longest = kernels.sort("duration_ns", descending=True).head(8)
    yield Finding(
        title=f"{scene.per_step(len(kernels)):.0f} layout conversions a {scene.unit} around convolutions: "
        f"{numbers.time(us)}, {share:.0%} of busy time",
        saving=savings.device(scene, kernels, "the conversions' own time", saved="duration_ns"),
        evidence=[evidence.of(scene, "the longest conversions", longest)],
        advice="Keep model and input in channels_last.",
        snippet="model = model.to(memory_format=torch.channels_last)\n"
        "x = x.to(memory_format=torch.channels_last)",
        source=evidence.source(scene, kernels["op"]),
    )
