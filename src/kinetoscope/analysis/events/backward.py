"""Backward passes: where each begins, the forward ops that checkpointing runs again in them, and the updates
of optimizers, in whose steps a closure may run such passes."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, OPTIMIZER
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace

# Functions of autograd that torch.utils.checkpoint (with reentrant autograd and without) runs in the forward
# pass, and their kin of other libraries.
CHECKPOINT = r"^(_NoopSaveInputs|CheckpointFunction)$"


@remembered
def passes(trace: Trace) -> pl.DataFrame:
    """The backward passes: ``lane``, ``step`` (row of ``steps``; null outside of them), ``start_ns``,
    ``end_ns`` and ``shape`` (a hash of the names of the nodes of autograd that ran, in order).

    Autograd runs the node with the highest sequence number first, and ops get rising numbers: a node with a
    higher one than all before it begins the next pass. Without sequence numbers there is no pass.
    """
    host = trace.host_events
    nodes = host.filter(matching(host, "name", AUTOGRAD_NODE))
    outer = nearest(host, matching(host, "name", AUTOGRAD_NODE))[nodes["parent"]]
    nodes = nodes.filter(outer.is_null()).sort("lane", "start_ns")
    so_far = pl.col("sequence").cum_max().over("lane")
    begins = (pl.col("sequence") > so_far.forward_fill().shift(1).over("lane")).fill_null(
        pl.col("sequence") == so_far
    )
    found = nodes.with_columns(number=begins.fill_null(False).cast(pl.Int32).cum_sum().over("lane"))
    marks = trace.steps.select("start_ns", step="id").sort("start_ns")
    return (
        found.filter(pl.col("number") > 0)
        .group_by("lane", "number", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            END.max(),
            shape=pl.col("name").cast(pl.String).str.join("\n").hash(),
        )
        .sort("start_ns")
        .join_asof(marks, on="start_ns", check_sortedness=False)
        .select("lane", "step", "start_ns", "end_ns", "shape")
    )


@remembered
def unused(trace: Trace) -> pl.Series:
    """For each row of ``host_events`` whether it is a forward op whose node no backward pass makes use of."""
    host = trace.host_events
    numbered = host["sequence"].is_not_null()
    backward = in_backward(trace) | names_forward(trace)
    used = host["sequence"].filter(numbered & backward).unique()
    return numbered & ~backward & ~host["sequence"].is_in(used.implode())


@remembered
def without_gradients(trace: Trace) -> pl.Series:
    """For each row of ``host_events`` whether it is outside of backward passes and of their forward ops."""
    host = trace.host_events
    follows = host["sequence"].is_not_null() & ~unused(trace)
    return nearest(host, follows).is_null() & ~in_backward(trace)


@remembered
def in_backward(trace: Trace) -> pl.Series:
    """For each row of ``host_events`` whether it is a node of autograd or inside of one."""
    return nearest(trace.host_events, matching(trace.host_events, "name", AUTOGRAD_NODE)).is_not_null()


@remembered
def makes_node(trace: Trace) -> pl.Series:
    """For each row of ``host_events`` whether it made the node of autograd that has its number. An op that
    makes none has the number of the next one that its thread makes, so that the last of several made it."""
    host = trace.host_events.with_columns(forward=~in_backward(trace) & ~names_forward(trace))
    forward = host.filter(pl.col("sequence").is_not_null(), "forward")
    last = forward.sort("start_ns").group_by("lane", "sequence").agg(pl.last("id"))
    return host["id"].is_in(last["id"].implode())


def names_forward(trace: Trace) -> pl.Series:
    """For each row of ``host_events`` whether it names the thread of its forward op, as backward ops do."""
    named = trace.host_arguments["forward_thread"] > 0
    return named[trace.host_events["arguments"]].fill_null(False)


@remembered
def recomputed(trace: Trace) -> pl.DataFrame:
    """The intervals of backward passes in which checkpointing runs a part of the forward pass again:
    ``lane``, ``start_ns``, ``duration_ns``; none in a trace without a function of checkpointing.

    Forward ops have a sequence number and no thread of a forward pass; inside of a node of autograd they are
    computed again. The interval ends where the node calls its first op of its own; until then the state of
    the random numbers is put back.
    """
    host = trace.host_events
    node = matching(host, "name", f"{AUTOGRAD_NODE}|Backward\\d*$")
    forward = host["sequence"].is_not_null() & ~names_forward(trace) & ~node
    if not matching(host, "name", CHECKPOINT).any() or not forward.any():
        return host.select("lane", "start_ns", "duration_ns").clear()
    called = node.gather(host["parent"]).fill_null(False) & ~node  # by a node: an op, or a compiled region
    inner = host[nearest(host, called).filter(forward).drop_nulls().unique().sort()]
    ends = inner.select("parent", END).group_by("parent", maintain_order=True).agg(pl.col("end_ns").max())
    is_op = matching(host, "category", "^cpu_op$")
    own = host.filter(is_op & host["parent"].is_in(ends["parent"].implode())).select("parent", "start_ns")
    own = own.join(ends, on="parent").filter(pl.col("start_ns") >= pl.col("end_ns"))
    own = own.group_by("parent").agg(own_ns=pl.col("start_ns").min())
    ends = ends.join(own, on="parent", how="left", maintain_order="left")
    ends = ends.with_columns(end_ns=pl.coalesce("own_ns", "end_ns"))
    around = host.select("lane", "start_ns")[ends["parent"]]
    return around.with_columns(duration_ns=ends["end_ns"] - around["start_ns"]).sort("lane", "start_ns")


@remembered
def updates(trace: Trace) -> pl.DataFrame:
    """The calls of optimizers (``step`` and ``zero_grad``) among ``host_events``, with its columns.
    ``step(closure)`` runs forward and backward passes first: such a call begins where the last of its
    backward passes ends."""
    host = trace.host_events
    calls = host.filter(matching(host, "name", OPTIMIZER))
    nodes = host.filter(matching(host, "name", AUTOGRAD_NODE)).select("start_ns", passed_ns=END)
    nodes = nodes.sort("passed_ns").with_columns(pl.col("start_ns").cum_max())
    within = calls.select("id", "start_ns", END).sort("end_ns")
    last = within.join_asof(
        nodes.rename({"start_ns": "began_ns"}), left_on="end_ns", right_on="passed_ns", check_sortedness=False
    )
    last = last.filter(pl.col("began_ns") >= pl.col("start_ns")).select("id", "passed_ns")
    begins = pl.coalesce("passed_ns", "start_ns")
    return (
        calls.join(last, on="id", how="left", maintain_order="left")
        .with_columns(duration_ns=pl.col("start_ns") + pl.col("duration_ns") - begins, start_ns=begins)
        .select(host.columns)
    )


@remembered
def in_update(trace: Trace) -> pl.Series:
    """For each row of ``host_events`` whether it is in one of ``updates``, or such a call itself."""
    host = trace.host_events
    calls = updates(trace).select(around="id", begins_ns="start_ns")
    around = nearest(host, host["id"].is_in(calls["around"].implode())).alias("around")
    found = host.select("id", "start_ns", around).join(calls, on="around", how="left", maintain_order="left")
    own = pl.col("id") == pl.col("around")
    return found.select((own | (pl.col("start_ns") >= pl.col("begins_ns"))).fill_null(False)).to_series()
