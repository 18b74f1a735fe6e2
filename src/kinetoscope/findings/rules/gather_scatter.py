"""Rows are gathered, scaled and added up one by one, where a sparse matrix product would do.

What it finds
    Messages of a graph net, bags of embeddings and their kin, written out for each edge: ``index_select`` or
    a gather, a product with a weight for each row, ``scatter_add_`` or ``index_add_``.

Why it is slow
    There are more edges than nodes. The gathered rows are written to memory and read again up to three
    times, and the sums are atomic additions; a sparse product reads a row where it needs it, adds up on the
    chip, and writes each sum once.

How it decides
    By the order of kernels on a stream: a gather, ``aten::mul`` that repeats one factor (or none), and an op
    that adds to rows; filling with zeros may come in between, any other kernel ends the chain. Gathers of
    less than an eighth of the others' blocks are of weights or indices, as experts have them. All goes but
    half of the gather, which is to read the rows. If sizes differ from step to step, sorting the edges may
    cost as much: nothing is promised. On a CPU neither sizes nor factors show, and that they are so is the
    condition.

What to do
    Build the matrix of the edges' weights once, and multiply with it: ``matrix @ x`` in the CSR layout, an
    adjacency as ``SparseTensor`` in PyTorch Geometric, ``nn.EmbeddingBag`` with ``per_sample_weights``. The
    backward pass multiplies with its transpose: keep that as well, in a function of autograd, or each step
    sorts the edges again.

Source
    PyTorch Geometric, "Memory-Efficient Aggregations"; PyTorch, torch.sparse.
"""

from kinetoscope.analysis.kernels.occupancy import blocks
from kinetoscope.findings.rule import *

SORTS = {
    "gather": r"^aten::(gather|index_select|index)$",
    "scale": r"^aten::mul$",
    "scatter": r"^aten::(scatter_add|index_add|scatter_reduce|_index_put_impl)_?$"
    r"|^torch_scatter::\w+_(sum|mean)$",
    "zeros": r"^aten::(new_zeros|zeros|zeros_like|zero_|fill_)$",
}
NO_SUM = r"Reduce(Maximum|Minimum|Multiply)|index_put_kernel_impl"  # the last writes rows, and adds none
EACH_ITS_OWN = "vectorized_elementwise"  # the kernel of a product that repeats no factor
COMPARABLE = 10  # what adds up gathered rows takes up to so many times as long as the gather, or a part of it
FEWER = 8  # blocks of a product or a sum for one of the gather's: their kernels divide rows differently
READING = 0.5  # of a gather


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    if not matching(host, "name", SORTS["scatter"]).any():
        return
    kernels = _chains(view)
    took = {sort: pl.col("duration_ns").filter(pl.col("sort") == sort).sum() for sort in SORTS}
    of_rows = pl.col("sort") == "gather"
    each = blocks(kernels).group_by("chain").agg(
        pl.first("sort").alias("first"), pl.last("sort").alias("last"),
        rows=pl.col("blocks").filter(of_rows).max(), others=pl.col("blocks").filter(~of_rows).max(), **took,
    )  # fmt: skip
    chains = each.filter(
        (pl.col("first") == "gather") & (pl.col("last") == "scatter"),
        (pl.col("others") < FEWER * pl.col("rows")).fill_null(True),
        pl.col("scatter").is_between(pl.col("gather") / COMPARABLE, pl.col("gather") * COMPARABLE),
    )
    messages = kernels.filter(pl.col("chain").is_in(chains["chain"].implode()))
    if messages.is_empty():
        return
    reading = pl.when(pl.col("sort") == "gather").then(READING).otherwise(0.0)
    gone = messages.with_columns(saved_ns=pl.col("duration_ns") * (1 - reading))
    saving = savings.device(view, gone, "all of it but half of the gathers, which read the rows")
    if view.on_cpu:
        saving = savings.if_so(saving, "each row's factor is one number, and the edges stay the same")
    elif _vary(messages):
        saving = savings.not_predicted(saving, "each step has edges of its own, and sorting them takes time")
    times = view.counted(len(chains), "time")
    yield Finding(
        title=f"Rows are gathered, scaled and added up {times} per {view.unit} (gather, product, scatter)",
        affected_us=view.us_of(messages),
        saving=saving,
        evidence=[evidence.of(view, f"{len(messages)} kernels of gathers, products and sums", messages)],
        advice="Multiply with a sparse matrix instead: no message is written for each edge. Build it and "
        "its transpose, for the backward pass, once where the edges stay the same.",
        snippet="edges = torch.sparse_coo_tensor(torch.stack([target, source]), weight, (nodes, nodes))\n"
        "matrix = edges.coalesce().to_sparse_csr()  # once\n"
        "sums = matrix @ x",
        source=evidence.source(view, messages["op"]),
    )


def _chains(view: RankView) -> pl.DataFrame:
    """The kernels by stream and start, with their ``sort`` and the number of their ``chain``, which begins
    anew with a gather, after a scatter, and with any kernel of another sort."""
    host = view.trace.host_events
    adding = view.around(SORTS["scatter"])  # with what it does to indices before
    around = adding.zip_with(adding.is_not_null(), view.around("|".join(SORTS.values())))
    kernels = view.computed.filter(view.computed["kind"] == "kernel").drop_nulls("launch")
    ops = host.select("name")[around.gather(kernels["launch"])]
    sorts = (pl.when(matching(ops, "name", op)).then(pl.lit(sort)) for sort, op in SORTS.items())
    own = (pl.col("sort") == "scale") & matching(kernels, "name", EACH_ITS_OWN)
    other = own | matching(kernels, "name", NO_SUM)
    kernels = kernels.with_columns(sort=pl.coalesce(*sorts, pl.lit("other")))
    kernels = kernels.with_columns(sort=pl.when(other).then(pl.lit("other")).otherwise("sort"))
    kernels = kernels.filter(pl.col("sort") != "zeros").sort("device", "stream", "start_ns")
    now, before = pl.col("sort"), pl.col("sort").shift()
    begins = (
        (now == "other")
        | ((now == "gather") & (before != "gather"))
        | ((now != "scatter") & (before == "scatter"))
        | (pl.struct("device", "stream") != pl.struct("device", "stream").shift())
    )
    return kernels.with_columns(chain=begins.fill_null(True).cast(pl.UInt32).cum_sum())


def _vary(messages: pl.DataFrame) -> bool:
    """Whether the steps gather different numbers of rows."""
    gathers = messages.filter(pl.col("sort") == "gather").group_by("step")
    return gathers.agg(pl.col("grid").cast(pl.String).sort())["grid"].n_unique() > 1
