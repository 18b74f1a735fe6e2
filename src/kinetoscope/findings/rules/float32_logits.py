"""A model's outputs are copied into float32, and every later tensor of their size is twice as large.

What it finds
    After the last module, tensors of twice the size of what the model returned: ``logits.float()``, its
    log-softmax and their gradients.

Why it is slow
    Of a language model the logits are the largest tensor, tokens times vocabulary; each of these copies
    is as large as many layers' activations.

How it decides
    At the peak, at least two allocations of one size that no module made, twice that of one that a module
    made before them. Played again without the first, and with the others at half their size.

What to do
    Leave the logits in bfloat16: ``cross_entropy`` sums in float32 by itself. Or compute the loss in
    chunks of tokens, or compiled, where the softmax is fused into the loss.

Source
    PyTorch, torch.nn.functional.cross_entropy; Wijmans et al., "Cut Your Losses in Large-Vocabulary
    Language Models".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.aggregates import whole
from kinetoscope.findings import memory
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import Scene


def find(scene: Scene) -> Iterable[Finding]:
    for one in scene.memory:
        here = one.history.at_peak.filter(pl.col("start").is_not_null())
        outputs = here.filter(pl.col("forward"), ~pl.col("backward")).sort("start")
        others = here.filter(~pl.col("forward"), ~pl.col("optimizer"))
        copies = others.filter(pl.col("bytes").is_in((outputs["bytes"] * 2).implode()))
        copies = copies.filter(pl.col("start") > whole(outputs["start"].max()))
        if len(copies) < 2:
            continue
        size = copies["bytes"].max()
        first = copies.filter(pl.col("bytes") == size)["start"].min()
        every = one.history.known.filter((pl.col("bytes") == size) & ~pl.col("forward"))
        half = pl.when(pl.col("start") == first).then("bytes").otherwise(pl.col("bytes") // 2)
        copied = copies.filter(pl.col("start") == first)
        found = memory.without(
            scene,
            one,
            every.with_columns(half.alias("bytes")),
            title=f"{len(copies)} tensors of {numbers.size(whole(size))} are a model's output in float32 and "
            "what follows from it; in its own type the peak is {freed} lower",
            advice="Leave the model's output in its own type; cross_entropy sums in float32 by itself. Or "
            "take the loss of a chunk of tokens at a time.",
            source=str(copied["line"][0]) if len(copied) else "",
        )
        if found:
            yield found
