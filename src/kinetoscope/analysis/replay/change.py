"""Changes that a fix makes in the recorded steps; the replay finds what they save."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import polars as pl
from msgspec import Struct, field

from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.idle.launches import arrival_ns, launching_lanes
from kinetoscope.trace.model import Trace

DEVICE = {"id": pl.UInt32, "saved_ns": pl.Float64}
HOST = {"lane": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "share": pl.Float64}


def _none_of(schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    return pl.DataFrame(schema=schema)


class ReplayChange(Struct, frozen=True, eq=False, weakref=True):
    """The parts of one rank's recorded steps that go away. Several changes are joined by ``|``: nothing goes
    twice.

    Args:
        device: ``id`` (row of ``device_events``) and ``saved_ns``: the event is shortened by so much; by its
            whole duration: it is gone, its launch with it. Of an event named twice the larger saving counts.
        host: segments of host threads (``lane``, ``start_ns``, ``end_ns``) of which ``share`` goes away.
        waits: rows of ``host_events``: synchronising calls that no longer wait; their own time they cost.
        pause_ns: a device pauses no longer than this between what is ready to run.
        batch_share: the part of its time that a batch still takes the data loader's workers together; 0: they
            keep up with any step.
        both: the two that it joins, if it joins two: what is known of them need not be found again.
    """

    device: pl.DataFrame = field(default_factory=lambda: _none_of(DEVICE))
    host: pl.DataFrame = field(default_factory=lambda: _none_of(HOST))
    waits: pl.Series = field(default_factory=lambda: pl.Series("id", [], pl.UInt32))
    pause_ns: float = inf
    batch_share: float = 1.0
    both: tuple[ReplayChange, ReplayChange] | None = None

    def __or__(self, other: ReplayChange) -> ReplayChange:
        """Join two changes: the larger saving of an event; where segments overlap the larger share."""
        waits = self.waits if other.waits.is_empty() else other.waits
        if len(self.waits) and len(other.waits):
            waits = pl.concat([self.waits, other.waits]).unique().sort()
        return ReplayChange(
            _both(self.device, other.device),
            _both(self.host, other.host),
            waits,
            min(self.pause_ns, other.pause_ns),
            min(self.batch_share, other.batch_share),
            (self, other),
        )

    @property
    def is_empty(self) -> bool:
        tables = self.device, self.host, self.waits
        return self.pause_ns == inf and self.batch_share == 1 and all(table.is_empty() for table in tables)


def _both(one: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    return other if one.is_empty() else one if other.is_empty() else pl.concat([one, other])


NOTHING = ReplayChange()
Changes = Mapping[int, ReplayChange]  # by rank
# A data loader that keeps up: no step waits for it.
NO_LATE_BATCHES = ReplayChange(batch_share=0.0)


def combined(first: Changes, second: Changes) -> Changes:
    """Both changes on every rank; no time is taken away twice."""
    both = {rank: first[rank] | change for rank, change in second.items() if rank in first}
    return {**first, **second, **both}


def shorten(ids: pl.Series, saved_ns: pl.Series) -> ReplayChange:
    """Device events shortened; of an event named twice the larger saving counts."""
    table = pl.DataFrame([ids.alias("id"), saved_ns.alias("saved_ns")], schema_overrides=DEVICE)
    return ReplayChange(device=table.filter(table["saved_ns"] > 0))


def without_host(events: pl.DataFrame, share: float = 1.0) -> ReplayChange:
    """Host events (rows of ``host_events``) of whose time ``share`` goes away, or their own ``share``."""
    own = pl.col("share") if "share" in events.columns else pl.lit(share)
    segments = events.select("lane", "start_ns", END, share=own)
    return ReplayChange(host=segments.cast(pl.Schema(HOST)).filter(pl.col("share") > 0))


def in_a_row(calls: pl.DataFrame, apart_ns: int) -> pl.DataFrame:
    """Host events (``lane``, ``start_ns``, ``duration_ns``) with the time until the next of their thread,
    where that is not longer than ``apart_ns``: what a loop takes between its calls."""
    following = pl.col("start_ns").shift(-1).over("lane") - pl.col("start_ns")
    until = following - pl.col("duration_ns")
    return calls.sort("lane", "start_ns").with_columns(
        duration_ns=pl.when(until.is_between(0, apart_ns)).then(following).otherwise("duration_ns")
    )


def without_idle(trace: Trace, segments: pl.DataFrame, share: float = 1.0) -> ReplayChange:
    """Segments of a device's idle time (``start_ns``, ``end_ns``) in which no thread kept it waiting: what
    the host did meanwhile, as much sooner as a launch takes to arrive, goes away: ``share`` of it, or their
    own ``share``."""
    ahead = arrival_ns(trace)
    own = pl.col("share") if "share" in segments.columns else pl.lit(share)
    each = segments.select(pl.col("start_ns") - ahead, pl.col("end_ns") - ahead, share=own.cast(pl.Float64))
    each = each.filter((each["end_ns"] > each["start_ns"]) & (each["share"] > 0))
    return ReplayChange(host=launching_lanes(trace).to_frame().join(each, how="cross"))


def at_once(pause_ns: float) -> ReplayChange:
    """Work that is ready follows other work with no longer a pause."""
    return ReplayChange(pause_ns=pause_ns)


def no_wait(calls: pl.Series) -> ReplayChange:
    """Synchronising calls, by their rows in ``host_events``, that no longer wait."""
    return ReplayChange(waits=calls.rename("id").cast(pl.UInt32).unique().sort())


def faster_loader(batch_share: float) -> ReplayChange:
    """The data loader's workers together take this share of their time for a batch."""
    return ReplayChange(batch_share=batch_share)


def merge_launches(trace: Trace, chains: pl.DataFrame) -> ReplayChange:
    """Device events of each chain become one. ``chains``: ``id`` (row of ``device_events``), ``chain`` and
    ``saved_ns``; the ops that launched all but the first cost the host nothing any more."""
    events = chains.join(trace.device_events.select("id", "start_ns", "launch", "op"), on="id")
    place = pl.int_range(pl.len()).over("chain")
    others = events.sort("chain", "start_ns").filter(place > 0).select(pl.coalesce("op", "launch"))
    calls = trace.host_events[others.to_series().drop_nulls().unique().sort()]
    return shorten(events["id"], events["saved_ns"]) | without_host(calls)
