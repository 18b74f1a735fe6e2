"""Chains of eager elementwise kernels that one kernel could do.

What it finds
    Runs of three or more eager elementwise kernels after each other, or of one or more before a reduction or
    next to a softmax: activation formulas, scaling, masking, casts, a mean of squares, a norm of differences,
    losses written out.

Why it is slow
    Each reads its operands from memory and writes its result back. Fused, the chain reads once and writes
    once.

How it decides
    Consecutive kernels of a stream, category elementwise, copy or random, launched by aten ops, in a program
    that has no compiled region and gave none up (with one it is ``eager-remainder``), at least 5 µs each on
    average. What attention written out consists of is left to ``unfused-attention``, where that helps.
    Lookups (``index``, ``gather`` …) may be among them: half of their time stays. A reduction that takes a
    fifth of the kernel before it or more may read the result, and ends the chain. A fused kernel is taken to
    need as long as the chain's longest. What only reductions read is not written any more, with gradients,
    too: a backward computes anew what is elementwise. A reduction's time is then that of reading one tensor;
    for each kernel before it one is no longer written, nor read again, and the fused kernel needs what is
    left, but no less than the reduction. A softmax, or its backward, does not end a chain: a compiled kernel
    passes over what it reads once more, and keeps of each row its maximum and its sum, from which a backward
    computes the rest anew. Half of its time stays, which is the reading, and half of the last kernel's, which
    is the writing.

What to do
    ``torch.compile`` the function around it. Or a fused op that exists: ``torch.nn.functional.gelu``,
    ``addcmul``, ``torch.nn.functional.layer_norm``.

Source
    The forum thread "Profiling torch.compile CUDA code": A * B + C.
"""

from kinetoscope.analysis.compiled.regions import regions
from kinetoscope.analysis.kernels.chains import elementwise_chains
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.unfused_attention import in_single_precision, written_out


def find(view: RankView) -> Findings:
    if len(regions(view.trace)) or blocked(view):
        return
    attention = written_out(view)
    others = view.work.select("id")
    if not in_single_precision(attention):
        others = others.join(attention, on="id", how="anti")
    chains = elementwise_chains(view.work, others)
    if chains.is_empty():
        return
    per_chain = chains.group_by("chain", maintain_order=True).agg(
        pl.len(),
        pl.col("duration_ns").sum(),
        pl.col("op_name").cast(pl.String).str.strip_prefix("aten::"),
    )
    longest = per_chain.sort("duration_ns", descending=True, maintain_order=True).row(0, named=True)
    shown = chains.filter(pl.col("chain") == longest["chain"])
    yield Finding(
        title=f"{view.counted(len(per_chain), 'eager elementwise chain')} per {view.unit} "
        f"({view.per_step(len(chains)):,.0f} kernels) could be fused",
        affected_us=view.us_of(chains),
        saving=savings.fused(view, chains),
        evidence=[evidence.of(view, "the longest chain: " + " → ".join(longest["op_name"][:10]), shown)],
        advice="Compile the function that holds the chain: one kernel then reads once and writes once.",
        snippet="@torch.compile\ndef activation(x): …",
        source=evidence.source(view, shown["op"]),
        proof=commands.tune(view, mode="default"),
    )
