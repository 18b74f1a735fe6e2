"""Tensors are cast from one type to another again and again.

What it finds
    Casts on the device (``aten::_to_copy`` between float types): weights kept in float32 and cast at each
    use, activations that go to float32 and back.

Why it is slow
    A cast reads one tensor and writes another; a weight cast at each use costs more traffic than the use
    itself.

How it decides
    Kernels that copy into another float type, outside of optimizers, by name (``bfloat16_copy_kernel_cuda``,
    ``float16_copy_kernel``, …) or launched below ``aten::_to_copy``. Half of their time counts as saved where
    a step has an optimizer, since autocast needs its casts of master weights once a step; all of it
    elsewhere. With it goes the same share of what the host spends in the casts, ``aten::to`` and all.

What to do
    Keep weights in the type that they are used in, cast once outside of the loop; in autocast regions leave
    its weight cache on; feed ops that upcast (softmax, losses) what they need instead of casting around them.

Source
    PyTorch AMP documentation: autocast's weight cache.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import matching
from kinetoscope.findings import evidence, savings
from kinetoscope.findings.model import Finding
from kinetoscope.findings.savings import MEDIUM
from kinetoscope.findings.scene import Scene

CASTS = r"(bfloat16|float16|half|float8\w*)_copy_kernel"
COPIES = r"direct_copy_kernel_cuda|" + CASTS


def find(scene: Scene) -> Iterable[Finding]:
    copies = scene.kernels(COPIES)
    if copies.is_empty():
        return
    host = scene.trace.host_events
    parent = host["name"].gather(host["parent"].gather(copies["op"])).cast(pl.String)
    casts = copies.filter(
        (
            pl.Series(parent).is_in(["aten::_to_copy", "aten::to"]).fill_null(False)
            | pl.col("name").cast(pl.String).str.contains(CASTS)
        )
        & (pl.col("category").cast(pl.String) != "optimizer")
    )
    trains = matching(scene.work, "category", "^optimizer$").any()
    spared, basis = (0.5, "half of the casts' time") if trains else (1.0, "the casts' time")
    freed = savings.device(scene, casts, basis, saved=spared * pl.col("duration_ns"))
    if freed.change.is_empty:
        return
    asked = nearest(host, matching(host, "name", "^aten::(to|_to_copy)$"))
    outer = nearest(host, matching(host, "name", "^aten::to$")).fill_null(asked)
    calls = host[outer.gather(casts["op"]).drop_nulls().unique().sort()]
    saving = savings.both(scene, freed, savings.host(scene, calls, "their calls", spared))
    if saving.share < MEDIUM:
        return
    longest = casts.sort("duration_ns", descending=True)
    yield Finding(
        title=f"{scene.per_step(len(casts)):.0f} casts a {scene.unit} between float types take "
        f"{numbers.time(scene.us_of(casts))} of device time",
        saving=saving,
        evidence=[evidence.of(scene, "the longest casts", longest.head(8))],
        advice="Keep tensors in the type that they are used in.",
        snippet="model = model.to(torch.bfloat16)",
        source=evidence.source(scene, longest["op"]),
    )
