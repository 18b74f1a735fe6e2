"""Chains of eager elementwise kernels that one kernel could do.

What it finds
    Runs of three or more eager elementwise kernels after each other, or of one or more before a reduction or
    next to a softmax: activation formulas, scaling, masking, casts, a mean of squares, a norm of differences,
    losses written out.

Why it is slow
    Each reads its operands from memory and writes its result back. Fused, the chain reads once and writes
    once.

How it decides
    Consecutive kernels of a stream, category elementwise, copy or random, launched by aten ops, at least 5 µs
    each on average, in a program that compiles nothing (with compiled regions it is ``eager-remainder``).
    What attention written out consists of is ``unfused-attention``'s. A fused kernel is taken to need as long
    as the chain's longest; of lookups among them half of the time stays. A reduction may read the result, and
    ends the chain: what reductions alone read is not written any more, with gradients too, since a backward
    computes anew what is elementwise. A softmax does not end a chain: half of its time stays, and half of the
    last kernel's.

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
    if len(attention) and not in_single_precision(attention):
        others = others.join(attention, on="id", how="anti")
    chains = elementwise_chains(view.work, others)
    saving = savings.fused(view, chains)
    if savings.severity(saving) is None:
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
        saving=saving,
        evidence=[evidence.of(view, "the longest chain: " + " → ".join(longest["op_name"][:10]), shown)],
        advice="Compile the function that holds the chain: one kernel then reads once and writes once.",
        snippet="@torch.compile\ndef activation(x): …",
        source=evidence.source(view, shown["op"]),
        proof=commands.tune(view, mode="default"),
    )
