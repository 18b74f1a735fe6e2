"""Gradients of the last step stay allocated during the next step's forward pass.

What it finds
    Gradients that are set to zero instead of being given back, or that are given back only after the
    forward pass.

Why it is slow
    Their memory is needed twice: filling them with zeros takes time as well, and adding to them a read
    more.

How it decides
    Allocations that are parameters' gradients and live at the peak, from before its step began. Played
    again with each gone from there until the backward pass would make it: the last parameter's first.

What to do
    ``optimizer.zero_grad(set_to_none=True)``, which is the default, before the forward pass.

Source
    PyTorch, torch.optim.Optimizer.zero_grad; PyTorch performance tuning guide.
"""

from kinetoscope.analysis.memory.peak import DeviceHistory
from kinetoscope.findings.rule import *


def find(view: RankView) -> Findings:
    for one in view.memory_in_steps:
        marks = [ns // 1000 for ns in one.held.boundaries_ns] if one.held else []
        began_us = max((mark for mark in marks if mark <= one.history.time_us), default=None)
        if began_us is None:
            continue
        kept = one.history.at_peak.filter(
            pl.col("role") == "gradient", pl.col("start").is_null() | (pl.col("start_us") < began_us)
        )
        size = whole(kept["bytes"].sum())
        yield from memory.without(
            view,
            one,
            _absent(one.history, kept),
            title=f"{numbers.size(size)} of the last step's gradients stay allocated in the forward pass; "
            "the peak would be {freed} lower",
            advice="Give gradients back before the forward pass, rather than set them to zero.",
            snippet="optimizer.zero_grad(set_to_none=True)",
        )


def _absent(history: DeviceHistory, kept: pl.DataFrame) -> pl.DataFrame:
    """From the beginning of the step until a share of its backward pass is over, by the parameters' order."""
    first, last = history.span
    inside = history.known.filter(pl.col("start").is_between(first, last))
    backward = inside.filter(pl.col("backward"))["start"]
    begins, ends = whole(backward.min()), whole(backward.max())
    share = pl.int_range(pl.len(), 0, -1) / pl.len()
    until = (begins + share * (ends - begins)).cast(pl.Int64)
    return kept.select("bytes", start=pl.lit(first, pl.Int64), end=until)
