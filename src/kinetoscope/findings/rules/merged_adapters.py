"""Adapters are merged into weights and taken out again for each request.

What it finds
    Low-rank adapters (LoRA) whose product is added to the weights of many layers before a forward pass, and
    subtracted again after it.

Why it is slow
    The product of an adapter's two thin matrices is as large as the layer's weights: it is written, scaled,
    and added to them, twice for each request. By the side of the layer the adapter costs two products of the
    request's own tokens.

How it decides
    By the order of kernels on a stream: a product that is no layer's, up to two elementwise kernels, and
    ``aten::add_`` or ``aten::sub_``. Outside of training such products are added, at least ten in a row, and
    as many of the same size are subtracted again. Saved is all of their time but 3 µs a kernel: an adapter by
    the side takes about as many launches.

What to do
    Leave the adapters unmerged: libraries compute them by the side of the layers if they are asked to switch
    to one, not to merge it. Where memory allows, keep a merged copy for each adapter, or answer requests of
    one adapter together.

Source
    Hugging Face PEFT, "LoRA": merging; Sheng et al., "S-LoRA" (2023).
"""

from kinetoscope.findings.rule import *

PRODUCT = r"^aten::(mm|bmm)$"
LAYER = r"^aten::linear$"
WRITES = {"aten::add_": 1, "aten::sub_": -1}
NEAR = 3  # kernels from the product to the sum: scaling and a cast may come in between
MANY = 10  # adapted layers: so many sums in a row


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    if trains(view) or not matching(host, "name", "^aten::sub_$").any():
        return
    chains = _chains(view)
    # A recording may begin or end in the middle of a request.
    even = pl.sum("sign").over("grid").abs() * MANY <= pl.len().over("grid")
    written = chains.filter(pl.col("sign") != 0).filter(even)
    turns = (written["sign"] != written["sign"].shift()).fill_null(True).sum()
    if written.is_empty() or len(written) < MANY * turns:
        return
    kernels = chains.filter(pl.col("chain").is_in(written["chain"].implode()))
    others = view.work.filter(pl.col("op").is_not_null()).join(kernels, on="id", how="anti")
    same = kernels.select("name", "grid").unique().join(others, on=["name", "grid"], how="anti")
    unknown = view.work.filter(pl.col("op").is_null()).join(same, on=["name", "grid"], how="semi")
    merging = view.work.filter(pl.col("id").is_in(pl.concat([kernels["id"], unknown["id"]]).implode()))
    saved = (pl.col("duration_ns") - FIXED_NS).clip(0)
    number = len(written) // 2 * len(merging) / len(kernels)
    yield Finding(
        title=f"Adapters are merged into weights and taken out again: {view.per_step(number):,.0f} products "
        f"are added in place and subtracted per {view.unit}",
        affected_us=view.us_of(merging),
        saving=savings.device(view, merging, "all of their time but 3 µs a kernel", saved=saved),
        evidence=[evidence.of(view, f"{len(merging)} kernels of products, scaling and sums", merging)],
        advice="Leave the weights as they are, and compute the adapter by the side of the layer: two thin "
        "products of the request's tokens. Or keep a merged copy of the weights for each adapter, or answer "
        "requests of one adapter together.",
        snippet="y = F.linear(x, weight) + F.linear(F.linear(x, down), up) * scaling",
        source=evidence.source(view, written["op"]),
    )


def _chains(view: RankView) -> pl.DataFrame:
    """The kernels from each product to the sum in place that is near, with the number of their ``chain``, and
    the ``sign`` of the sum's; 0 of the others."""
    layer = view.around(LAYER)
    kernels = view.work.filter(view.work["kind"] == "kernel", view.work["op"].is_not_null())
    product = layer.gather(kernels["op"]).is_null() & matching(kernels, "op_name", PRODUCT)
    between = matching(kernels, "category", "^(elementwise|copy)$")
    sign = kernels["op_name"].cast(pl.String).replace_strict(WRITES, default=0) * between
    kernels = kernels.with_columns(product=product, chain=~between, sign=sign)
    kernels = kernels.sort("device", "stream", "start_ns").with_columns(pl.col("chain").cum_sum())
    # Up to the first sum: what follows it is not the adapter's.
    at = pl.int_range(pl.len()).over("chain")
    first = at.filter(pl.col("sign") != 0).min().over("chain")
    return kernels.filter(pl.first("product").over("chain"), first <= NEAR, at <= first)
