"""The optimizer updates parameters with many kernels.

What it finds
    ``Optimizer.step`` as a loop over parameters, or with ``foreach``: dozens to thousands of elementwise
    kernels.

Why it is slow
    Each kernel reads and writes optimizer state that the next reads again, and each pays a launch.

How it decides
    At least 30 optimizer kernels a step, none of them a fused optimizer's. A fused one reads and writes each
    state once: 60 % of the device time counts as saved, and with it the time that the device idles during
    ``Optimizer.step``.

What to do
    ``torch.optim.AdamW(…, fused=True)`` (Adam, AdamW, SGD, Adagrad), or compile ``optimizer.step``.

Source
    PyTorch documentation of torch.optim, "fused".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.findings import evidence, savings
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import Scene

KERNELS = 30  # a fused optimizer needs a handful
FUSED = r"(?i)Fused(Optimizer|Adam|SGD|Adagrad)|triton_"
GAIN = 0.6


def find(scene: Scene) -> Iterable[Finding]:
    kernels = scene.work.filter(
        (pl.col("category").cast(pl.String) == "optimizer") & (pl.col("kind") == "kernel")
    )
    if (
        len(kernels) < KERNELS * scene.steps
        or kernels["name"].unique().cast(pl.String).str.contains(FUSED).any()
    ):
        return
    spared, basis = pl.col("duration_ns") * GAIN, "60 % of the optimizer's device time"
    freed = savings.device(scene, kernels, basis, saved=spared)
    calls = scene.host(r"^Optimizer\.step#")
    waited = savings.idle(scene, scene.idle_during(calls), "the device's idle time during Optimizer.step")
    yield Finding(
        title=f"The optimizer launches {scene.per_step(len(kernels)):.0f} kernels a {scene.unit}: it is not "
        "fused",
        saving=savings.both(scene, freed, waited),
        evidence=[evidence.of(scene, "Optimizer.step", calls)],
        advice="Use the fused implementation.",
        snippet="optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
        source=evidence.source(scene, calls["id"]),
    )
