"""How long collectives waited for the slowest rank, and how long they took to move the data.

A collective's kernel runs on every rank from the moment that rank arrives until the data has moved; it is
busy all that time. The rank that arrives last waits for nobody: its duration is the transfer, and what the
same collective took longer on another rank is waiting. This needs the traces of the other ranks; where they
are absent, the shortest collective of the same kind and size in the one trace stands for the transfer, and
``basis`` says so.
"""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.window import window
from kinetoscope.trace.model import Trace

SIGNATURE = ("Process Group Name", "Process Group Ranks", "Collective name", "In msg nelems", "dtype")

# The ranks of one collective end together (within 7 µs on eight ranks of one host). If, once the ranks'
# clocks are aligned, they differ by more than this, the recordings were not paired rightly and nothing is
# said.
ENDS_TOGETHER_NS = 1_000_000

SCHEMA = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "id": pl.UInt32,
    "start_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "collective": pl.String,
    "transfer_ns": pl.Int64,
    "waiting_ns": pl.Int64,
    "exposed_waiting_ns": pl.Int64,
    "last_rank": pl.Int32,
    "meeting": pl.UInt32,
    "basis": pl.String,
}


@remembered
def waiting(run: Run) -> pl.DataFrame:
    """One row per communication kernel, of all ranks.

    Returns:
        ``rank``, ``device``, ``id`` (row of that rank's ``device_events``), ``start_ns``, ``duration_ns``,
        ``collective`` (its recorded name, else the kernel's), ``transfer_ns``, ``waiting_ns`` (both null
        where nothing is known), ``exposed_waiting_ns`` (the part of the waiting during which the device did
        nothing else, each instant of a device counted once), ``last_rank`` (the rank that was waited for)
        and ``meeting`` (one number for the same collective on every rank), both null without the other ranks,
        and ``basis``: ``ranks`` (compared with the same collective on every other rank), ``trace`` (with the
        shortest of its kind in this trace: an estimate) or null.
    """
    found = [_collectives(trace) for trace in run.traces]
    table = pl.concat(found) if found else pl.DataFrame(schema=SCHEMA)
    if table.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    alike = ["signature", "step", "nth"]
    rank_count = len(run.traces)
    one_of_many = (pl.len() == rank_count) & (pl.col("rank").n_unique() == rank_count) & (rank_count > 1)
    clock = pl.col("end_ns") - pl.col("end_ns").mean().over(alike).cast(pl.Int64)
    table = (
        table.with_columns(one_of_many.over(alike).fill_null(False).alias("paired"))
        .with_columns(pl.when("paired").then(clock).median().over("rank").cast(pl.Int64).alias("clock"))
        .with_columns((pl.col("end_ns") - pl.col("clock").fill_null(0)).alias("aligned"))
        .with_columns(
            (
                pl.col("paired")
                & ((pl.col("aligned").max() - pl.col("aligned").min()).over(alike) <= ENDS_TOGETHER_NS)
            ).alias("paired")
        )
    )
    known = pl.col("collective_recorded") & (pl.len().over("rank", "signature") > 1)
    shortest = pl.col("duration_ns").min()
    table = table.with_columns(
        pl.when("paired")
        .then(shortest.over(alike))
        .when(known)
        .then(shortest.over("rank", "signature"))
        .alias("transfer_ns"),
        pl.when("paired").then(pl.col("rank").sort_by("duration_ns").first().over(alike)).alias("last_rank"),
        pl.when("paired").then(pl.struct(alike).rank("dense")).cast(pl.UInt32).alias("meeting"),
        pl.when("paired").then(pl.lit("ranks")).when(known).then(pl.lit("trace")).alias("basis"),
    ).with_columns((pl.col("duration_ns") - pl.col("transfer_ns")).alias("waiting_ns"))
    exposed = [_exposed(trace, table.filter(pl.col("rank") == trace.rank)) for trace in run.traces]
    return pl.concat(exposed).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def _collectives(trace: Trace) -> pl.DataFrame:
    """The communication kernels of one rank with what tells them apart and joins them to other ranks'.

    Those whose launch was not recorded belong to what ran before the recording; they are not counted when
    collectives are numbered, since the other ranks may have finished them before.
    """
    table = work(trace).filter(pl.col("part") == "communication").sort("device", "start_ns")
    recorded = [
        pl.col("collective").cast(pl.String).str.json_path_match(f"$['{key}']").fill_null("")
        for key in SIGNATURE
    ]
    steps = trace.steps.select(pl.col("id").alias("step"), pl.col("name").alias("step_name"))
    before = (pl.col("launch").is_null() & pl.col("launch").is_not_null().any()).alias("before")
    return (
        table.join(steps, on="step", how="left", maintain_order="left")
        .select(
            "rank",
            "device",
            "id",
            "start_ns",
            "end_ns",
            "duration_ns",
            pl.concat_str(pl.col("name").cast(pl.String), *recorded, separator="|").alias("signature"),
            pl.col("collective").is_not_null().alias("collective_recorded"),
            pl.coalesce(
                pl.col("collective").cast(pl.String).str.json_path_match("$['Collective name']"),
                pl.col("name").cast(pl.String),
            ).alias("collective"),
            pl.col("step_name").fill_null("").alias("step"),
            before,
        )
        .with_columns(pl.when(pl.col("before")).then(pl.lit("before")).otherwise("step").alias("step"))
        .with_columns(pl.col("id").cum_count().over("signature", "step").alias("nth"))
        .with_columns(pl.when(~pl.col("before")).then("nth").alias("nth"))
        .drop("before")
    )


def _exposed(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    """Adds ``exposed_waiting_ns``: waiting inside the window while the device did nothing else.

    Where collectives of several streams wait at once, the time is the one's that began to wait first: so
    these times sum to the time of the window in which any of them waited.
    """
    within = window(trace)
    other = intervals.union(work(trace).filter(pl.col("part") != "communication"), ["device"])
    low, high = pl.lit(within.start_ns, pl.Int64), pl.lit(within.end_ns, pl.Int64)
    table = table.sort("device", "start_ns").with_columns(
        (pl.col("start_ns") + pl.col("waiting_ns").fill_null(0)).alias("until")
    )
    waited_before = pl.col("until").cum_max().shift(1).over("device").fill_null(0)
    begin = pl.max_horizontal("start_ns", waited_before)

    def alone_until(instant: pl.Expr) -> pl.Series:
        """An instant of each row, less the time that the device computed or copied until then."""
        instants = table.select("device", instant.clip(low, high).alias("at"))
        return instants["at"] - intervals.covered_until(other, instants, ["device"])

    until = pl.max_horizontal("until", begin)
    exposed = (alone_until(until) - alone_until(begin)).set(table["waiting_ns"].is_null(), None)
    return table.with_columns(exposed.alias("exposed_waiting_ns"))


def exposed_waiting(run: Run) -> pl.DataFrame:
    """Per ``rank`` and ``device``: ``exposed_waiting_ns``, the time of its window in which some collective
    waited for another rank while the device computed and copied nothing."""
    known = waiting(run).drop_nulls("waiting_ns")
    total = known.group_by("rank", "device", maintain_order=True).agg(pl.col("exposed_waiting_ns").sum())
    return total.filter(pl.col("exposed_waiting_ns") > 0)
