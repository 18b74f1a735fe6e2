"""The optimizer's own tensors are the peak, or much of it.

What it finds
    Temporaries of an optimizer's step as large as the parameters (the ``foreach`` implementation makes
    them), and state that takes a quarter of the memory.

Why it is slow
    ``foreach`` computes with whole lists of tensors, and each intermediate list is as large as all
    parameters. The fused implementation has none, and reads and writes less.

How it decides
    The history played again without the temporaries that an optimizer's step allocates. State is named,
    with what 8-bit state would free of it (three quarters of float32, half of 16-bit state), where it is
    a quarter of what is allocated.

What to do
    ``fused=True``. For the state: an 8-bit optimizer, or shard it over the ranks
    (``ZeroRedundancyOptimizer``, FSDP).

Source
    PyTorch, torch.optim, "Algorithms"; Dettmers et al., "8-bit Optimizers via Block-wise Quantization".
"""

from kinetoscope.analysis.memory.peak import RankHistory
from kinetoscope.findings.rule import *

MUCH = 0.25  # of what is allocated
KEPT = 0.25  # of float32 state in 8 bits


def find(view: RankView) -> Findings:
    for one in view.memory:
        passing = one.history.known.filter(pl.col("optimizer"), pl.col("role") == "temporary")
        yield from memory.without(
            view,
            one,
            passing,
            title="the optimizer's temporaries make the peak: without them it is {freed} lower",
            advice="Use the fused implementation, which has none.",
            snippet="torch.optim.AdamW(parameters, fused=True)",
            source=str(passing["line"][0]) if len(passing) else "",
            subject="temporaries",
        )
        yield from _state(view, one)


def _state(view: RankView, one: RankHistory) -> Findings:
    size = int(one.history.at_peak.filter(pl.col("role") == "optimizer state")["bytes"].sum())
    if size < MUCH * one.history.requested or not view.ran_out:
        return
    yield from memory.finding(
        view,
        one,
        int((1 - KEPT) * size),
        title=f"the optimizer's state takes {numbers.size(size)}, a quarter of it in 8 bits",
        advice="Where memory is what lacks: an 8-bit optimizer, or the state sharded over ranks.",
        basis="three quarters of it, as of float32 state",
        subject="state",
    )
