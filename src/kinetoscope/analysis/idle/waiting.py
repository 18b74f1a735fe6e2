"""How long collectives waited for the slowest rank, and how long they took to move the data.

A collective's kernel runs on every rank from the moment that rank arrives until the data has moved; it is
busy all that time. The rank that arrives last waits for nobody (see ``ranks.waits``). This needs the traces
of the other ranks; where they are absent, the shortest collective of the same kind and size in the one trace
stands for the transfer, and ``basis`` says so.
"""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.ranks.collectives import COLLECTIVES, collectives, hosts_of, world_size
from kinetoscope.analysis.ranks.pairing import Paired, paired
from kinetoscope.analysis.ranks.waits import waits
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace

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
        ``collective`` (its kind), ``transfer_ns``, ``waiting_ns`` (both null where nothing is known),
        ``exposed_waiting_ns`` (the part of the waiting during which the device did nothing else, each instant
        of a device counted once), ``last_rank`` (the rank that was waited for) and ``meeting`` (one number
        for the same collective on every rank), both null where that cannot be told, and ``basis`` (see
        ``ranks.waits``).
    """
    table = compared(run).rename({"kind": "collective"})
    exposed = [_exposed(trace, table.filter(pl.col("rank") == trace.rank)) for trace in run.traces]
    table = pl.concat(exposed) if exposed else pl.DataFrame(schema=SCHEMA)
    return table.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


@remembered
def compared(run: Run) -> pl.DataFrame:
    """The collectives of all ranks, paired (see ``ranks.pairing``), with what each waited
    (``ranks.waits``).
    """
    return waits(met(run).table, met(run).residuals)


@remembered
def met(run: Run) -> Paired:
    """The collectives of all ranks, paired, and the clocks that tell it."""
    table = pl.concat([pl.DataFrame(schema=COLLECTIVES), *(collectives(trace) for trace in run.traces)])
    sizes = [world_size(trace) for trace in run.traces]
    return paired(table, max((size for size in sizes if size), default=None), hosts_of(run))


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
