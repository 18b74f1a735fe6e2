"""The allocations that a snapshot and its history know, each with its lifetime; and what was reserved."""

from __future__ import annotations

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.memo import remembered
from kinetoscope.snapshot.model import ALLOC, FREE, FREED, MAP, SEGMENT, SEGMENT_FREE, UNMAP, Snapshot

# Columns of ``allocations``. Places are rows of ``Snapshot.entries``, counted over all devices.
ALLOCATIONS = {
    "device": pl.Int32,
    "address": pl.Int64,
    "bytes": pl.Int64,  # requested
    "start": pl.Int64,  # the place of its allocation; null: before the history
    "end": pl.Int64,  # of its release, after which its memory may be used again; null: after the snapshot
    "start_us": pl.Int64,  # on the wall clock, likewise
    "end_us": pl.Int64,
    "stack": pl.Int32,
    "pool": pl.Int32,
    "stream": pl.Int64,
    "context": pl.Int32,  # of ``Snapshot.contexts``; of what was there before the history: nothing
}
TAKES, GIVES = [SEGMENT, MAP], [SEGMENT_FREE, UNMAP]


@remembered
def allocations(snapshot: Snapshot) -> pl.DataFrame:
    """Every allocation whose beginning or end is in the history, and those that live at the snapshot. Of one
    that was there before, the stack is known where the allocator still knew it, and the history's stacks are
    not those of releases (``context="all"``)."""
    ended = FREED if snapshot.entries["action"].eq(FREED).any() else FREE
    calls = (
        snapshot.entries.with_row_index("place")
        .filter(pl.col("action").is_in([ALLOC, ended]))
        .with_columns(
            pl.col("action", "place", "time_us").shift(-1).over("device", "address").name.prefix("next_"),
            pl.col("action", "stack").shift(1).over("device", "address").name.suffix("_before"),
        )
    )
    is_released = pl.col("next_action").is_not_null()
    begun = calls.filter(pl.col("action") == ALLOC).select(
        "device", "address", "bytes",
        pl.col("place").alias("start"),
        pl.when(is_released).then("next_place").alias("end"),
        pl.col("time_us").alias("start_us"),
        pl.when(is_released).then("next_time_us").alias("end_us"),
        "stack", "pool", "stream", "context",
    )  # fmt: skip
    is_older = pl.col("action_before").ne_missing(ALLOC)
    ends = calls.filter(pl.col("action") == ended)
    seen = ends.filter(~is_older)  # to be released: with the stack of the allocation, or with their own
    of_releases = seen.is_empty() or not seen["stack"].equals(seen["stack_before"])
    older = ends.filter(is_older).select(
        "device", "address", "bytes",
        pl.lit(None).alias("start"),
        pl.col("place").alias("end"),
        pl.lit(None).alias("start_us"),
        pl.col("time_us").alias("end_us"),
        pl.lit(0).alias("stack") if of_releases else pl.col("stack"),
        "pool", "stream", context=0,
    )  # fmt: skip
    alive = begun.filter(pl.col("end").is_null())
    held = snapshot.segments.select("device", "segment", "pool", "stream").join(
        snapshot.blocks.drop("device", "bytes").filter(pl.col("state") < 2), on="segment"
    )
    never_seen = held.join(alive, on=["device", "address"], how="anti").select(
        "device", "address",
        pl.col("requested").alias("bytes"),
        *(pl.lit(None).alias(name) for name in ("start", "end", "start_us", "end_us")),
        "stack", "pool", "stream", context=0,
    )  # fmt: skip
    # What is no longer there at the snapshot was given back where no history was kept of it.
    gone = alive.join(held, on=["device", "address"], how="anti").select("start")
    begun = begun.join(gone, on="start", how="anti")
    # Those that begin in the history are the last, in the order in which they do.
    tables = [table.cast(ALLOCATIONS) for table in (never_seen, older, begun)]  # type: ignore[arg-type]
    return pl.concat(tables)


class Curve(Struct, frozen=True):
    """Bytes allocated on one device after each entry of the history, and before the first: place −1."""

    device: int
    table: pl.DataFrame  # place, time_us, held (bytes requested), reserved

    def at(self, place: int) -> tuple[int, int]:
        """Bytes allocated and reserved after the entry at a place."""
        row = self.table["place"].search_sorted(place, side="right") - 1
        held, reserved = self.table.select("held", "reserved").row(row)
        return int(held), int(reserved)


def curve(snapshot: Snapshot, device: int) -> Curve:
    """A device's allocated bytes over its history; at its end the snapshot's own segments sum to them."""
    known = allocations(snapshot).filter(pl.col("device") == device)
    entries = snapshot.entries.with_row_index("place").filter(pl.col("device") == device)
    entries = entries.with_columns(pl.col("place").cast(pl.Int64))
    taken = pl.when(pl.col("action").is_in(TAKES)).then("bytes")
    given = pl.when(pl.col("action").is_in(GIVES)).then(-pl.col("bytes"))
    steps = entries.select("place", "time_us", taken=pl.coalesce(taken, given, 0))
    reserved = int(snapshot.segments.filter(pl.col("device") == device)["bytes"].sum())
    first = pl.DataFrame(
        {"place": [-1], "time_us": [steps["time_us"].min() or 0], "taken": [0]}, schema=steps.schema
    )
    held = changes(known).select("place", held=pl.col("change").cum_sum())
    table = pl.concat([first, steps]).set_sorted("place").join_asof(held, on="place")
    table = table.select(
        "place",
        "time_us",
        pl.col("held").fill_null(0),
        reserved=pl.col("taken").cum_sum() + reserved - int(steps["taken"].sum()),
    )
    return Curve(device, table.rechunk())  # which is searched


def changes(known: pl.DataFrame) -> pl.DataFrame:
    """The changes of what allocations hold (``bytes`` from ``start`` to ``end``), in order: ``place``, −1
    before the history, and ``change``; at one place there may be several."""
    held = known.select(pl.col("bytes", "start", "end").cast(pl.Int64))
    begun = held.select(place=pl.col("start").fill_null(-1), change="bytes")
    ended = held.select(place="end", change=-pl.col("bytes")).drop_nulls()
    return pl.concat([begun, ended]).sort("place")


def alive(known: pl.DataFrame, place: int) -> pl.DataFrame:
    """The allocations that were there after the entry at a place."""
    return known.filter(
        pl.col("start").fill_null(-1) <= place, pl.col("end").is_null() | (pl.col("end") > place)
    )
