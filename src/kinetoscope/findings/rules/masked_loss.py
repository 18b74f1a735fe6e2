"""The loss is computed at every position, and most of it may be thrown away.

What it finds
    A cross entropy with ``reduction="none"`` that is multiplied by a mask: positions of padding, or of
    texts whose words are given. Weights that leave nothing out look the same.

Why it is slow
    The product with the whole vocabulary, its softmax and their backward passes are computed for positions
    that count nothing. They are often more than the network itself.

How it decides
    An unreduced ``nll_loss`` and right after it ``aten::mul`` with a tensor. How many positions the mask
    leaves out is in no trace: nothing is promised, and at most the product before the loss, the loss and
    their backward passes. Worth a line from 3 % of the device's time on.

What to do
    Choose the positions that count before the last product, which then has fewer rows. Where texts differ in
    length, batch those of like length, or pack several into one row.

Source
    Hugging Face transformers, "Padding and truncation"; Krell et al., "Efficient Sequence Packing without
    Cross-contamination" (2021).
"""

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE
from kinetoscope.findings.rule import *

LOSS = r"nll_loss_forward_no_reduce"
MASKED = r"^aten::(mul_?|masked_fill_?|where|masked_select|index)$"
NEAR = 3  # kernels from the loss to the mask: a cast of the mask may come in between
BEFORE = 8  # kernels from the last product to the loss: casts, the softmax, a fill
WORTH = 0.03  # of the device's time


def find(view: RankView) -> Findings:
    if view.kernels(LOSS).is_empty():
        return
    host = view.trace.host_events
    node = nearest(host, matching(host, "name", AUTOGRAD_NODE))
    work = (
        view.work.filter(view.work["kind"] == "kernel")
        .drop_nulls("launch")
        .sort("device", "stream", "start_ns")
    )
    work = work.with_row_index("at").with_columns(node=node.gather(work["launch"]))
    at, forward = pl.col("at"), pl.col("node").is_null()
    product = pl.when(matching(work, "category", "^matmul$") & forward).then(at).forward_fill()
    masks = pl.when(matching(work, "op_name", MASKED) & forward).then(at).backward_fill()
    losses = work.select("at", "name", product=product, masks=masks.shift(-1)).filter(
        matching(work, "name", LOSS), at - pl.col("product") <= BEFORE, pl.col("masks") - at <= NEAR
    )
    if losses.is_empty():
        return
    rows = losses.select(at=pl.int_ranges("product", at + 1)).explode("at")["at"]
    numbered = host["sequence"].is_not_null() & node.is_null()
    sequences = host["sequence"].gather(nearest(host, numbered).gather(work["launch"][rows])).drop_nulls()
    back = host["sequence"].gather(work["node"]).is_in(sequences.implode()).fill_null(False)
    head = work.filter(at.is_in(rows.implode()) | back)
    most = savings.device(view, head, "", saved="duration_ns")
    if most.freed_share < WORTH:
        return
    yield Finding(
        title="The loss of each position is computed and then multiplied: if that is by a mask, those of "
        "padding or without a label take as long as the others",
        affected_us=view.us_of(head),
        saving=savings.not_predicted(most, "how many positions the mask leaves out is in no trace"),
        at_least="low" if most.share >= HIGH else "info",
        evidence=[evidence.of(view, "the last product, the loss, and their backward passes", head)],
        advice="If the mask leaves out many positions, choose the others before the last product: it, the "
        "softmax and their backward passes then have fewer rows. Less padding helps the network too: batch "
        "texts of like length.",
        snippet="rows = mask.flatten().nonzero().flatten()\n"
        "logits = head(features.flatten(0, 1).index_select(0, rows))\n"
        "loss = F.cross_entropy(logits, labels.flatten()[rows])",
        source=evidence.source(view, work["op"][losses["at"]]),
    )
