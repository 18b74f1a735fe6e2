"""Attention computes all pairs of positions, and a mask leaves some out.

What it finds
    Calls of ``scaled_dot_product_attention`` with a mask of all pairs, of long sequences or of many: in eager
    code a boolean one, in compiled graphs any.

Why it is slow
    The kernels compute the scores of all pairs before the mask leaves out what is not wanted: what lies
    outside of a window, other documents of a row, padding. For each call the mask is also written out as
    numbers, one for each pair.

How it decides
    By ``aten::where`` inside of the call, which writes the mask as four million numbers (2048 by 2048) or
    more; in compiled graphs by the mask's shape in the compile log. A mask of keys alone has fewer, one for
    each head is a bias. Which pairs it leaves out is in no trace: that it is only causal, or lets at most a
    quarter of them through, in blocks, is the condition. Half of the time of attention, forward and backward,
    and the writing of the mask are saved.

What to do
    FlexAttention with a block mask that is made once; compiled, or it computes all pairs. A mask that is only
    causal is ``is_causal=True``. Documents in a row, or texts of different lengths, can be one call of
    attention for sequences of different lengths (``varlen``). Blocks and their neighbours written out by hand
    are many ops: the host may then take as long as the device did.

Source
    PyTorch blog, "FlexAttention: The Flexibility of PyTorch with the Performance of FlashAttention".
"""

from collections import Counter
from collections.abc import Iterator

from kinetoscope.analysis.compiled.join import launched
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE
from kinetoscope.analysis.kernels.occupancy import blocks
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.findings.rule import *

CALL = r"^aten::scaled_dot_product_attention$"
MASK = r"^aten::where$"
OF_A_BLOCK = 512  # elements that a block of torch's elementwise kernels writes: 128 threads, four each
PAIRS = 2048 * 2048
LEFT = 0.5  # of attention's time
KEY = {"hash": pl.String, "op": pl.String, "nth": pl.Int64}  # of a call in a compiled graph
SOME = "the mask is only causal, or lets no more than a quarter of the pairs through, in blocks"


def find(view: RankView) -> Findings:
    (eager, work), (compiled, of_graphs) = _eager(view), _compiled(view)
    calls, attention = pl.concat([eager, compiled]), pl.concat([work, of_graphs])
    if calls.is_empty():
        return
    saved = pl.col("duration_ns") * pl.when("mask").then(1.0).otherwise(1 - LEFT)
    saving = savings.device(view, attention, "half of attention's time, and the writing of the mask", saved)
    if saving.share < MEDIUM:
        return
    times = view.counted(len(calls), "time")
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
        source=evidence.source(view, calls.sort()),
    )


def _eager(view: RankView) -> tuple[pl.Series, pl.DataFrame]:
    """The calls with such a mask, and the work of them and their backward; ``mask``: what writes the mask."""
    host = view.trace.host_events
    call, is_kernel = view.around(CALL), view.work["kind"] == "kernel"
    work = view.work.with_columns(mask=matching(view.work, "op_name", MASK))
    masks = blocks(work.filter(pl.col("mask"), is_kernel)).filter(pl.col("blocks") * OF_A_BLOCK >= PAIRS)
    masked = call.gather(masks["launch"]).drop_nulls().unique()
    if masked.is_empty():
        return masked, work.clear()
    work = work.filter(is_kernel).drop_nulls("launch")
    forward = call.is_in(masked.implode()).fill_null(False)
    node = view.around(AUTOGRAD_NODE).gather(work["launch"])
    sequences = host["sequence"].filter(forward).drop_nulls().unique()
    back = host["sequence"].gather(node).is_in(sequences.implode()).fill_null(False)
    return masked, work.filter(forward.gather(work["launch"]) | back)


def _compiled(view: RankView) -> tuple[pl.Series, pl.DataFrame]:
    """The same of compiled graphs, by the compile log; what writes their masks is not looked for."""
    log = view.run.compilation
    masked = pl.DataFrame(list(_masked(log)) if log else [], KEY, orient="row")
    if masked.is_empty():
        return pl.Series(dtype=pl.UInt32), view.work.clear().with_columns(mask=pl.lit(False))
    of_graphs = launched(view.trace).select(*KEY, "child", id=view.trace.device_events["id"])
    found = of_graphs.join(masked, on=list(KEY), how="semi")
    forward = found.filter(~pl.col("op").str.ends_with("_backward"))
    work = view.work.filter(pl.col("kind") == "kernel", pl.col("id").is_in(found["id"].implode()))
    return forward["child"].unique(), work.with_columns(mask=pl.lit(False))


def _masked(log: CompiledProgram) -> Iterator[tuple[str | None, str, int]]:
    """The calls with such a mask: the graph's key, the op, and which of its like in the graph it is."""
    from kinetoscope.compilation.fx import masked_pairs  # most recordings have no compile log
    from kinetoscope.compilation.generated.graphs import op_name

    for graph in log.graphs:
        post_grad, before = log.post_grad.get(graph.index), Counter[str]()
        for target, pairs in masked_pairs(post_grad.read()) if post_grad else ():
            op = op_name(target)
            if pairs >= PAIRS:
                yield graph.key, op, before[op]
            before[op] += 1
