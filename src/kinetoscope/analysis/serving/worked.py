"""The work of a server's steps: its device's, or where no device was recorded the host's ops."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.kernels.work import classify, work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.model import Trace

# Ops of a library (``aten::mm``): what torch.compile and autograd put around others is none.
OPS = r"^\w+::\w"


def on_host(trace: Trace) -> bool:
    """Whether no device was recorded, so that the host did the work."""
    return trace.device_events.is_empty()


@remembered
def worked(trace: Trace) -> pl.DataFrame:
    """``work`` of a device; where none was recorded, in the same columns, the ops that no other op is around.
    Each is its own ``op`` and its own ``launch``, and ``id`` is its row of ``host_events``."""
    if not on_host(trace):
        return work(trace)
    host = trace.host_events
    is_op = matching(host, "category", "^cpu_op$") & matching(host, "name", OPS)
    spans = host.filter(is_op).select("id", "lane", "start_ns", END)
    ops = host[intervals.outermost(spans, ["lane"])["id"].sort()]
    name = ops["name"].cast(pl.String)
    kinds = pl.DataFrame({"kind": ["kernel"], "is_collective": [False]})
    distinct = pl.DataFrame({"name": name.unique().sort()}).join(kinds, how="cross")
    category = classify(distinct.with_columns(op="name", call=pl.lit(None, pl.String)))
    known = ops.select(
        "id", "event", "name", "start_ns", "duration_ns", END,
        op="id", launch="id",
        category=name.replace_strict(distinct["name"], category, return_dtype=pl.String),
        kind=pl.lit("kernel"),
        device=pl.lit(0), stream=pl.lit(0), rank=pl.lit(trace.rank),
    )  # fmt: skip
    empty = work(trace).clear()
    typed = [pl.col(one).cast(kind) for one, kind in empty.schema.items() if one in known.columns]
    return pl.concat([empty, known.select(typed)], how="diagonal")
