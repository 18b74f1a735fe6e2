"""Matrix products of compiled code that were never tuned.

What it finds
    Compiled code whose products go to cuBLAS while a pointwise kernel right after each reads and writes the result
    once more, and no Triton template in sight.

Why it is slow
    A library product cannot do the arithmetic that follows it. A template chosen by ``max-autotune`` can: the
    pointwise kernel disappears into the product's last step.

How it decides
    In compiled regions, a matrix product directly followed by a Triton pointwise kernel of 3 % of the step or more, no
    template kernel in the recording, and no autotuning of products in the compile log. No saving is claimed: whether a
    template keeps up with the library has to be measured (on an H200, two products followed by a GELU gained
    nothing, since max-autotune kept cuBLAS for both).

What to do
    ``torch.compile(model, mode="max-autotune-no-cudagraphs")``, and measure: ``kinetoscope tune`` does.

Source
    "Profiling in PyTorch", part 1: "Did we fuse the matmul and add kernels into one?"
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.profile import Profile
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.regions import compiled, regions
from kinetoscope.findings.scene import MEDIUM, scenes


def find(profile: Profile) -> Iterable[Finding]:
    for scene in scenes(profile):
        tuned = profile.compilation is not None and len(profile.compilation.autotune)
        if tuned or regions(scene.trace).is_empty() or len(scene.kernels(r"^triton_tem_")):
            continue
        work = scene.work
        key = ["device", "stream"]
        following = (
            work.filter(pl.col("kind") == "kernel")
            .sort(*key, "start_ns")
            .with_columns(pl.col("category").shift(1).over(key).alias("before"))
            .filter(
                (pl.col("before").cast(pl.String) == "matmul")
                & (pl.col("category").cast(pl.String) == "pointwise")
                & pl.col("launch").is_in(compiled(scene.trace).implode())
            )
        )
        us = scene.per_step(int(following["duration_ns"].sum())) / 1000
        if us < MEDIUM * scene.step_us:
            continue
        yield Finding(
            title=f"{scene.per_step(len(following)):.0f} pointwise kernels a {scene.unit} follow a library product "
            f"({us:.0f} µs): max-autotune may fold them in",
            severity="info",
            saving=Saving(
                0.0, "not known until it is measured; at most the pointwise kernels' time", True, 0.0
            ),
            evidence=[
                scene.evidence(
                    "pointwise kernels after a product", following.sort("duration_ns", descending=True)
                )
            ],
            advice="Try max-autotune and measure.",
            snippet='torch.compile(model, mode="max-autotune-no-cudagraphs")',
            proof=scene.tune(),
            rank=scene.rank,
        )
