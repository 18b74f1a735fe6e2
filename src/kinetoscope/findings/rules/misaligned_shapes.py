"""Matrix sizes that are not multiples of eight.

What it finds
    Tensor-core kernels whose name ends in ``align1``, ``align2`` or ``align4``: the operands' rows do not start on 16 bytes.

Why it is slow
    Tensor cores are fed by 16-byte loads and, on Hopper, by the tensor memory accelerator, which needs 16-byte
    strides. Without, the library falls back to an older kernel that loads element by element.

How it decides
    The kernel's name (``cutlass_…_align1`` and the like); ``simt`` kernels, which are always ``align1``, and float32
    ones, for which four elements are 16 bytes, are left out. How much is saved depends on the alignment: measured on
    an H200, a product with odd sizes (align1) takes 4.5 times as long as one padded to 64.

What to do
    Pad to a multiple of 8 (bfloat16, float16) or 16 (8 bits), of 64 at best: a vocabulary of 50257 to 50304, heads,
    hidden sizes and sequence lengths likewise.

Source
    NVIDIA Deep Learning Performance Guide, "Tensor Core requirements"; nanoGPT's vocabulary of 50304.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import scenes, severity

MISALIGNED = r"(bf16|f16|s16816|s161616|h16816|h1688|_i8|s8)\w*align[124]\b"
# Share of the kernel's time that padding saves.
GAIN = {"1": 0.75, "2": 0.5, "4": 0.25}


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        kernels = scene.kernels(MISALIGNED)
        if kernels.is_empty():
            continue
        alignment = pl.col("name").cast(pl.String).str.extract(r"align([124])\b")
        kernels = kernels.with_columns(alignment.alias("alignment")).with_columns(
            (pl.col("duration_ns") * pl.col("alignment").replace_strict(GAIN, return_dtype=pl.Float64)).alias(
                "saved_ns"
            )
        )
        saving = scene.device_saving(
            kernels, "three quarters of align1, half of align2, a quarter of align4 kernels' time"
        )
        level = severity(saving)
        if level is None:
            continue
        us = scene.per_step(int(kernels["duration_ns"].sum())) / 1000
        longest = kernels.sort("duration_ns", descending=True)
        shapes = (
            scene.trace.host_events["input_dims"]
            .gather(longest["op"])
            .drop_nulls()
            .unique(maintain_order=True)
        )
        yield Finding(
            title=f"{scene.per_step(len(kernels)):.0f} products a {scene.unit} have sizes that are not multiples of 8: {numbers.time(us)}",
            severity=level,
            saving=saving,
            evidence=[
                scene.evidence(
                    scene.short(str(longest["name"][0])) + (f", inputs {shapes[0]}" if len(shapes) else ""),
                    longest,
                )
            ],
            advice="Pad the sizes to a multiple of 8, better of 64.",
            snippet="vocabulary = 64 * math.ceil(vocabulary / 64)",
            source=scene.source(longest["op"]),
            rank=scene.rank,
        )
