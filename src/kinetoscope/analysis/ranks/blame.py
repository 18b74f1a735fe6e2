"""Which rank made the others wait, and what it did meanwhile that its peers did not.

Between two collectives each rank goes its own way (``own_ns``): it computes, or its device is idle for a
cause. The rank that comes last into a collective took longer on that way than its peers, and what of it took
longer says why; or it started late, since it had waited in another group for somebody else: then that one is
to blame.

A device that is idle longer than its peers' need not mean that its host was slower: a host that is late once
is so at every launch after, until both wait for their devices. What a way took longer for the host's sake is
therefore no more than its host took longer; what is left had been lost before.

Of a pipeline's sends and receives the two ends do not do the same, and the longer way is nobody's fault.
There a stage's ways are too long by the share by which its whole step is longer than its peers' (the lower
median); all other waiting is the pipeline's bubbles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.ranks.collectives import PAIR, SENDER, TOGETHER

# Of a lateness so much must be one rank's doing, for one cause.
MOST = 0.5
# Lateness below this is nobody's fault: launches and kernels of equal ranks differ by as much.
NEGLIGIBLE_NS = 20_000
START = "recording's start"
FAR = 1000  # meetings to go back over

BLAMED = {
    "meeting": pl.UInt32,
    "step": pl.String,
    "start_ns": pl.Int64,
    "present": pl.UInt32,
    "last": pl.Int32,
    "late_ns": pl.Int64,
    "waited_ns": pl.Int64,
    "culprit": pl.Int32,
    "where": pl.String,
    "cause": pl.String,
    "excess_ns": pl.Int64,
    "lost_ns": pl.Int64,
    "usual_host_ns": pl.Int64,
}


class _Meeting(NamedTuple):
    """Who came last into a meeting, how late, and by how much its way (from ``previous``) took longer."""

    meeting: int
    step: str
    start_ns: int
    ranks: frozenset[int]
    previous: int | None
    is_first: bool
    joins: bool  # nobody leaves before all have come; who broadcasts or sends does
    is_pair: bool
    last: int
    late_ns: float
    waited_ns: int
    excess_ns: float
    behind_ns: float  # the last one's launch after the others'
    usual_host_ns: float  # what its peers' hosts took on that way
    cause: str | None


def blamed(
    table: pl.DataFrame, parts: Sequence[str], device: Sequence[str], cold: Sequence[str] = ()
) -> pl.DataFrame:
    """One row a meeting in which somebody came late.

    Args:
        table: collectives of all ranks with what they waited (``waits``), ``own_ns`` and its ``parts``, and
            ``host_ns``.
        device: those of the parts that may be longer while the host took no longer.
        cold: steps that a way which begins in one belongs to.

    Returns:
        ``meeting``, ``step``, ``start_ns`` (on the reference's clock), ``present`` (ranks), ``last``,
        ``late_ns`` (after the median of the others), ``waited_ns`` (by all), ``culprit`` (null where it
        cannot be told), ``where`` (the step in which it lost the time), ``cause`` (one of ``parts``: what of
        the culprit's way took longer than its peers', at its peers' median; ``START``: what a recording
        begins with, when ranks wait for each other's profilers) and ``excess_ns`` (by how much its way did);
        ``lost_ns``, by how much the last one's own way did; ``usual_host_ns``, what its peers' hosts took on
        theirs.
    """
    found: dict[int, _Meeting] = {}
    lines: list[tuple[object, ...]] = []
    for one in _arrivals(table, parts, device, cold):
        found[one.meeting] = one
        if one.is_first or one.late_ns <= NEGLIGIBLE_NS:
            continue
        rank, step, cause, excess = _culprit(one, found)
        known = (
            one.meeting,
            one.step,
            one.start_ns,
            len(one.ranks),
            one.last,
            round(one.late_ns),
            one.waited_ns,
        )
        lost = round(min(one.excess_ns, one.late_ns))
        lines.append((*known, rank, step, cause, round(excess), lost, round(one.usual_host_ns)))
    return pl.DataFrame(lines, schema=BLAMED, orient="row")


def _culprit(late: _Meeting, found: Mapping[int, _Meeting]) -> tuple[int | None, str, str | None, float]:
    """Rank, step, cause and excess of what made a meeting's last rank late.

    It goes back over the meetings before, from last rank to last rank, until all of the meeting's ranks had
    met, and the last one's launches were not behind any more.
    """
    excesses: Counter[tuple[int, str, str]] = Counter()
    one: _Meeting | None = late
    for _ in range(FAR):
        is_explained = sum(excesses.values()) >= MOST * late.late_ns
        if one is None or (one is not late and _is_level(one, late, is_explained)):
            break
        if one.is_first and is_explained:
            break
        if one.is_first:
            return None, one.step, START, 0.0
        if one.cause is not None and one.excess_ns > NEGLIGIBLE_NS:
            excesses[one.last, one.step, one.cause] += round(min(one.excess_ns, one.late_ns))
        one = None if one.previous is None else found.get(one.previous)
    by_rank: Counter[tuple[int, str]] = Counter()
    for (rank, _, cause), excess in excesses.items():
        by_rank[rank, cause] += excess
    for (rank, cause), excess in by_rank.most_common(1):
        if excess >= MOST * late.late_ns:
            step = max(
                (own, step) for (who, step, why), own in excesses.items() if (who, why) == (rank, cause)
            )[1]
            return rank, step, cause, excess
    return None, late.step, None, late.excess_ns


def _is_level(one: _Meeting, late: _Meeting, is_explained: bool) -> bool:
    """Nothing from before this meeting makes a later one late: not on the devices, and on no host."""
    if late.is_pair and (is_explained or one.step != late.step):
        return True
    is_behind = one.last == late.last and min(one.behind_ns, late.behind_ns) > NEGLIGIBLE_NS
    return one.joins and one.ranks >= late.ranks and (is_explained or not is_behind)


def _arrivals(
    table: pl.DataFrame, parts: Sequence[str], device: Sequence[str], cold: Sequence[str]
) -> Iterator[_Meeting]:
    """The meetings in the order of time."""
    before = pl.col("step").shift(1).over("rank", "device")
    table = table.sort("rank", "start_ns").with_columns(
        pl.col("meeting").shift(1).over("rank", "device").alias("previous"),
        pl.when(before.is_in(cold)).then(before).otherwise("step").alias("step"),
        pl.col("own_ns").is_null().any().over("meeting").alias("first"),
        (pl.col("launched_ns") - pl.col("clock_ns")).alias("behind"),
        _arrival().alias("arrival"),
    )
    ways = (*parts, "own_ns", "host_ns")
    met = _beside_stages(table, ways).filter(pl.col("meeting").is_not_null())
    is_pair = pl.col("law") == PAIR
    apart = [
        *(
            pl.when(is_pair)
            .then(pl.col(name) * pl.col(f"{name} too long"))
            .otherwise(pl.col(name) - _median_of_others(name))
            .alias(name)
            for name in ways
        ),
        *((pl.col(name) - _median_of_others(name)).alias(name) for name in ("behind", "arrival")),
        _median_of_others("host_ns").alias("usual_host"),
    ]
    slower = pl.col("host_ns").clip(0)
    bounded = [pl.min_horizontal(name, slower).alias(name) for name in parts if name not in device]
    most = pl.sum_horizontal(slower, *(pl.col(name).clip(0) for name in device))
    new = pl.when(slower.is_null()).then("own_ns").otherwise(pl.min_horizontal("own_ns", most))
    late = (
        met.with_columns(
            pl.col("waiting_ns").fill_null(0).sum().over("meeting").alias("waited_ns"),
            (pl.col("start_ns") - pl.col("clock_ns")).max().over("meeting").alias("at_ns"),
            *apart,
        )
        .with_columns(new.alias("own_ns"), *bounded)
        .with_columns(pl.when(is_pair).then(pl.sum_horizontal(parts)).otherwise("own_ns").alias("own_ns"))
    )
    ranks = late.group_by("meeting").agg(pl.col("rank").alias("ranks"))
    is_last = pl.col("arrival") == pl.col("arrival").max().over("meeting")
    late = late.filter(is_last).unique("meeting", keep="first", maintain_order=True).join(ranks, on="meeting")
    most = pl.concat_list(parts)
    cause = most.list.arg_max().replace_strict(dict(enumerate(parts)), return_dtype=pl.String)
    rows = late.select(
        "meeting", "step", "at_ns", "ranks", "previous", "first",
        (~pl.col("law").is_in([SENDER, PAIR])).alias("joins"), is_pair, "rank", "arrival", "waited_ns",
        pl.col("own_ns").fill_null(0), pl.col("behind").fill_null(0), pl.col("usual_host").fill_null(0),
        pl.when(most.list.max() > 0).then(cause),
    )  # fmt: skip
    for meeting, step, at, members, *others in rows.sort("at_ns").iter_rows():
        yield _Meeting(meeting, step, at, frozenset(members), *others)


def _arrival() -> pl.Expr:
    """Who was in a collective shortest came last, whatever clocks say. So of sends and receives, unless both
    ends were in it as long: then what was sent had been buffered."""
    arrival, shortest = pl.col("start_ns") - pl.col("clock_ns"), -pl.col("duration_ns")
    apart = (shortest.max() - shortest.min()).over("meeting")
    is_known = pl.col("clock_ns").is_not_null().all().over("meeting")
    is_buffered = (pl.col("law") == PAIR) & is_known & (apart < NEGLIGIBLE_NS)
    by_length = pl.col("law").is_in([TOGETHER, PAIR]) & ~is_buffered
    return pl.when(by_length).then(shortest).otherwise(arrival)


def _beside_stages(table: pl.DataFrame, ways: Sequence[str]) -> pl.DataFrame:
    """With by which share of each of the ``ways`` a rank's step is longer than those of the ranks that it
    sends to and receives from (``… too long``; null where there are none)."""
    steps = table.group_by("rank", "step").agg(pl.col(name).clip(0).sum() for name in ways)
    peers = table.filter(pl.col("law") == PAIR).select("group", "rank", "step").unique()
    longer = peers.join(steps, on=["rank", "step"]).with_columns(
        (1 - pl.col(name).quantile(0.5, "lower").over("group", "step") / pl.col(name))
        .clip(0)
        .fill_nan(0)
        .alias(f"{name} too long")
        for name in ways
    )
    return table.join(longer.drop(ways), on=["group", "rank", "step"], how="left", maintain_order="left")


def _median_of_others(name: str) -> pl.Expr:
    """The median of a column in a meeting, of the ranks that came before the last."""
    last = pl.col("arrival") == pl.col("arrival").max()
    return pl.col(name).filter(~last).median().over("meeting").fill_null(pl.col(name))
