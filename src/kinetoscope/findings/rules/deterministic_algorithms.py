"""Deterministic algorithms are on: interpolation is computed in parts, and new memory is filled.

What it finds
    ``torch.use_deterministic_algorithms(True)`` and what stands for it: Lightning's
    ``Trainer(deterministic=True)``, a ``seed_everything`` that sets it.

Why it is slow
    The kernel of linear interpolation adds gradients up in any order. In its place torch gathers the values
    at each corner and weighs them, in a dozen passes; backward, the gradients of each corner are sorted by
    where they belong and added one after the other. Padding by the edge's values is gathered and sorted
    likewise. All new memory is filled before anything is written to it.

How it decides
    ``aten::_unsafe_index``, several in a row, which eager programs call for interpolation alone: what this
    launches, forward and backward, goes away, but for the time of two gathers, one for each pass of a
    single kernel. So do fills inside of ``aten::empty``, ``empty_strided`` and ``resize_``. What else is
    slower in this mode, as some convolutions and scatters, is not counted.

What to do
    Leave deterministic algorithms off where two runs need not agree bit by bit: with the same seeds they
    agree up to rounding. Where they stay on, interpolate by ``nearest`` or transposed convolutions, and
    leave new memory unfilled.

Source
    PyTorch: torch.nn.functional.interpolate, which calls ``torch._decomp.decompositions`` in this mode;
    torch.utils.deterministic.fill_uninitialized_memory: "Filling uninitialized memory is detrimental to
    performance."
"""

from kinetoscope.analysis.origins.attribution import attribution
from kinetoscope.findings.rule import *

ROLE = "rounds"
GATHER = r"^aten::_unsafe_index$"
NODE = r"^autograd::engine::evaluate_function: UnsafeIndexBackward\d+$"
NEW = r"^aten::(empty|empty_strided|resize_)$"
PASSES = 2  # of a single kernel: forward and backward


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    new = matching(host, "name", NEW)[host["parent"]].fill_null(False)
    fills = view.inside(host.filter(matching(host, "name", "^aten::fill_$") & new))
    parts = _in_parts(view)
    if fills.is_empty() and parts.is_empty():
        return
    # What backward nodes launch is known to be theirs without the forward op, too, which few traces name.
    nodes = view.inside(view.host(NODE))
    gone = pl.concat([view.launched_during(calls).select(view.work.columns) for calls in (nodes, fills)])
    work = pl.concat([_work(view, parts), gone.with_columns(saved_ns="duration_ns")], how="vertical_relaxed")
    work = work.unique("id", keep="first", maintain_order=True)
    basis = "fills, all but two gathers of each interpolation, and their calls"
    what = [
        f"{view.counted(len(events), noun)} {of_it}"
        for events, noun, of_it in ((parts, "interpolation", "in parts"), (fills, "fill", "of new memory"))
        if len(events)
    ]
    yield Finding(
        title=f"Deterministic algorithms are on: {' and '.join(what)} per {view.unit}",
        affected_us=view.us_of(work),
        saving=savings.device(view, work, basis, more=savings.called(view, parts)),
        evidence=[evidence.of(view, "the longest kernels", work.sort("duration_ns", descending=True))],
        advice="Leave them off where two runs need not agree bit by bit: seeds alone make them agree up to "
        "rounding. Where they stay on, interpolate by nearest or transposed convolutions, and leave new "
        "memory unfilled.",
        snippet="torch.use_deterministic_algorithms(False)\n"
        "torch.utils.deterministic.fill_uninitialized_memory = False  # where they stay on",
    )


def _in_parts(view: RankView) -> pl.DataFrame:
    """The host's time in each interpolation in parts (``lane``, ``start_ns``, ``duration_ns``, ``end_ns``),
    with its number of ``gathers``: 2 ** n in n dimensions, after n calls that make indices, before 2 ** n - 1
    sums."""
    calls = view.called.with_columns(
        gathers=matching(view.called, "name", GATHER),
        indices=matching(view.called, "name", "^aten::arange$"),
        sums=matching(view.called, "name", "^aten::add$"),
    )
    if not calls["gathers"].any():
        none = pl.col("gathers").cast(pl.Int64)
        return calls.clear().select("lane", none, "start_ns", "end_ns", "duration_ns")
    numbered = calls.with_columns(pl.col("indices", "sums").cum_sum().cast(pl.Int64).over("lane"))
    parts = numbered.filter("gathers").group_by("lane", "indices", "sums", maintain_order=True)
    parts = parts.agg(pl.min("start_ns"), pl.max("end_ns"), gathers=pl.len().cast(pl.Int64))
    parts = parts.filter(pl.col("gathers") > 1)
    first = pl.col("indices") - pl.col("gathers").log(2).round().cast(pl.Int64) + 1
    last = pl.col("sums") + pl.col("gathers") - 1
    begins = numbered.filter(calls["indices"]).select("lane", first="indices", begins="start_ns")
    ends = numbered.filter(calls["sums"]).select("lane", last="sums", ends="end_ns")
    return (
        parts.with_columns(first=first, last=last)
        .join(begins, on=["lane", "first"], how="left", maintain_order="left")
        .join(ends, on=["lane", "last"], how="left", maintain_order="left")
        .select(
            "lane",
            "gathers",
            start_ns=pl.min_horizontal("start_ns", "begins"),
            end_ns=pl.max_horizontal("end_ns", "ends"),
        )
        .with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    )


def _work(view: RankView, parts: pl.DataFrame) -> pl.DataFrame:
    """The work of interpolations, forward and backward, and how much of it (``saved_ns``) goes away."""
    host = view.trace.host_events
    forward_op = attribution(view.trace)["forward_op"].gather(view.work["id"])
    caller = forward_op.zip_with(forward_op.is_not_null(), view.work["launch"])
    called = pl.DataFrame({"lane": host["lane"].gather(caller), "start_ns": host["start_ns"].gather(caller)})
    found = intervals.beginning_in(called.with_row_index("row"), parts.drop("duration_ns"), ["lane"])
    found = found.sort("row")
    work = view.work[found["row"]]
    is_gather = forward_op.gather(found["row"]).is_null() & matching(work, "op_name", "^aten::index$")
    stays = pl.when(is_gather).then(PASSES / found["gathers"]).otherwise(0.0)
    return work.with_columns(saved_ns=pl.col("duration_ns") * (1 - stays))
