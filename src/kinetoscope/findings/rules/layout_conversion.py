"""Tensors are turned from NCHW to NHWC and back around convolutions.

What it finds
    cuDNN's and MIOpen's own layout kernels (``nchwToNhwcKernel``, ``nhwcToNchwKernel``, ``batched_transpose_…``), and
    Inductor's: pointwise kernels that fuse nothing with a convolution but slicing and splitting, and so only rearrange.

Why it is slow
    Tensor cores want channels last. Given NCHW tensors, the library transposes its inputs, convolves, and transposes
    the result back, at full memory traffic each time.

How it decides
    The kernel's name; what is saved is their device time.

What to do
    Keep the whole model in channels_last: ``model.to(memory_format=torch.channels_last)`` and the same for its input.
    Where single layers still convert, their input came from an op that lost the format, or they are grouped or
    depthwise convolutions for which the library has no NHWC kernel.

Source
    PyTorch tutorial "Channels Last Memory Format"; NVIDIA Deep Learning Performance Guide, "Tensor Layouts".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import scenes, severity

MOVES = r"convolution(_backward)?|split_with_sizes|slice|permute|transpose|clone"
CONVERTS = (
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|^batched_transpose_\d|SubTensorOpWithCastTensor"
    rf"|^triton_poi_fused_(({MOVES})_)*convolution(_backward)?(_({MOVES}))*(_\d+)?$"
)


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        kernels = scene.kernels(CONVERTS)
        if kernels.is_empty():
            continue
        saving = scene.device_saving(
            kernels.with_columns(pl.col("duration_ns").alias("saved_ns")), "the conversions' own time"
        )
        level = severity(saving)
        if level is None:
            continue
        us = scene.per_step(int(kernels["duration_ns"].sum())) / 1000
        share = us * 1000 * scene.steps / max(scene.busy_ns, 1)
        yield Finding(
            title=f"{scene.per_step(len(kernels)):.0f} layout conversions a {scene.unit} around convolutions: {numbers.time(us)}, "
            f"{share:.0%} of busy time",
            severity=level,
            saving=saving,
            evidence=[
                scene.evidence(
                    "the longest conversions", kernels.sort("duration_ns", descending=True).head(8)
                )
            ],
            advice="Keep model and input in channels_last.",
            snippet="model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)",
            source=scene.source(kernels["op"]),
            rank=scene.rank,
        )
