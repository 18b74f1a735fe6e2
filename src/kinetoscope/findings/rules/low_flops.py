"""Kernels that are limited by arithmetic, and far from its speed.

What it finds
    Matrix products whose recorded shapes say that arithmetic bounds them, and which do it at less than 40 % of what
    the device can do in that type.

Why it is slow
    Too few tiles to fill the device (tall or small products), split sums, or a kernel that does not fit the shape.

How it decides
    FLOPs of the call over its device time, against the device's peak for its type (dense); calls of 10 µs or more.
    Kernels that misaligned sizes force on the library are ``misaligned-shapes``'. 70 % of the peak is what large
    products reach, and what counts as possible. Needs recorded shapes.

What to do
    Put several products into one (batch them, concatenate along rows), make the batch larger, try max-autotune.

Source
    Roofline model (Williams, Waterman, Patterson, 2009); NVIDIA Deep Learning Performance Guide, "Tile quantization".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.categories import matching
from kinetoscope.analysis.profile import Profile
from kinetoscope.analysis.roofline import costed
from kinetoscope.findings import proofs
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rules.misaligned_shapes import MISALIGNED
from kinetoscope.findings.scene import heaviest, scenes, severity

SHARE = 0.4
POSSIBLE = 0.7
LONG_NS = 10_000
# Attention is bound by its softmax as well; its FLOPs alone say little.
PRODUCTS = ("matmul", "convolution", "template")


def find(profile: Profile) -> Iterable[Finding]:
    for scene in scenes(profile):
        products = scene.work["id"].filter(matching(scene.work["category"], f"^({'|'.join(PRODUCTS)})$"))
        costs = costed(scene.trace)
        calls = costs.filter(
            pl.col("id").is_in(products.implode())
            & (pl.col("time_ns") >= LONG_NS)
            & (pl.col("flops") / pl.col("peak_flops") > pl.col("bytes") / pl.col("peak_bandwidth"))
            & ~matching(costs["name"], MISALIGNED)
        )
        calls = calls.with_columns(
            (pl.col("flops") / pl.col("time_ns") * 1e9 / pl.col("peak_flops")).alias("share")
        ).filter(pl.col("share") < SHARE)
        calls = calls.with_columns((pl.col("time_ns") * (1 - pl.col("share") / POSSIBLE)).alias("saved_ns"))
        for group in heaviest(calls, "name", "op_name"):
            name, op = str(group["name"][0]), str(group["op_name"][0])
            saving = scene.device_saving(group, "the same arithmetic at 70 % of the device's peak")
            level = severity(saving, at_most="medium")
            if level in (None, "info"):  # one kernel of many, beside the critical path
                continue
            first = group.sort("saved_ns", descending=True).row(0, named=True)
            shown = scene.trace.device_events[group["id"].sort()]
            yield Finding(
                subject=f"{name} {op}",
                title=f"{op} ({scene.per_step(len(group)):.0f} calls a {scene.unit}) computes at "
                f"{first['flops'] / first['time_ns'] / 1000:.0f} TFLOP/s, {first['share']:.0%} of the device's {first['dtype']} peak",
                severity=level,
                saving=saving,
                evidence=[scene.evidence(f"inputs {first['shapes']}", shown)],
                advice="Batch the products or concatenate their rows; the device has room for more tiles.",
                snippet="torch.cat(parts) @ w",
                source=scene.source(shown["op"]),
                proof=proofs.bench(scene, name),
                rank=scene.rank,
            )
