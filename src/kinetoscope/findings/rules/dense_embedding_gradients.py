"""Gradients of embedding tables are dense, although few rows are looked up.

What it finds
    Tables of embeddings whose whole gradient is filled with zeros in each backward pass, and whose every
    row the optimizer reads and writes.

Why it is slow
    A batch looks up some thousands of rows of millions. Dense, the gradient is as large as the table, and
    Adam moves seven times that, or twenty times unfused, for rows that nothing asked for.

How it decides
    ``embedding_dense_backward`` and ``_embedding_bag_dense_backward`` whose fill with zeros takes at least
    twice as long as their longest kernel that adds up or writes rows, but for 3 µs. Gone are the fills, and
    of each of the optimizer's ops as many fills as it reads and writes tensors. The step then takes no less
    than the host does, and the host 0.7 ms more for each sparse update. A table that is the output layer's
    weight as well is dense anyhow.

What to do
    ``nn.Embedding(…, sparse=True)`` with ``torch.optim.SparseAdam`` or ``SGD``, for the tables alone.
    Moments of rows that were not looked up then stay as they are, which is not quite Adam. Weight decay
    and ``clip_grad_norm_`` do not take sparse gradients.

Source
    PyTorch, torch.nn.Embedding, "sparse"; torch.optim.SparseAdam.
"""

from kinetoscope.findings.rule import *

BACKWARD = r"^aten::_?embedding(_bag)?_dense_backward$"
TOUCHED = 2.0  # fills as long as the kernels of touched rows: the most that sparse gradients are good for
MANY = 8  # tables, whose lookups would be one op on a joint table
# Of the optimizer's ops how many tensors they read and write; of others, one.
TENSORS = {"lerp": 3, "mul": 2, "addcmul": 3, "sqrt": 2, "div": 2, "add": 2, "addcdiv": 4, "copy": 2,
           "_fused_adam": 7, "_fused_adamw": 7, "_fused_sgd": 3, "_fused_adagrad": 5}  # fmt: skip
UPDATE_US = 700  # SparseAdam of one table on the host of an H200, without the profiler
FILL = "^aten::fill_$"
OP = r"^aten::(?:_foreach_)?(\w+?)_?$"


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    work = (_on_cpu if view.on_cpu else _on_device)(view)
    rows = (
        pl.col("duration_ns").filter(~pl.col("fill"), pl.col("category").cast(pl.String) == "embedding").max()
    )
    filled = pl.col("duration_ns").filter("fill").sum()
    each = work.group_by("table").agg(rows=(rows.fill_null(0) - FIXED_NS).clip(0), filled=filled)
    few = each.filter(pl.col("filled") >= TOUCHED * pl.col("rows"), pl.col("filled") > 0)
    if few.is_empty():
        return
    fills = work.filter(pl.col("fill"), pl.col("table").is_in(few["table"].implode()))
    updates = _updates(view, int(fills["duration_ns"].sum()))
    gone = pl.concat([fills.select("id", saved_ns=pl.col("duration_ns").cast(pl.Float64)), updates])
    tables, all_tables = (round(view.per_step(len(table))) for table in (few, each))
    joint = (
        f" One table with offsets, looked up once, takes the place of {all_tables}."
        if all_tables >= MANY
        else ""
    )
    saving = savings.device(view, gone, "the zeros, and each of the optimizer's passes over the tables")
    yield Finding(
        title=f"Gradients of {tables} of {numbers.count(all_tables, 'embedding table')} are dense, for few "
        f"rows: {numbers.time(view.us_of(fills))} of zeros and "
        f"{numbers.time(view.us_of(updates, 'saved_ns'))} of updates per {view.unit}",
        saving=_on_the_host(view, saving, 1 if joint else tables),
        evidence=[evidence.of(view, "the backward passes of the tables", host[few["table"].sort()])],
        advice=f"Use sparse gradients, and an optimizer that updates the rows they have.{joint}",
        snippet="table = nn.Embedding(rows, width, sparse=True)\n"
        "optimizer = torch.optim.SparseAdam(table.parameters())",
        source=evidence.source(view, few["table"].sort()),
    )


def _on_device(view: RankView) -> pl.DataFrame:
    """The kernels of the backward pass of each ``table`` (row of ``host_events``), and which ``fill`` it."""
    work = view.work.with_columns(table=view.around(BACKWARD)[view.work["launch"]]).drop_nulls("table")
    return work.with_columns(fill=matching(work, "name", "FillFunctor"))


def _on_cpu(view: RankView) -> pl.DataFrame:
    """The same of ops: the fill is one in the backward pass, whose own time is that of the rows."""
    host = view.trace.host_events.with_columns(table=view.around(BACKWARD))
    work = view.inside(host.drop_nulls("table"))
    work = work.filter(matching(work, "name", f"{BACKWARD}|{FILL}"))
    fill = matching(work, "name", FILL)
    took = pl.when(fill).then("duration_ns").otherwise("self_ns")
    return work.with_columns(duration_ns=took, fill=fill, category=pl.lit("embedding"))


def _on_the_host(view: RankView, saving: Saving, tables: int) -> Saving:
    """The saving less what the host takes longer than the step would."""
    if view.on_cpu:
        us = max(0.0, saving.us - UPDATE_US * tables)
        return replace(saving, us=us, share=us / view.own_step_us, unreplayed_us=us - saving.us)
    all_work = shorten(view.work["id"], view.work["duration_ns"])
    host_us = view.own_step_us - view.would_save(all_work) + UPDATE_US * tables
    longer_us = max(0.0, host_us - (view.own_step_us - saving.us))
    if not saving.us or not longer_us:
        return saving
    us = max(0.0, saving.us - longer_us)
    basis = f"{saving.basis}; the host then takes {numbers.time(host_us)}"
    return replace(saving, us=us, share=us / view.own_step_us, basis=basis, unreplayed_us=us - saving.us)


def _updates(view: RankView, fill_ns: int) -> pl.DataFrame:
    """The optimizer's kernels (``id``) with what they take for the tables (``saved_ns``)."""
    kernels = view.computed.filter(matching(view.computed, "category", "^optimizer$"))
    op = pl.col("op_name").cast(pl.String).str.extract(OP)
    tensors = op.replace_strict(TENSORS, default=1)
    share = (fill_ns * pl.col("tensors") / pl.sum("duration_ns").over("op_name")).clip(0, 1)
    return kernels.with_columns(tensors=tensors).select("id", saved_ns=pl.col("duration_ns") * share)
