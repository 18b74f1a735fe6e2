"""A layer computes rows that nothing reads.

What it finds
    Products of which few rows are picked right away: logits after each word of a text, of which those after
    its last word are read.

Why it is slow
    The product's other rows, their change of type and their part of the backward pass are for nothing. With a
    vocabulary of 150,000 words the last layer is as large as several others.

How it decides
    By the sizes of what ops get, which ``kinetoscope run`` notes in one step: at most half of the rows of a
    product's result are picked by an index, a slice or a selection, and no other op of the forward pass gets
    it but changes of type. The share of rows that is not picked goes, of the work of these ops
    and of their nodes in the backward pass.

What to do
    Pick before the layer: it then computes what is read. In transformers, ``logits_to_keep=1``.

Source
    huggingface/transformers, ``logits_to_keep`` of ``forward`` of causal language models.
"""

from kinetoscope.analysis.origins.picked_rows import PickedRows, picked_rows
from kinetoscope.findings.rule import *
from kinetoscope.findings.sized import noted_sizes, work_and_gradients


def find(view: RankView) -> Findings:
    noted = noted_sizes(view)
    if noted is None:
        return
    sized, row = noted
    known = dict[tuple[str, int, int], list[PickedRows]]()
    for one in picked_rows(sized):
        known.setdefault((one.product, one.rows, one.read), []).append(one)
    for (product, rows, read), same in known.items():
        chosen = pl.Series([op for one in same for op in one.ops], dtype=pl.UInt32)
        ops = view.trace.host_events.filter(row.is_in(chosen.implode()))
        work, kept = work_and_gradients(view, ops), read / rows
        saving = savings.device(view, work, "the rows that nothing reads", (1 - kept) * pl.col("duration_ns"))
        if max(saving.share, saving.freed_share) < LOW:
            continue
        yield Finding(
            subject=f"{rows} rows",
            title=f"{product} computes {rows:,} rows of which {read:,} {'is' if read == 1 else 'are'} read",
            affected_us=view.us_of(work),
            saving=saving,
            evidence=[evidence.of(view, "the product, what is made of its rows, and their gradients", work)],
            advice="Pick the rows before the layer, so that it computes no others.",
            snippet="logits = head(hidden[:, -1])  # in transformers: model(…, logits_to_keep=1)",
            source=evidence.source(view, ops["id"]),
        )
