"""Attention computes all pairs of positions, and a mask leaves some out.

What it finds
    Calls of ``scaled_dot_product_attention`` with a boolean mask of all pairs, of long sequences or of many.

Why it is slow
    The kernels compute the scores of all pairs before the mask leaves out what is not wanted: what lies
    outside of a window, other documents of a row, padding. For each call the mask is also written out as
    numbers, one for each pair.

How it decides
    By ``aten::where`` inside of the call, which makes numbers of the mask and writes four million of them
    (2048 by 2048) or more; a mask of keys alone has fewer. Which pairs it leaves out is in no trace. If no
    more than a quarter of them are let through, in blocks, then half of the time of attention, forward and
    backward, and the writing of the mask are saved: FlexAttention computes the blocks with such pairs
    alone, and is taken to be half as fast on them.

What to do
    FlexAttention with a block mask that is made once; compiled, or it computes all pairs. A mask that is only
    causal is ``is_causal=True``. Documents in a row, or texts of different lengths, can be one call of
    attention for sequences of different lengths (``varlen``). Blocks and their neighbours written out by hand
    are many ops: the host may then take as long as the device did.

Source
    PyTorch blog, "FlexAttention: The Flexibility of PyTorch with the Performance of FlashAttention".
"""

from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE
from kinetoscope.analysis.kernels.occupancy import blocks
from kinetoscope.findings.rule import *

CALL = r"^aten::scaled_dot_product_attention$"
MASK = r"^aten::where$"
OF_A_BLOCK = 512  # elements that a block of torch's elementwise kernels writes: 128 threads, four each
PAIRS = 2048 * 2048
LEFT = 0.5  # of attention's time
SOME = "no more than a quarter of the pairs are let through, in blocks"


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    call = view.around(CALL)
    work = view.work.filter(view.work["kind"] == "kernel").drop_nulls("launch")
    work = work.with_columns(call=call[work["launch"]], mask=matching(work, "op_name", MASK))
    masks = blocks(work.filter("mask", pl.col("call").is_not_null()))
    masked = masks.filter(pl.col("blocks") * OF_A_BLOCK >= PAIRS)["call"].unique()
    if masked.is_empty():
        return
    forward = call.is_in(masked.implode()).fill_null(False)
    node = view.around(AUTOGRAD_NODE).gather(work["launch"])
    sequences = host["sequence"].filter(forward).drop_nulls().unique()
    back = host["sequence"].gather(node).is_in(sequences.implode()).fill_null(False)
    attention = work.filter(forward.gather(work["launch"]) | back)
    saved = pl.col("duration_ns") * pl.when("mask").then(1.0).otherwise(1 - LEFT)
    saving = savings.device(view, attention, "half of attention's time, and the writing of the mask", saved)
    if saving.share < MEDIUM:
        return
    times = numbers.count(round(view.per_step(len(masked))), "time")
    yield Finding(
        title=f"Attention computes all pairs of positions {times} per {view.unit}, with a mask",
        affected_us=view.us_of(attention),
        saving=savings.if_so(saving, SOME),
        evidence=[evidence.of(view, "its kernels, and those that write its mask", attention)],
        advice="Where the mask leaves out most pairs (a window, documents in a row, padding), use "
        "FlexAttention with a block mask that is made once: blocks without a pair are not computed. A mask "
        "that is only causal is is_causal=True.",
        snippet="near = lambda batch, head, query, key: (query - key).abs() <= window\n"
        "block_mask = create_block_mask(near, None, None, length, length)  # once\n"
        "y = torch.compile(flex_attention)(q, k, v, block_mask=block_mask)",
        source=evidence.source(view, masked.sort()),
    )
