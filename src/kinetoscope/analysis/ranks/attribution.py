"""Which rank made the others wait, and what it did meanwhile that its peers did not.

The rank that comes last into a collective took longer for its own work than its peers (see ``lateness``), and
what of it took longer says why; or it started late, since it had waited in another group for another rank:
then that one is the straggler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.collectives.recorded import PAIR, SENDER, TOGETHER
from kinetoscope.analysis.ranks.excess import ALL, NAMES, NOTABLE, SHARED
from kinetoscope.analysis.ranks.lateness import CAUSES, NEGLIGIBLE_NS
from kinetoscope.trace.schema import whole

MORE_WORK = "more work"
CLOCKS = "clocks"
SLOW_KERNEL = "slow kernel"
MORE_DATA = "more data"  # that all-to-alls gave it, as to a rank whose experts are in demand
EVEN_COMPUTE = "compute"  # its kernels took no longer, in sum

AS_MUCH = 1 / 3  # of what a kernel takes longer, it may have more data for: only the larger side is counted


def data_ratio(collectives: pl.DataFrame, ranks: Sequence[int], step: str | None = None) -> float:
    """How many times the other ranks' data (the median) these handled in all-to-alls; 1 without any."""
    each = (
        collectives.filter(pl.col("kind") == "all-to-all", step is None or pl.col("step") == step)
        .group_by("rank")
        .agg(pl.col("bytes").sum())
    )
    is_own = pl.col("rank").is_in(list(ranks))
    own, peers = (whole(each.filter(which)["bytes"].median()) for which in (is_own, ~is_own))
    return own / peers if own and peers else 1.0


def kernel_cause(
    kernels: pl.DataFrame, ranks: Sequence[int], step: str | None, data: float = 1.0, late_ns: float = 0.0
) -> tuple[str, str]:
    """The cause, and the kernel or factor that shows it, of ``ranks`` that are late in a ``step`` (None: in
    all). ``kernels``: see ``excess.Excess``; ``data``: see ``data_ratio``; of ``late_ns`` the kernels must
    explain half."""
    both = (
        kernels.filter(pl.col("rank").is_in(list(ranks)), step is None or pl.col("step") == step)
        .group_by("name")
        .agg(pl.col("launches", "usual_launches", "duration_ns", "usual_ns").sum())
        .with_columns(excess_ns=pl.col("duration_ns") - pl.col("usual_ns"))
        .sort("excess_ns", "name", descending=[True, False])
    )
    excess, base, launches = both.select(
        pl.sum("excess_ns"), pl.sum("usual_ns"), pl.col("launches").sum() - pl.col("usual_launches").sum()
    ).row(0)
    if excess <= MOST * late_ns:
        return EVEN_COMPUTE, ""
    each = pl.col("duration_ns") / pl.col("launches").clip(1)
    more = ((pl.col("launches") - pl.col("usual_launches")) * each).sum()
    if float(both.select(more).item()) >= excess / 2:
        return MORE_WORK, f"{launches:,.0f} kernels more"
    shared = both.filter(pl.col("usual_ns") > SHARED * base)
    slower = shared.filter(pl.col("duration_ns") >= pl.col("usual_ns") * (1 + excess / base / 2))
    part = float(slower["usual_ns"].sum()) / max(1.0, float(shared["usual_ns"].sum()))
    if len(shared) >= NAMES and part >= ALL:
        if excess < (NOTABLE - 1) * base:
            return EVEN_COMPUTE, ""
        return CLOCKS, f"all kernels take {1 + excess / base:.2f} times as long"
    name, own, usual_ns = both.select("name", "duration_ns", "usual_ns").row(0)
    # Its kernels take as much longer as they have more to do.
    if data - 1 >= (own / max(1, usual_ns) - 1) * AS_MUCH:
        return MORE_DATA, f"{data:.2f} times that of its peers in all-to-alls"
    return SLOW_KERNEL, str(name)


MOST = 0.5  # of a lateness so much must be one rank's doing, for one cause
START = "recording's start"
FAR = 1000  # collectives to go back over

ATTRIBUTED = {
    "instance": pl.UInt32,
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
}


class _LateCollective(NamedTuple):
    """Who came last into a collective, how late, and by how much longer it took since ``previous``."""

    instance: int
    step: str
    start_ns: int
    ranks: frozenset[int]
    previous: int | None
    is_first: bool
    joins: bool  # no rank leaves before all have come; one that broadcasts or sends does
    is_pair: bool
    last: int
    late_ns: float
    waited_ns: int
    excess_ns: float  # by which the last one took longer in its segment
    lost_ns: float  # of that, since its collective before
    behind_ns: float  # the last one's launch after the others'
    cause: str | None
    segment: int  # of the last one
    is_hidden: bool  # in a segment: who came into it late may yet be in time for what follows

    @property
    def explained_by_ns(self) -> float:
        """How much longer a rank must have taken to be what made this late."""
        return NEGLIGIBLE_NS if self.is_hidden else MOST * self.late_ns


def attributed(table: pl.DataFrame, cold: Sequence[str] = ()) -> pl.DataFrame:
    """One row per collective into which a rank came late. ``table``: collectives of all ranks
    (``lateness.with_lateness``); ``cold``: steps; the way from one of them into the next belongs to it.

    ``instance``, ``step``, ``start_ns`` (on the reference's clock), ``present`` (ranks), ``last``,
    ``late_ns`` (after the median of the others), ``waited_ns`` (by all), ``culprit`` (null: unknown),
    ``where`` (the step in which it lost the time), ``cause`` (one of ``lateness.CAUSES``; ``START``: what a
    recording begins with, when ranks wait for each other's profilers), ``excess_ns`` (by how much longer the
    culprit took), ``lost_ns`` (the last one, since its collective before).
    """
    found: dict[int, _LateCollective] = {}
    lines: list[tuple[object, ...]] = []
    for one in _arrivals(table, cold):
        found[one.instance] = one
        if one.is_first or one.late_ns <= NEGLIGIBLE_NS:
            continue
        rank, step, cause, excess = _culprit(one, found)
        met = one.instance, one.step, one.start_ns, len(one.ranks)
        late = one.last, round(one.late_ns), one.waited_ns
        lines.append((*met, *late, rank, step, cause, round(excess), round(min(one.lost_ns, one.late_ns))))
    return pl.DataFrame(lines, schema=ATTRIBUTED, orient="row")


def _culprit(
    late: _LateCollective, found: Mapping[int, _LateCollective]
) -> tuple[int | None, str, str | None, float]:
    """Rank, step, cause and excess of what made a collective's last rank late.

    It goes back over the collectives before, from last rank to last rank, until all ranks of this one had
    met, and the last one's launches were not behind any more.
    """
    excesses: Counter[tuple[int, str, str]] = Counter()
    seen: set[tuple[int, int]] = set()  # ranks and segments
    one: _LateCollective | None = late
    for _ in range(FAR):
        is_explained = sum(excesses.values()) >= late.explained_by_ns
        if one is None or (one is not late and _is_level(one, late, is_explained)):
            break
        if one.is_first and is_explained:
            break
        if one.is_first:
            return None, one.step, START, 0.0
        is_new = (one.last, one.segment) not in seen
        seen.add((one.last, one.segment))
        if is_new and one.cause is not None and one.excess_ns > NEGLIGIBLE_NS:
            most = one.excess_ns if one.is_hidden else min(one.excess_ns, one.late_ns)
            excesses[one.last, one.step, one.cause] += round(most)
        one = None if one.previous is None else found.get(one.previous)
    by_rank: Counter[tuple[int, str]] = Counter()
    for (rank, _, cause), excess in excesses.items():
        by_rank[rank, cause] += excess
    for (rank, cause), excess in sorted(by_rank.items(), key=lambda one: (-one[1], one[0]))[:1]:
        if excess >= late.explained_by_ns:
            step = max(
                (own, step) for (who, step, why), own in excesses.items() if (who, why) == (rank, cause)
            )[1]
            return rank, step, cause, excess
    return None, late.step, None, late.excess_ns


def _is_level(one: _LateCollective, late: _LateCollective, is_explained: bool) -> bool:
    """Nothing from before this collective makes a later one late: not on the devices, and on no host."""
    if late.is_pair and (is_explained or one.step != late.step):
        return True
    is_behind = one.last == late.last and min(one.behind_ns, late.behind_ns) > NEGLIGIBLE_NS
    is_level = is_explained or not (one.is_hidden or is_behind)
    return one.joins and one.ranks >= late.ranks and is_level


_ASKED = ["rank", "device", "id", "instance", "step", "semantics", "start_ns", "duration_ns", "launched_ns",
          "clock_ns", "waiting_ns", "own_ns"]  # fmt: skip


def _arrivals(table: pl.DataFrame, cold: Sequence[str]) -> Iterator[_LateCollective]:
    """The collectives in the order of time."""
    before = pl.col("step").shift(1).over("rank", "device")
    longer = [f"{cause}_longer" for cause in CAUSES]
    of_last = table.select("segment", "segment_ns", "longer_ns", "is_end", *longer)
    table = (
        table.select(*_ASKED)
        .with_row_index("row")
        .sort("rank", "start_ns", "id")
        .with_columns(
            previous=pl.col("instance").shift(1).over("rank", "device"),
            step=pl.when(before.is_in(cold)).then(before).otherwise("step"),
            first=pl.col("own_ns").is_null().any().over("instance"),
            behind=pl.col("launched_ns") - pl.col("clock_ns"),
            arrival=_arrival(),
        )
    )
    table = table.filter(pl.col("instance").is_not_null())
    late = table.with_columns(
        pl.col("waiting_ns").fill_null(0).sum().over("instance").alias("waited_ns"),
        (pl.col("start_ns") - pl.col("clock_ns")).max().over("instance").alias("at_ns"),
        *((pl.col(name) - _median_of_others(name)).alias(name) for name in ("behind", "arrival")),
    )
    ranks = late.group_by("instance").agg(ranks="rank")
    is_last = pl.col("arrival") == pl.col("arrival").max().over("instance")
    late = late.filter(is_last).unique("instance", keep="first", maintain_order=True)
    late = late.hstack(of_last[late["row"]])
    causes = pl.concat_list(longer)
    cause = causes.list.arg_max().replace_strict(dict(enumerate(CAUSES)), return_dtype=pl.String)
    # What of its own work came before this collective is its part of what its segment took longer.
    part = (pl.col("own_ns") / pl.col("segment_ns")).fill_nan(0).clip(0, 1)
    is_pair = pl.col("semantics") == PAIR
    rows = late.join(ranks, on="instance").select(
        "instance", "step", "at_ns", "ranks", "previous", "first",
        (~pl.col("semantics").is_in([SENDER, PAIR])).alias("joins"), is_pair, "rank", "arrival", "waited_ns",
        pl.col("longer_ns").fill_null(0), (pl.col("longer_ns") * part).fill_null(0).alias("lost_ns"),
        pl.col("behind").fill_null(0),
        pl.when(causes.list.max() > 0).then(cause), "segment", ~pl.col("is_end"),
    )  # fmt: skip
    for instance, step, at, members, *others in rows.sort("at_ns", "instance").iter_rows():
        yield _LateCollective(instance, step, at, frozenset(members), *others)


def _arrival() -> pl.Expr:
    """Who was in a collective shortest came last, whatever clocks say. So of sends and receives, unless both
    ends were in it as long: then what was sent had been buffered."""
    arrival, shortest = pl.col("start_ns") - pl.col("clock_ns"), -pl.col("duration_ns")
    apart = (shortest.max() - shortest.min()).over("instance")
    is_known = pl.col("clock_ns").is_not_null().all().over("instance")
    is_buffered = (pl.col("semantics") == PAIR) & is_known & (apart < NEGLIGIBLE_NS)
    by_length = pl.col("semantics").is_in([TOGETHER, PAIR]) & ~is_buffered
    return pl.when(by_length).then(shortest).otherwise(arrival)


def _median_of_others(name: str) -> pl.Expr:
    """The median of a column in a collective, of the ranks that came before the last."""
    last = pl.col("arrival") == pl.col("arrival").max()
    return pl.col(name).filter(~last).median().over("instance").fill_null(pl.col(name))
