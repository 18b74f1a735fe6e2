"""How long each rank waited in each collective, for whom, and how much of that nothing hid.

A collective's kernel runs on every rank from the moment that rank arrives until the data has moved; it is
busy all that time. The rank that arrives last does not wait. This needs the traces of the other ranks; where
they are absent, the shortest collective of the same kind and size in the one trace stands for the transfer,
and ``basis`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from msgspec.structs import replace

from kinetoscope.analysis.collectives.pairing import Paired, paired
from kinetoscope.analysis.collectives.recorded import (
    COLLECTIVES,
    PAIR,
    SENDER,
    TOGETHER,
    collectives,
    hosts_of,
    world_size,
)
from kinetoscope.analysis.kernels.work import DEVICE, work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

# What a rank came later than the next one before it may be said to be last: its clock tells no more.
LEAST_NS = 1_000
APART_NS = 10_000  # by which ends that belong together lie apart (7 µs on eight ranks of one host)
BUSY = {"rank": pl.Int32, "device": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
EXPOSED = {"exposed_waiting_ns": pl.Int64, "exposed_transfer_ns": pl.Int64}
RANKS_AT_ONCE = 32


@remembered
def paired_of(run: LoadedRun) -> Paired:
    """The collectives of all ranks, paired, with what each waited (see ``with_waiting``)."""
    tables = [pl.DataFrame(schema=COLLECTIVES), *map(collectives, run.traces)]
    sizes = [size for trace in run.traces if (size := world_size(trace))]
    return waited(pl.concat(tables), max(sizes, default=None), hosts_of(run))


@remembered
def collectives_of(run: LoadedRun) -> Paired:
    """The same, with how much of it nothing hid (see ``with_exposed``)."""
    paired = paired_of(run)
    traces = run.traces if len(paired.table) else ()  # most runs are of one device, and have no collectives
    computed = [
        intervals.union(work(trace).filter(pl.col("part") != "communication"), DEVICE).select(list(BUSY))
        for trace in traces
    ]
    windows = {trace.rank: (window(trace).start_ns, window(trace).end_ns) for trace in traces}
    return with_exposed(paired, pl.concat([pl.DataFrame(schema=BUSY), *computed]), windows)


def waiting(run: LoadedRun) -> pl.DataFrame:
    """One row per communication kernel, of all ranks (see ``waited``)."""
    return collectives_of(run).table


def exposed_waiting(run: LoadedRun) -> pl.DataFrame:
    """Per ``rank`` and ``device``: ``exposed_waiting_ns``, the time of its window in which some collective
    waited for another rank while the device computed and copied nothing."""
    known = waiting(run).drop_nulls("waiting_ns")
    total = known.group_by(DEVICE, maintain_order=True).agg(pl.sum("exposed_waiting_ns"))
    return total.filter(pl.col("exposed_waiting_ns") > 0)


def waits(run: LoadedRun, trace: Trace) -> pl.DataFrame:
    """The collectives of one rank that waited for another: rows of ``work`` with ``waiting_ns`` and
    ``saved_ns``, how long of that, inside the window, the device did nothing else."""
    own = waiting(run).filter((pl.col("rank") == trace.rank) & (pl.col("waiting_ns") > 0))
    found = own.select("id", "waiting_ns", saved_ns="exposed_waiting_ns")
    return work(trace).join(found, on="id", maintain_order="left")


def waited(table: pl.DataFrame, world: int | None, hosts: Mapping[int, str]) -> Paired:
    """Pair the collectives of all ranks, and find what each rank waited in them (``with_waiting``)."""
    found = paired(table, world, hosts)
    return replace(found, table=with_waiting(found.table, found.residuals))


def with_exposed(found: Paired, computed: pl.DataFrame, windows: Mapping[int, tuple[int, int]]) -> Paired:
    """Add ``exposed_waiting_ns`` and ``exposed_transfer_ns``: how much of both the device did nothing else
    inside its window; null where what it waited is not known. ``computed``: when each ``rank`` and ``device``
    computed or copied, merged; ``windows``: by rank, from when to when, ns.

    Each instant of a device counts once: of several streams that wait the one's that began first; where one
    waits while another moves data, it is waiting.
    """
    bounds = pl.DataFrame(
        [(rank, *bound) for rank, bound in windows.items()],
        {"rank": pl.Int32, "low": pl.Int64, "high": pl.Int64},
        orient="row",
    )
    table = by_start(found.table)
    ranks = table["rank"].unique(maintain_order=True)
    # Some ranks at a time: what is computed for them takes several times their collectives' memory.
    each = [
        _exposed(
            table.filter(of).select(*DEVICE, "start_ns", "end_ns", "waiting_ns"), computed.filter(of), bounds
        )
        for first in range(0, len(ranks), RANKS_AT_ONCE)
        for of in [pl.col("rank").is_in(ranks[first : first + RANKS_AT_ONCE].implode())]
    ]
    return replace(found, table=table.hstack(pl.concat([pl.DataFrame(schema=EXPOSED), *each], rechunk=True)))


def by_start(table: pl.DataFrame) -> pl.DataFrame:
    """Collectives by rank, device and start; no copy where that is their order."""
    rows = table.select(pl.arg_sort_by(*DEVICE, "start_ns", "id")).to_series()
    return table if rows.is_sorted() else table[rows]


def _exposed(table: pl.DataFrame, computed: pl.DataFrame, bounds: pl.DataFrame) -> pl.DataFrame:
    """The columns of ``EXPOSED`` for each row of a table that is sorted by device and start."""
    table = table.join(bounds, on="rank", how="left", maintain_order="left")
    table = table.with_columns(until=pl.col("start_ns") + pl.col("waiting_ns").fill_null(0))
    waits = table.select(*DEVICE, "start_ns", end_ns="until")
    is_known = table["waiting_ns"].is_not_null()
    busy = intervals.union(pl.concat([computed.select(waits.columns), waits]), DEVICE)

    def alone(covered: pl.DataFrame, begin: str, end: str) -> pl.Series:
        """From ``begin``, or from where an earlier row's ``end`` was, to ``end``, less what is covered."""
        before = pl.col(end).cum_max().shift(1).over(DEVICE).fill_null(0)
        begun = pl.max_horizontal(begin, before)
        edges = [
            table.select(*DEVICE, at=edge.clip(pl.col("low"), pl.col("high")))
            for edge in (begun, pl.max_horizontal(begun, end))
        ]
        instants = pl.concat(edges)
        free = instants["at"] - intervals.covered_until(covered, instants, DEVICE)
        return (free[len(table) :] - free[: len(table)]).set(~is_known, None)

    waiting, transfer = alone(computed, "start_ns", "until"), alone(busy, "until", "end_ns")
    return pl.DataFrame(dict(zip(EXPOSED, (waiting, transfer), strict=True)), EXPOSED)


def with_waiting(table: pl.DataFrame, residuals: Mapping[int, float | None]) -> pl.DataFrame:
    """Adds to a paired table (see ``pairing``) what ranks waited.

    By semantics (see ``collectives``). Together: all end at one instant, so what a rank's collective took
    longer than the shortest is waiting, whatever its clock says. A pair's ends too, unless the sender leaves
    early, and then its end is the shorter. Arrival: until the last rank had come. Sender: until the sender
    had; it does not wait, and is of those that leave first the one that came last.

    Where a collective lacks ranks, it is unknown who came last: one of those may have. What its collectives
    take longer than the shortest of their kind in their group is waiting all the same.

    Returns:
        ``transfer_ns``, ``waiting_ns``, ``last_rank`` (null where it is not known, or no rank waited longer
        than clocks and ends can tell), ``sender`` (of a broadcast or the like; else meaningless), ``skew_ns``
        (from the first rank's arrival to the last's) and ``basis``: ``ranks``, ``some ranks`` (the collective
        lacks some), ``trace`` (compared with the shortest of its kind on the same rank), or null.
    """
    semantics, instance = pl.col("semantics"), pl.col("instance")
    arrival = pl.col("start_ns") - pl.col("clock_ns")
    left = pl.col("end_ns") - pl.col("clock_ns")
    table = table.with_columns(
        # What shows when a rank arrived: the clock's readings, or how long it was there.
        arrival=pl.when(semantics.is_in([TOGETHER, PAIR]))
        .then(-pl.col("duration_ns"))
        .otherwise(arrival),
        residual=pl.col("rank").replace_strict(
            {rank: found or 0.0 for rank, found in residuals.items()}, default=0.0, return_dtype=pl.Float64
        ).max().over("instance"),
    )  # fmt: skip
    first = left <= left.min().over("instance") + pl.max_horizontal(pl.lit(APART_NS), "residual")
    came = pl.when(first).then(arrival)
    table = table.with_columns(
        sender=pl.col("rank").sort_by(came, "rank", descending=[True, False], nulls_last=True)
        .first().over("instance"),
    )  # fmt: skip
    came = (
        pl.when(semantics == SENDER)
        .then(pl.col("arrival").filter(pl.col("rank") == pl.col("sender")).first().over("instance"))
        .otherwise(pl.col("arrival").max().over("instance"))
    )
    whole = instance.is_not_null() & pl.col("complete")
    waited = (came - pl.col("arrival")).clip(0, pl.col("duration_ns"))
    shortest = pl.min("duration_ns")
    some = instance.is_not_null() & ~pl.col("complete") & (semantics == TOGETHER)
    alone = instance.is_null() & pl.col("recorded") & (pl.len().over("rank", "signature", "group") > 1)
    table = table.with_columns(
        transfer_ns=pl.when(whole)
        .then(
            pl.when(semantics.is_in([TOGETHER, PAIR]))
            .then(shortest.over("instance"))
            .otherwise(pl.col("duration_ns") - waited)
        )
        .when(some)
        .then(pl.col("duration_ns").filter(some).min().over("group", "signature"))
        .when(alone)
        .then(shortest.over("rank", "group", "signature")),
        basis=pl.when(whole).then(pl.lit("ranks")).when(some).then(pl.lit("some ranks")).when(alone)
        .then(pl.lit("trace")),
    )  # fmt: skip
    arrivals = pl.col("arrival").sort(descending=True)
    second = pl.when(semantics == SENDER).then(pl.min("arrival")).otherwise(arrivals.get(1, null_on_oob=True))
    apart = (came - second.over("instance")) > pl.max_horizontal(pl.lit(LEAST_NS), "residual")
    latest = (
        pl.when(semantics == SENDER)
        .then("sender")
        .otherwise(
            pl.col("rank").sort_by("arrival", "rank", descending=[True, False]).first().over("instance")
        )
    )
    return table.with_columns(
        waiting_ns=pl.col("duration_ns") - pl.col("transfer_ns"),
        last_rank=pl.when(whole & apart).then(latest),
        skew_ns=pl.when(whole).then((pl.max("arrival") - pl.min("arrival")).over("instance")),
    ).drop("arrival", "residual")
