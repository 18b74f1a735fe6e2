"""The loss is computed at every position, and most of it may be thrown away.

What it finds
    A cross entropy with ``reduction="none"`` that is multiplied by a mask: positions of padding, or of
    texts whose words are given. Weights that leave nothing out look the same. And the mean of all positions
    in a step that draws at random which of them to hide, as masked language models do: the others have no
    label (``ignore_index``).

Why it is slow
    The product with the whole vocabulary, its softmax and their backward passes are computed for positions
    that count nothing. They are often more than the network itself.

How it decides
    An unreduced ``nll_loss`` and right after it ``aten::mul`` with a tensor. How many positions the mask
    leaves out is in no trace: nothing is promised, and at most the product before the loss, the loss and
    their backward passes. Or a reduced one, in a step that draws a random number for each row of its
    softmax, compares these with another, and chooses by the result. That hidden positions alone have a label,
    and that they are 15 % of all, as in BERT, is the condition of the saving. Worth a line from 3 % of the
    device's time on.

What to do
    Choose the positions that count before the last product, which then has fewer rows. Where texts differ in
    length, batch those of like length, or pack several into one row.

Source
    Hugging Face transformers, "Padding and truncation"; Krell et al., "Efficient Sequence Packing without
    Cross-contamination" (2021); Devlin et al., "BERT" (2019), for 15 %.
"""

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE
from kinetoscope.analysis.kernels.occupancy import blocks
from kinetoscope.findings.rule import *

LOSS = r"nll_loss_forward_(no_)?reduce"
UNREDUCED = r"nll_loss_forward_no_reduce"
MASKED = r"^aten::(mul_?|masked_fill_?|where|masked_select|index)$"
SOFTMAX = r"cunn_SoftMaxForward"  # a block of it for each row
DRAWN = r"^aten::uniform_$"
COMPARED = r"^aten::(lt|le|gt|ge)$"
HIDDEN = r"^aten::(where|masked_fill_|_index_put_impl_)$"
OF_A_BLOCK = 256  # numbers that torch draws in a block, as long as the blocks fit the device at once
LABELLED = 0.15  # of the positions
NEAR = 3  # kernels from the loss to the mask, or from a draw to its comparison: casts may come in between
BEFORE = 8  # kernels from the last product to the loss, or from a draw to what it hides: casts, fills
WORTH = 0.03  # of the device's time


def find(view: RankView) -> Findings:
    if view.kernels(LOSS).is_empty():
        return
    host = view.trace.host_events
    node = view.around(AUTOGRAD_NODE)
    work = (
        view.work.filter(view.work["kind"] == "kernel")
        .drop_nulls("launch")
        .sort("device", "stream", "start_ns")
    )
    numbered = nearest(host, host["sequence"].is_not_null() & node.is_null())
    work = blocks(work).with_row_index("at")
    work = work.with_columns(
        node=node.gather(work["launch"]),
        sequence=host["sequence"].gather(numbered.gather(work["launch"])),
    )
    at, forward = pl.col("at"), pl.col("node").is_null()

    def place(column: str, names: str) -> pl.Expr:
        return pl.when(matching(work, column, names) & forward).then(at)

    def follows(names: str, within: int) -> pl.Expr:
        return place("op_name", names).backward_fill().shift(-1) - at <= within

    losses = work.select(
        "at",
        "name",
        product=place("category", "^matmul$").forward_fill(),
        rows=pl.when(matching(work, "name", SOFTMAX)).then("blocks").forward_fill(),
        masked=follows(MASKED, NEAR),
    ).filter(matching(work, "name", LOSS), at - pl.col("product") <= BEFORE)
    unreduced = matching(losses, "name", UNREDUCED)
    draws = work.filter(
        matching(work, "op_name", DRAWN) & forward & (pl.col("blocks") > 1),  # one block has any few rows
        follows(COMPARED, NEAR),
        follows(HIDDEN, BEFORE),
    )["blocks"]
    hidden = (losses["rows"] / OF_A_BLOCK).ceil().cast(pl.Int64).is_in(draws.implode())
    yield from _finding(view, work, losses.filter(unreduced & losses["masked"]), drawn=False)
    yield from _finding(view, work, losses.filter(~unreduced & hidden), drawn=True)


def _finding(view: RankView, work: pl.DataFrame, losses: pl.DataFrame, drawn: bool) -> Findings:
    """On losses of ``work``, with the products before them, whose positions are masked, or drawn to be."""
    if losses.is_empty():
        return
    at, sequence = pl.col("at"), view.trace.host_events["sequence"]
    rows = losses.select(at=pl.int_ranges("product", at + 1)).explode("at")["at"]
    sequences = work["sequence"].gather(rows).drop_nulls()
    back = sequence.gather(work["node"]).is_in(sequences.implode()).fill_null(False)
    head = work.filter(at.is_in(rows.implode()) | back)
    most = savings.device(view, head, "", saved="duration_ns")
    if most.freed_share < WORTH:
        return
    saving = savings.not_predicted(most, "how many positions the mask leaves out is in no trace")
    if drawn:
        without = (1 - LABELLED) * (pl.col("duration_ns") - FIXED_NS).clip(0)
        saving = savings.if_so(
            savings.device(view, head, "the head and the loss of positions without a label", without),
            f"{numbers.percent(LABELLED)} of the positions have a label, as in BERT",
        )
    yield Finding(
        subject="drawn" if drawn else "",
        title="The step draws which positions to hide, and computes the loss of all: those without a label "
        "(ignore_index) take as long as the others"
        if drawn
        else "The loss of each position is computed and then multiplied: if that is by a mask, those of "
        "padding or without a label take as long as the others",
        affected_us=view.us_of(head),
        saving=saving,
        at_least="low" if most.share >= HIGH else "info",
        evidence=[evidence.of(view, "the last product, the loss, and their backward passes", head)],
        advice="If many positions do not count, choose the others before the last product: it, the "
        "softmax and their backward passes then have fewer rows. Less padding helps the network too: batch "
        "texts of like length.",
        snippet="rows = mask.flatten().nonzero().flatten()\n"
        "logits = head(features.flatten(0, 1).index_select(0, rows))\n"
        "loss = F.cross_entropy(logits, labels.flatten()[rows])",
        source=evidence.source(view, work["op"][losses["at"]]),
    )
