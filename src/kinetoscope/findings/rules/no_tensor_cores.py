"""Matrix products in float32 on the ordinary cores.

What it finds
    GEMMs and convolutions of NVIDIA's libraries that use no tensor cores although the device has them: ``…sgemm…``,
    ``…_ffma_…``, ``…simt…``.

Why it is slow
    On an H200 float32 arithmetic reaches 67 TFLOP/s, TF32 on the tensor cores 495, bfloat16 990.

How it decides
    The kernel's name, at least 20 µs each, on a device of compute capability 8 or higher. Four fifths of their time
    count as saved: TF32 is seven times as fast in compute, less where memory limits.

What to do
    ``torch.set_float32_matmul_precision("high")`` (TF32: 10 bits of mantissa in the products, float32 sums), or train
    and serve in bfloat16 (autocast). Double precision and exact float32 have no such way.

Source
    PyTorch CUDA semantics, "TensorFloat-32 (TF32) on Ampere (and later) devices".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.run import Run
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.findings.model import Finding
from kinetoscope.findings.proof import commands as proofs
from kinetoscope.findings.scene import scenes, severity

PLAIN = r"(?i)sgemm|_ffma_|simt_s|_scudnn_|f32f32_f32f32_f32_"
LONG_NS = 20_000
GAIN = 0.8


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        capability = scene.trace.devices[0].compute_capability if scene.trace.devices else None
        if capability is None or capability[0] < 8:
            continue
        kernels = scene.kernels(PLAIN).filter(
            (pl.col("duration_ns") >= LONG_NS)
            & ~pl.col("name").cast(pl.String).str.contains("tensorop|s1688|tf32")
        )
        saving = scene.device_saving(
            kernels.with_columns((pl.col("duration_ns") * GAIN).alias("saved_ns")),
            "four fifths of the kernels' time",
        )
        level = severity(saving)
        if level is None:
            continue
        us = scene.per_step(int(kernels["duration_ns"].sum())) / 1000
        longest = kernels.sort("duration_ns", descending=True)
        yield Finding(
            title=f"{scene.per_step(len(kernels)):.0f} float32 products a {scene.unit} use no tensor cores: {numbers.time(us)}",
            severity=level,
            saving=saving,
            evidence=[scene.evidence(scene.short(str(longest["name"][0])), longest)],
            advice="Allow TF32, or use bfloat16.",
            snippet='torch.set_float32_matmul_precision("high")',
            source=scene.source(longest["op"]),
            proof=proofs.tune(scene, Setting(as_written=True, matmul_precision="high")),
            rank=scene.rank,
        )
