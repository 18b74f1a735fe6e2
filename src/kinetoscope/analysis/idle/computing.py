"""Ops that compute on the CPU in a thread that launches: what the device waits for meanwhile."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace

# What the dispatcher calls: ``namespace::op``. Nodes of autograd and collectives are called so as well.
OP = r"^[a-z]\w*::"
# Of these some describe memory, take it and give it back, or leave the work to ops inside them; some wait for
# other ranks; and an optimizer counts its steps on the CPU, which goes with its launches once it is fused.
COMPUTES_NOTHING = (
    r"^(autograd|torch|c10d|nccl|gloo|profiler|inductor)::"
    r"|^aten::(_foreach_\w+|(new_)?empty(_\w+)?|resize_(as_)?|set_|item|_local_scalar_dense|result_type"
    r"|(_unsafe_)?view(_as)?(_\w+)?|(_reshape_)?alias|(un)?flatten(_dense_tensors)?|to|contiguous|reshape|t"
    r"|transpose|permute|movedim|expand(_as)?|(un)?squeeze|select|slice|narrow|split(_with_sizes)?|chunk"
    r"|unbind|diagonal|as_strided|detach_?|lift(_fresh)?|resolve_(conj|neg)|record_stream)$"
)
CALL = r"(?i)(^|_)(runtime|driver)$"


@remembered
def computing(trace: Trace) -> pl.DataFrame:
    """One row per op of a launching thread that does its work on the CPU, the outermost of nested ones:
    ``lane``, ``start_ns``, ``end_ns`` and ``host_event`` (row of ``host_events``).

    A recording does not say where an op's tensors are. An op on the CPU calls no runtime and is not one that
    only describes memory; whose own time is no longer than an op that launches (their median) is left out:
    on the device it would take the thread as long.
    """
    host = trace.host_events
    is_op = matching(host, "category", "(?i)^(cpu_op|operator)$")
    launches = trace.device_events["launch"].drop_nulls().unique()
    launching = host[nearest(host, is_op).fill_null(host["id"]).gather(launches).unique().sort()]
    if launching.is_empty():
        return host.clear().select("lane", "start_ns", end_ns="duration_ns", host_event="id")
    calls = host.filter(matching(host, "category", CALL))
    touches = pl.concat([calls, launching]).select("lane", touched="start_ns").sort("touched")
    named = is_op & matching(host, "name", OP) & ~matching(host, "name", COMPUTES_NOTHING)
    longer = pl.col("self_ns") > launching["duration_ns"].median()
    ops = (
        host.filter(named & host["lane"].is_in(launching["lane"].unique().implode()), longer)
        .select("lane", "start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns"), host_event="id")
        .sort("start_ns")
    )
    ops = ops.join_asof(
        touches,
        left_on="start_ns",
        right_on="touched",
        by="lane",
        strategy="forward",
        check_sortedness=False,
    )
    ops = (
        ops.filter((pl.col("touched") >= pl.col("end_ns")).fill_null(True)).drop("touched").sort("host_event")
    )
    inside = pl.col("end_ns").cum_max().shift(1).over("lane") > pl.col("start_ns")
    return ops.filter(~inside.fill_null(False))
