"""Pairs of the same collective on every rank, found by process group, signature and end; and the ranks'
clocks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.collectives.recorded import (
    ARRIVAL,
    BATCHED,
    OWN,
    PAIR,
    REPEATED,
    TOGETHER,
    ways,
)
from kinetoscope.statistics.distribution import median
from kinetoscope.trace.schema import whole

SHIFTS = 16  # by how many collectives a rank's sequence may lie off another's of the same steps
# Ends of one collective lie within microseconds of each other (7 µs on eight ranks of one host); ends of
# wrongly paired ones as far apart as steps differ.
SCATTER_NS = 100_000
# Of the collectives of the shorter sequence so many must end together; two at the least, if there are two.
LEAST_SHARE = 1 / 3
# An alignment that pairs such a share of what the best one does is as good. Where a step repeats one
# collective ten times, a shift by one still pairs nine of ten.
AS_GOOD = 0.98
# Where fewer end together, if steps of one name are the same, alignments are tried in which they are not.
NAMED = 0.9
ENOUGH = 6  # pairs, from which a drift can be distinguished from their scatter
FASTEST = 5e-4  # no clock drifts by more: oscillators are good to 100 ppm

Ends = Sequence[tuple[str, str, int]]  # step, what it is like, end_ns: a group's collectives, in order
Pair = tuple[int, int]  # when on the one clock, and how far the other is ahead


class Clock(NamedTuple):
    """How far a clock is ahead of the reference's: ``ahead_ns`` at its own ``at_ns``, ``drift`` more a ns."""

    ahead_ns: float = 0.0
    drift: float = 0.0
    at_ns: int = 0

    def ahead(self, at_ns: float) -> float:
        return self.ahead_ns + (at_ns - self.at_ns) * self.drift

    def against(self, other: Clock) -> Clock:
        """This clock, of which the reference is now another one."""
        return Clock(self.ahead_ns - other.ahead(self.at_ns), self.drift - other.drift, self.at_ns)


# All of a filtered or sorted table is copied: these columns are asked for.
_ALIGNED = ["group", "rank", "semantics", "signature", "sequence", "step", "start_ns", "end_ns"]


def clocks(table: pl.DataFrame, hosts: Mapping[int, str]) -> dict[int, Clock]:
    """Each rank's clock against the first rank's, by the ``collectives`` of all ranks but broadcasts and the
    like, whose ends tell nothing; those that no group and no host leads to are left out."""
    usable = table.select(_ALIGNED).filter(~table["before"])
    together, sent = (usable.filter(pl.col("semantics") == one) for one in (TOGETHER, PAIR))
    # Without collectives that end at one instant, those count that end nearly so.
    sequences = _sequences(usable if together.is_empty() else together)
    transfers = _sequences(sent)
    everyone = {rank for members in (*sequences, *transfers) for rank in members}
    found = {min(everyone): Clock()} if everyone else {}
    grown = True
    while grown:
        grown = False
        for members in sequences:
            known = [rank for rank in members if rank in found]
            if not known or len(known) == len(members):
                continue
            reference = max(known, key=lambda rank: len(members[rank]))
            ends = members[reference].rows()
            for rank in members.keys() - known:
                if clock := against(ends, members[rank].rows()):
                    ahead = clock.ahead_ns + found[reference].ahead(clock.at_ns - clock.ahead_ns)
                    found[rank] = Clock(ahead, clock.drift + found[reference].drift, clock.at_ns)
                    grown = True
        if not grown:
            # Ranks of a host share its clock.
            known = {hosts[rank]: clock for rank, clock in found.items() if hosts.get(rank)}
            left = [rank for rank in everyone if rank not in found and hosts.get(rank) in known]
            more = {rank: known[hosts[rank]] for rank in left} or _by_transfers(transfers, found)
            found |= more
            grown = bool(more)
    return found


def _by_transfers(
    sequences: Sequence[Mapping[int, pl.DataFrame]], found: Mapping[int, Clock]
) -> dict[int, Clock]:
    """The clock of a rank that only sends and receives, whose ends lie apart where a receiver came late: what
    was sent is there after it was sent, both ways. Where a clock may agree with the other, it does."""
    for members in sequences:
        for reference, rank in product(members.keys() & found.keys(), members.keys() - found.keys()):
            late = [_latencies(members, *way) for way in ((reference, rank), (rank, reference))]
            if not all(late):
                continue
            least, most = -min(late[1]), min(late[0])
            ahead = 0.0 if least <= SCATTER_NS and most >= -SCATTER_NS else (least + most) / 2
            known, at_ns = found[reference], members[rank]["end_ns"][0]
            return {rank: Clock(known.ahead_ns + ahead, known.drift, at_ns)}
    return {}


def _latencies(members: Mapping[int, pl.DataFrame], source: int, target: int) -> list[int]:
    """Delays from the end of each send to the end of its receive, ns; empty where their numbers differ."""
    sent, come = (
        [(like, end) for _, like, end in members[rank].rows() if ways(like) == [(source, target)]]
        for rank in (source, target)
    )
    if [like for like, _ in sent] != [like for like, _ in come]:
        return []
    return [after - before for (_, before), (_, after) in zip(sent, come, strict=True)]


def _sequences(table: pl.DataFrame) -> list[dict[int, pl.DataFrame]]:
    """Each rank's collectives (``Ends``) by process group, in order; the larger groups first. They are tables
    until they are looked at: as objects of Python a thousand ranks' take more memory than all else."""
    found: dict[str, dict[int, pl.DataFrame]] = {}
    like = pl.concat_str("signature", "sequence").cast(REPEATED).alias("like")
    listed = table.select("group", "rank", "step", like, "end_ns", "start_ns").sort("start_ns")
    each = listed.drop("start_ns").partition_by("group", "rank", as_dict=True, include_key=False)
    for (group, rank), ends in sorted(each.items()):
        found.setdefault(group, {})[rank] = ends
    return sorted(found.values(), key=len, reverse=True)


def against(reference: Ends, other: Ends) -> Clock | None:
    """One rank's clock against another's: of all alignments of their collectives, by the one in which most
    end together; None where too few do in each. Of alignments that are as good (steps that take exactly as
    long as each other) it is the one in which the clocks differ least.

    Steps of one name are the same, unless collectives end together better if they are not: a worker that was
    started again numbers its steps anew."""
    share, found = _aligned(reference, other)
    if share < NAMED:
        without, again = _aligned(*([("", like, end) for _, like, end in one] for one in (reference, other)))
        found = again if without > share else found
    return found


def _aligned(reference: Ends, other: Ends) -> tuple[float, Clock | None]:
    """The clock by the best alignment, with the share of collectives that end together in that."""
    shared = {step for step, _, _ in reference} & {step for step, _, _ in other}
    common = {like for _, like, _ in reference} & {like for _, like, _ in other}
    reference, other = (
        [one for one in ends if one[1] in common and (not shared or one[0] in shared)]
        for ends in (reference, other)
    )
    ways: list[tuple[int, Clock]] = []
    for shift in sorted(range(-SHIFTS, SHIFTS + 1), key=abs):
        pairs = _pairs(reference, other, shift)
        ways += [(bisect_right(_off(pairs, line), SCATTER_NS), line) for line in _lines(pairs)]
        if shift == -1 and any(agreeing == len(reference) for agreeing, _ in ways):
            break  # all there are, and no neighbour does as well
    most = max((agreeing for agreeing, _ in ways), default=0)
    fewer = min(len(reference), len(other))
    if most < max(LEAST_SHARE * fewer, min(2, fewer)) or not most:
        return 0.0, None
    good = (line for agreeing, line in ways if agreeing >= AS_GOOD * most)
    return most / fewer, min(good, key=lambda line: abs(line.ahead_ns))


def _pairs(reference: Ends, other: Ends, shift: int) -> list[Pair]:
    pairs = zip(reference[max(0, -shift) :], other[max(0, shift) :], strict=False)
    return [(b[2], b[2] - a[2]) for a, b in pairs if a[:2] == b[:2]]


def _off(pairs: Sequence[Pair], line: Clock) -> list[float]:
    """How far off the line they lie, ns, in order."""
    level, drift, since = line
    return sorted(abs(ahead - (level + (at - since) * drift)) for at, ahead in pairs)


def _lines(pairs: Sequence[Pair]) -> list[Clock]:
    """A constant, and a line through the medians of the first and the last third (Tukey's resistant line)."""
    if not pairs:
        return []
    constant = Clock(median([ahead for _, ahead in pairs]), 0.0, int(median([at for at, _ in pairs])))
    third = len(pairs) // 3
    if len(pairs) < ENOUGH:
        return [constant]
    (early, before), (late, after) = (
        (median([at for at, _ in part]), median([ahead for _, ahead in part]))
        for part in (pairs[:third], pairs[-third:])
    )
    drift = (after - before) / (late - early) if late > early else 0.0
    if abs(drift) > FASTEST:
        return [constant]
    level = median([ahead - drift * (at - constant.at_ns) for at, ahead in pairs])
    return [constant, Clock(level, drift, constant.at_ns)]


def refined(
    pairs: Mapping[int, pl.DataFrame], hosts: Mapping[int, str]
) -> dict[int, tuple[Clock, float | None]]:
    """The clock of each rank, and its residual: how far off nine of ten of its ``pairs`` (when a collective
    ended, and how far that was after where the other ranks say) lie, ns; None where they are too few to tell.

    Ranks of a host have one clock, unless one's collectives end elsewhere; clocks that differ by no more than
    the residual are one.
    """
    fits = {rank: _fitted(sorted(own.rows())) for rank, own in pairs.items()}
    counts = {rank: len(own) for rank, own in pairs.items()}
    for host in {hosts.get(rank, "") for rank in pairs} - {""}:
        shared = [rank for rank in pairs if hosts.get(rank) == host]
        pooled = sorted(one for rank in shared for one in pairs[rank].rows())
        fit = _fitted(pooled)
        agreeing = [rank for rank in shared if _spread(_off(pairs[rank].rows(), fit[0])) <= SCATTER_NS]
        fits |= dict.fromkeys(agreeing, fit)
        counts |= dict.fromkeys(agreeing, len(pooled))
    coarsest = max((spread for _, spread in fits.values()), default=0.0)
    found: dict[int, tuple[Clock, float | None]] = {}
    for rank, (line, spread) in fits.items():
        ends = pairs[rank].select(pl.col("end_ns").min(), last=pl.col("end_ns").max()).row(0)
        same = all(abs(line.ahead(at)) <= coarsest for at in ends)
        found[rank] = Clock() if same else line, spread if counts[rank] > 2 else None
    return found


def _fitted(pairs: Sequence[Pair]) -> tuple[Clock, float]:
    fits = [(line, _off(pairs, line)) for line in _lines(pairs)]
    line, off = max(fits, key=lambda fit: (bisect_right(fit[1], SCATTER_NS), -_spread(fit[1])))
    return line, _spread(off)


def _spread(off: Sequence[float]) -> float:
    return off[min(len(off) - 1, int(0.9 * len(off)))]


# The ranks of one collective end together (within 7 µs on eight ranks of one host); further apart than this,
# or than half the time to a rank's next one, they are not the same.
ENDS_TOGETHER_NS = 1_000_000
UNKNOWN: Mapping[int, str] = MappingProxyType({})
LEAST_NS = 10_000  # below which ends of the same collective may lie apart however near the next one is


class Paired(Struct, frozen=True):
    """Args:
    table: ``collectives`` of all ranks, with ``clock_ns`` (how far its rank's clock is ahead then; null where
        that is not known), ``instance`` (one number for the same collective on every rank; null where none
        is known), ``present`` (ranks in the collective) and ``complete`` (all of the group are).
    clocks: of each rank, on the time since the first collective of all began.
    residuals: of each rank, ns; None where too few collectives tell."""

    table: pl.DataFrame
    clocks: Mapping[int, Clock]
    residuals: Mapping[int, float | None]


def paired(table: pl.DataFrame, world: int | None, hosts: Mapping[int, str] = UNKNOWN) -> Paired:
    """Pair the ``collectives`` of all ranks. ``world``: how many ranks the run had; None: those that are
    here. ``hosts``: where each rank ran, as far as that is known."""
    if table["rank"].n_unique() < 2:
        return _alone(table)
    # From the first of all on, so that means of times are exact to the nanosecond.
    began = table["start_ns"].min() or 0
    times = pl.col("start_ns", "end_ns")
    table = table.with_row_index("row").with_columns(times - began, _signatures(table))
    found = clocks(table, hosts)
    table = _met(table, found)
    met = table.select("rank", "instance", "end_ns", "clock_ns").filter(
        table["instance"].is_not_null() & (table["semantics"] == TOGETHER)
    )
    common = (pl.col("end_ns") - pl.col("clock_ns")).median().over("instance")
    ahead = (pl.col("end_ns") - common).round(mode="half_to_even").cast(pl.Int64)
    each = met.select("rank", "end_ns", ahead=ahead).partition_by("rank", as_dict=True, include_key=False)
    fits = refined({rank: own for (rank,), own in each.items()}, hosts)
    found |= {rank: clock for rank, (clock, _) in fits.items()}
    first = found[min(found)] if found else Clock()
    found = {rank: clock.against(first) for rank, clock in found.items()}
    table = _met(table.drop("clock_ns", "instance"), found)
    here = table["rank"].n_unique()
    expected = (
        pl.when(pl.col("semantics") == PAIR)
        .then(pl.lit(2, pl.Int64))
        .when("recorded")
        .then("size")
        .otherwise(pl.lit(world or here))
    )
    present = pl.col("rank").n_unique().over("instance")
    known = pl.col("instance").is_not_null()
    return Paired(
        table.with_columns(
            present=pl.when(known).then(present),
            complete=pl.when(known).then(present >= expected.fill_null(here)),
        )
        .with_columns(times + began)
        .drop("row"),
        found,
        {rank: fits[rank][1] if rank in fits else None for rank in found},
    )


def _signatures(table: pl.DataFrame) -> pl.Series:
    """The text that is the same on both ends of each: few texts, of many rows."""
    few = table.select("signature", "rank").unique()
    like = (
        pl.col("signature").cast(pl.String).str.replace_all(OWN, pl.col("rank").cast(pl.String), literal=True)
    )
    like = like.str.split(BATCHED).list.sort().list.join(BATCHED)  # both ends in one order
    few, rows = few.with_columns(like=like.cast(REPEATED)), table.select("signature", "rank")
    each = rows.join(few, on=rows.columns, how="left", nulls_equal=True, maintain_order="left")
    return each["like"].alias("signature")


def _alone(table: pl.DataFrame) -> Paired:
    """Nothing meets; the only clock is the reference."""
    found = {rank: Clock() for rank in table["rank"].unique()}
    unknown = pl.lit(None, pl.UInt32)
    return Paired(
        table.with_columns(
            clock_ns=pl.lit(0, pl.Int64), instance=unknown, present=unknown, complete=pl.lit(None, pl.Boolean)
        ),
        found,
        dict.fromkeys(found),
    )


_COMPARED = ["row", "rank", "group", "signature", "sequence", "semantics", "step", "before", "start_ns",
             "end_ns", "clock_ns"]  # fmt: skip


def _met(table: pl.DataFrame, found: Mapping[int, Clock]) -> pl.DataFrame:
    """Add ``clock_ns`` and ``instance``."""
    fits = pl.DataFrame(
        [(rank, *clock) for rank, clock in found.items()],
        schema={"rank": pl.Int32, "ahead": pl.Float64, "drift": pl.Float64, "at": pl.Int64},
        orient="row",
    )
    ahead = pl.col("ahead") + (pl.col("end_ns") - pl.col("at")) * pl.col("drift")
    # Joined are the columns that are asked for: a join copies all that it is given.
    clocks = table.select("rank", "end_ns").join(fits, on="rank", how="left", maintain_order="left")
    table = table.with_columns(clocks.select(clock_ns=ahead.round().cast(pl.Int64)))
    tells = pl.col("semantics").is_in([TOGETHER, ARRIVAL])
    by_end = _by_end(table.select(_COMPARED).filter(tells & pl.col("clock_ns").is_not_null()))
    rest = table.select(_COMPARED).filter(~tells).join(by_end, on="row", how="anti")
    by_order = _by_order(rest, table, by_end)
    shift = whole(by_end["instance"].max()) + 1
    met = pl.concat([by_end, by_order.with_columns(pl.col("instance") + shift)])
    return table.with_columns(
        table.select("row").join(met, on="row", how="left", maintain_order="left")["instance"]
    )


def _by_end(table: pl.DataFrame) -> pl.DataFrame:
    """``row`` and ``instance`` of collectives of one group and signature that end together, once per rank, on
    two or more ranks."""
    common = ["group", "signature", "sequence"]
    end = (pl.col("end_ns") - pl.col("clock_ns")).alias("end")
    table = table.select("row", "rank", *common, "semantics", end).sort(*common, "rank", "end")
    # Not one expression: a window inside a window yields 0 on Polars 2.1.
    table = table.with_columns(apart=pl.col("end").diff().over(*common, "rank"))
    within = pl.min_horizontal(pl.col("apart").min().over(common) // 2, pl.lit(ENDS_TOGETHER_NS))
    table = table.with_columns(within=within.clip(LEAST_NS)).sort(*common, "end")
    follows = (pl.col("end").diff() <= pl.col("within")).fill_null(False)
    same = pl.all_horizontal(*(pl.col(key) == pl.col(key).shift(1) for key in common)).fill_null(False)
    table = table.with_columns(instance=(~(follows & same)).cum_sum().cast(pl.UInt32))
    ranks = pl.col("rank").n_unique().over("instance")
    return table.filter((ranks == pl.len().over("instance")) & (ranks > 1)).select("row", "instance")


def _by_order(table: pl.DataFrame, everything: pl.DataFrame, by_end: pl.DataFrame) -> pl.DataFrame:
    """``row`` and ``instance`` of those whose ends tell nothing: by their order since the last collective of
    the group that ended together, or in the step; none where their numbers differ."""
    known = everything.select("row", "rank", "group", "start_ns").join(by_end, on="row")
    anchors = known.select("rank", "group", "start_ns", anchor="instance")
    table = table.filter(~pl.col("before")).sort("start_ns")
    table = table.join_asof(
        anchors.sort("start_ns"), on="start_ns", by=["rank", "group"], check_sortedness=False
    )
    place = ["group", "signature", "sequence", "step", "anchor"]
    table = table.with_columns(
        nth=pl.col("row").cum_count().over("rank", *place), count=pl.len().over("rank", *place)
    )
    agreed = (pl.col("count").n_unique().over(place) == 1) & (pl.col("rank").n_unique().over(place) > 1)
    met = pl.struct(*place, "nth").rank("dense").cast(pl.UInt32)
    return table.filter(agreed).select("row", instance=met)
