"""Attention written out as matmul, softmax, matmul.

What it finds
    On one stream a batched product, a softmax (elementwise work around it allowed) and a batched product.

Why it is slow
    The scores of all pairs of positions go to memory and come back at least three times. Fused attention
    keeps them on the chip, and needs memory in proportion to the length instead of its square.

How it decides
    The order of categories: matmul, up to four elementwise kernels, softmax, up to four elementwise kernels,
    matmul, the products launched by ``aten::bmm`` or its kin. All of the softmax and elementwise time and 40
    % of the products' count as saved (measured on an H200 for 2048 positions of 64), and of the host's time
    from the first product's call to the last one's end all but the longest op.

What to do
    ``torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=…)``, or FlexAttention for masks and
    biases of your own. ``nn.MultiheadAttention`` does so where it is called with ``need_weights=False``.

Source
    FlashAttention (Dao et al., 2022); PyTorch tutorial on scaled_dot_product_attention.
"""

from kinetoscope.analysis.origins.attribution import attribution, lines_of_work
from kinetoscope.findings.rule import *

BATCHED = r"^aten::(bmm|baddbmm|matmul|einsum)"
NEAR = 5  # kernels from the softmax to each product
GAIN = 0.4
SINGLE = r"(?i)sgemm|f32f32|s1688|_tf32|simt_s"
HALF = r"(?i)bf16|f16|half|16816"  # a product of 16 bits may add up in 32
IN_SINGLE_PRECISION = (
    " In float32 there is no flash attention: the kernel that is left can take longer (a U-Net's step took "
    "250 µs more), so measure, or go to 16 bits first."
)
MASKED = r"^aten::(where|masked_fill_?)$"
SPARSE = (
    " Where its mask leaves out most pairs (a window, documents in a row), FlexAttention with a block mask "
    "does not compute them."
)
OF_TORCH = "MultiheadAttention"  # torch's own module, which writes attention out if it returns the weights
BASIS = (
    "all of the softmax and elementwise time, 40 % of the products', and the host's time from the first "
    "product's call to the last one's end, but for the longest op of it"
)


def in_single_precision(attention: pl.DataFrame) -> bool:
    """Whether its products are of float32, by their kernels' names."""
    names = attention.filter("product")["name"].cast(pl.String)
    return (names.str.contains(SINGLE) & ~names.str.contains(HALF)).any()


def find(view: RankView) -> Findings:
    chains = written_out(view)
    if chains.is_empty():
        return
    attention = chains.unique("id", keep="first", maintain_order=True).sort("at")
    softmaxes = attention.filter("softmax")
    shown = f"{len(attention)} kernels around {len(softmaxes)} softmaxes"
    saved = pl.when("product").then(pl.col("duration_ns") * GAIN).otherwise("duration_ns")
    single = in_single_precision(attention)
    returned = _of_torch(view, softmaxes)
    yield Finding(
        title="Attention is written out (matmul, softmax, matmul) "
        f"{numbers.times(round(view.per_step(len(softmaxes))))} per {view.unit}",
        affected_us=view.us_of(attention),
        saving=savings.device(view, attention, BASIS, saved, savings.called(view, _replaced(view, chains))),
        at_most="low" if single else "high",
        evidence=[evidence.of(view, shown, attention)],
        advice=(
            "Call nn.MultiheadAttention with need_weights=False: else it returns the scores of all pairs."
            if returned
            else "Use scaled_dot_product_attention: the scores then never leave the chip."
        )
        + (SPARSE if matching(attention, "op_name", MASKED).any() else "")
        + (IN_SINGLE_PRECISION if single else ""),
        snippet="y, _ = self.attention(q, k, v, need_weights=False)"
        if returned
        else "y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        source=evidence.source(view, softmaxes["op"]),
    )


def written_out(view: RankView) -> pl.DataFrame:
    """The kernels of attention written out, in order of each ``chain``: the ``softmax``, what is around it,
    and the ``product`` on either side; one between two softmaxes is in both chains."""
    work = view.work
    softmaxes = matching(work, "category", "^softmax$")
    if not softmaxes.any():
        return work.clear()
    # Of all work no more columns than decide it.
    kernels = (
        work.select(
            *("kind", "device", "stream", "start_ns"),
            row=pl.int_range(pl.len(), dtype=pl.UInt32),
            product=matching(work, "category", "^matmul$") & matching(work, "op_name", BATCHED),
            softmax=softmaxes,
            between=matching(work, "category", "^(elementwise|copy|random|reduction)$"),
        )
        .filter(pl.col("kind") == "kernel")
        .sort("device", "stream", "start_ns")
        .with_row_index("at")
    )
    stop = pl.when(~pl.col("between")).then("at")
    kernels = kernels.with_columns(before=stop.forward_fill().shift(1), after=stop.backward_fill().shift(-1))
    softmax = kernels.filter("softmax")
    found = softmax.filter(
        (pl.col("at") - pl.col("before") <= NEAR)
        & (pl.col("after") - pl.col("at") <= NEAR)
        & kernels["product"][softmax["before"]].fill_null(False)
        & kernels["product"][softmax["after"]].fill_null(False)
    )
    spans = found.select("before", "after", chain=pl.int_range(pl.len()))
    rows = spans.select("chain", at=pl.int_ranges("before", pl.col("after") + 1)).explode("at")
    found = kernels.select("at", "row", "product", "softmax")[rows["at"]]
    return pl.concat([work[found["row"]], found.drop("row"), rows.select("chain")], how="horizontal")


def _of_torch(view: RankView, softmaxes: pl.DataFrame) -> bool:
    """Whether most of it is computed by torch's own module of attention."""
    known = attribution(view.trace)["module_name"], lines_of_work(view.trace, view.lines)["module"]
    modules = pl.select(pl.coalesce(one.gather(softmaxes["id"]).cast(pl.String) for one in known)).to_series()
    return 2 * whole(modules.str.contains(rf"^{OF_TORCH}(_\d+)?$").sum()) > len(softmaxes)


def _replaced(view: RankView, chains: pl.DataFrame) -> pl.DataFrame:
    """The host's intervals that one call replaces, with the ``share`` of their time that is saved: ops,
    nodes of autograd and the Python between them."""
    host = view.trace.host_events
    ops = chains.drop_nulls("op").select("chain", id="op")
    ops = ops.join(host.select("id", "lane", "start_ns", "duration_ns"), on="id").unique(["chain", "id"])
    end = (pl.col("start_ns") + pl.col("duration_ns")).max()
    intervals = ops.group_by("chain", "lane", maintain_order=True).agg(
        pl.col("start_ns").min(),
        duration_ns=end - pl.col("start_ns").min(),
        longest=pl.col("duration_ns").max(),
    )
    return intervals.with_columns(share=1 - pl.col("longest") / pl.col("duration_ns"))
