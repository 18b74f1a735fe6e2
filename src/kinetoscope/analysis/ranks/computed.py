"""What a rank computed between what it sent and received: of its forward passes, its backward passes and its
optimizer."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.collectives.recorded import PAIR, collectives
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, OPTIMIZER
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.model import Trace

FORWARD, BACKWARD, UPDATE = "forward", "backward", "optimizer"
COMPUTED = {
    "step": pl.String,
    "what": pl.String,
    "launched_ns": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


def segments(trace: Trace) -> pl.DataFrame:
    """One row a segment of one sort between whose launches no collective was launched, in that order.

    Of a rank that sends and receives; of another one nothing is kept. What autograd launches is of a backward
    pass, recomputed activations too; what neither it nor an optimizer does is of a forward pass.

    Returns:
        ``step``, ``what`` (``FORWARD``, ``BACKWARD``, ``UPDATE``), ``launched_ns`` (of its first kernel) and
        from when to when its kernels ran (``start_ns``, ``end_ns``).
    """
    met = collectives(trace)
    if not (met["semantics"] == PAIR).any():
        return pl.DataFrame(schema=COMPUTED)
    own = work(trace).filter(pl.col("part") != "communication", pl.col("launch").is_not_null())
    host = trace.host_events
    calls = host[own["launch"]]
    names = trace.steps.select(pl.col("id").alias("step"), pl.col("name").alias("named"))
    table = (
        own.select("step", "start_ns", "end_ns")
        .with_columns(
            calls["start_ns"].alias("launched_ns"),
            _within(host, AUTOGRAD_NODE, calls).alias(BACKWARD),
            _within(host, OPTIMIZER, calls).alias(UPDATE),
        )
        .join(names, on="step", how="left", maintain_order="left")
        .select(
            pl.col("named").fill_null("").alias("step"),
            pl.when(BACKWARD).then(pl.lit(BACKWARD)).when(UPDATE).then(pl.lit(UPDATE))
            .otherwise(pl.lit(FORWARD)).alias("what"),
            "launched_ns", "start_ns", "end_ns",
        )
        .sort("launched_ns")
    )  # fmt: skip
    launches = met.select(pl.col("launched_ns").drop_nulls().sort()).with_row_index("met")
    table = table.join_asof(launches, on="launched_ns", check_sortedness=False)
    cut = [pl.col(name).ne_missing(pl.col(name).shift(1)) for name in ("step", "what", "met")]
    return (
        table.group_by(pl.any_horizontal(cut).cum_sum().alias("segment"), maintain_order=True)
        .agg(pl.col("step", "what", "launched_ns").first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .select(pl.col(name).cast(dtype) for name, dtype in COMPUTED.items())
    )


def _within(host: pl.DataFrame, pattern: str, calls: pl.DataFrame) -> pl.Series:
    """Whether calls lie within events of such names on their own thread."""
    bounds = host.filter(matching(host, "name", pattern)).select(
        "lane", "start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns")
    )
    merged = intervals.union(bounds, ["lane"])
    until = [
        intervals.covered_until(merged, calls.select("lane", at=pl.col("start_ns") + after), ["lane"])
        for after in (0, 1)
    ]
    return until[1] > until[0]
