"""One short-lived tensor makes the peak.

What it finds
    An allocation that is given back in the pass in which it was made, and without which the peak would be
    lower by a tenth.

Why it is slow
    It is often the broadcast of something that a fused op computes without writing it down: distances of
    all pairs, an attention's scores, one-hot vectors; writing and reading it takes as long as it is
    large.

How it decides
    The temporaries that are alive at the peak, the largest line of them: the history played again without
    it.

What to do
    The fused op (``cdist``, ``scaled_dot_product_attention``, ``embedding``), ``torch.compile`` around
    the expression, or the computation in chunks.

Source
    PyTorch performance tuning guide, "Fuse operations".
"""

from kinetoscope.findings.rule import *

MUCH = 0.1  # of what is reserved


def find(view: RankView) -> Findings:
    for one in view.memory:
        here = one.history.at_peak.filter(
            pl.col("role") == "temporary", ~pl.col("optimizer"), ~pl.col("backward"), pl.col("line") != ""
        )
        if here.is_empty():
            continue
        sums = here.group_by("line").agg(pl.col("bytes").sum(), pl.len()).sort("bytes", descending=True)
        line, size, count = sums.row(0)
        for found in memory.without(
            view,
            one,
            one.history.known.filter(pl.col("role") == "temporary", pl.col("line") == line),
            title=f"{numbers.count(count, 'temporary')} of {numbers.size(size)} at {line} "
            f"{'makes' if count == 1 else 'make'} the peak: without, it is {{freed}} lower",
            advice="Compute it fused, compiled or in chunks.",
            source=line,
            subject=line,
        ):
            if found.saving_bytes >= MUCH * one.history.reserved:
                yield found
