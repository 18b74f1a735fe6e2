"""The loss is computed at every position, and most of it may be thrown away.

What it finds
    Logits and a loss of positions whose labels are ignored (``ignore_index``, -100): those of prompts and
    padding, and words that are not hidden. Where no labels were seen, a cross entropy with
    ``reduction="none"`` that is multiplied by a mask: positions of padding, or of texts whose words are
    given. Weights that leave nothing out look the same. And the mean of all positions in a step that draws at
    random which of them to hide, as masked language models do: the others have no label (``ignore_index``).

Why it is slow
    The product with the whole vocabulary, its softmax and their backward passes are computed for positions
    that count nothing. They are often more than the network itself.

How it decides
    ``kinetoscope run`` counts the labels of one step. Where a tenth of them or more are ignored, and the
    softmaxes before the losses have more rows than lie halfway between the labels that count and all, that
    share is saved of the last product, the loss and their backward passes; 3 µs of each kernel stay.

    Else an unreduced ``nll_loss`` with ``aten::mul`` right after it: how many positions the mask leaves out
    is in no trace, so nothing is promised. Or a reduced one, in a step that draws a random number for each
    row of its softmax and chooses by it: that hidden positions alone have a label, 15 % of all as in BERT, is
    the condition. From 3 % of the device's time on.

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
GATHERED = r"^aten::gather$"  # from a softmax
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
IGNORED = 0.1  # of the labels


def find(view: RankView) -> Findings:
    seen = view.record.steps.labels if view.record else None
    if seen is None and view.kernels(LOSS).is_empty():
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

    product = place("category", "^matmul$").forward_fill()
    softmax = place("name", SOFTMAX).forward_fill()
    losses = work.select(
        "at",
        "name",
        product=product,
        rows=pl.when(softmax > product).then(pl.col("blocks").gather(softmax)),
        masked=follows(MASKED, NEAR),
        gathered=place("op_name", GATHERED) - softmax <= NEAR,
    ).filter(matching(work, "name", LOSS) | pl.col("gathered"), at - pl.col("product") <= BEFORE)
    if seen is not None and seen.ignored >= IGNORED * seen.labels:
        # Who has taken out what is ignored may still hold all labels.
        each = pl.col("rows").mean() > (seen.labels - seen.ignored / 2) / seen.tables
        if losses.select(each).item():
            yield from _finding(view, work, losses.drop_nulls("rows"), ignored=seen.ignored / seen.labels)
        return
    losses = losses.filter(matching(losses, "name", LOSS))
    unreduced = matching(losses, "name", UNREDUCED)
    draws = work.filter(
        matching(work, "op_name", DRAWN) & forward & (pl.col("blocks") > 1),  # one block has any few rows
        follows(COMPARED, NEAR),
        follows(HIDDEN, BEFORE),
    )["blocks"]
    hidden = (losses["rows"] / OF_A_BLOCK).ceil().cast(pl.Int64).is_in(draws.implode())
    yield from _finding(view, work, losses.filter(unreduced & losses["masked"]))
    if seen is None:
        yield from _finding(view, work, losses.filter(~unreduced & hidden), drawn=True)


def _finding(
    view: RankView,
    work: pl.DataFrame,
    losses: pl.DataFrame,
    drawn: bool = False,
    ignored: float | None = None,
) -> Findings:
    """On losses whose positions are masked, ``drawn`` to be, or of which so many are ``ignored``."""
    if losses.is_empty():
        return
    at, sequence = pl.col("at"), view.trace.host_events["sequence"]
    rows = losses.select(loss=at, at=pl.int_ranges("product", at + 1)).explode("at")
    # Views in between launch nothing, but their backward does.
    numbered = rows.with_columns(sequence=work["sequence"].gather(rows["at"])).group_by("loss")
    spans = numbered.agg(first=pl.min("sequence"), last=pl.max("sequence")).drop_nulls()
    sequences = spans.select(pl.int_ranges("first", pl.col("last") + 1)).to_series().explode()
    back = sequence.gather(work["node"]).is_in(sequences.implode()).fill_null(False)
    head = work.filter(at.is_in(rows["at"].implode()) | back)
    most = savings.device(view, head, "", saved="duration_ns")
    if most.freed_share < WORTH:
        return
    saving = savings.not_predicted(most, "how many positions the mask leaves out is in no trace")
    if drawn or ignored:
        without = (ignored or 1 - LABELLED) * (pl.col("duration_ns") - FIXED_NS).clip(0)
        saving = savings.device(view, head, "the head and the loss of positions without a label", without)
    if drawn:
        few = f"{numbers.percent(LABELLED)} of the positions have a label, as in BERT"
        saving = savings.if_so(saving, few)
    title = (
        f"{numbers.percent(ignored)} of the labels are ignored: logits and the loss of their positions take "
        "as long as those of the others"
        if ignored
        else "The step draws which positions to hide, and computes the loss of all: those without a label "
        "(ignore_index) take as long as the others"
        if drawn
        else "The loss of each position is computed and then multiplied: if that is by a mask, those of "
        "padding or without a label take as long as the others"
    )
    which = (
        "Choose the positions that count" if ignored else "If many positions do not count, choose the others"
    )
    yield Finding(
        subject="drawn" if drawn else "",
        title=title,
        affected_us=view.us_of(head),
        saving=saving,
        at_least="low" if most.share >= HIGH else "info",
        evidence=[evidence.of(view, "the last product, the loss, and their backward passes", head)],
        advice=f"{which} before the last product: it, the softmax and their backward passes then have fewer "
        "rows. Less padding helps the network too: batch texts of like length.",
        snippet="rows = mask.flatten().nonzero().flatten()\n"
        "logits = head(features.flatten(0, 1).index_select(0, rows))\n"
        "loss = F.cross_entropy(logits, labels.flatten()[rows])",
        source=evidence.source(view, work["op"][losses["at"]]),
    )
