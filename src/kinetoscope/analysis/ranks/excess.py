"""By how much longer each rank worked in each step than ranks that do the same, and for which cause.

In contrast to ``lateness`` work is summed over whole steps, so it holds where groups of ranks overlap and
where collectives run while ranks compute. Ranks of one stage of a pipeline do the same; where a stage has one
rank, all stages are compared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from kinetoscope.analysis.collectives.recorded import PAIR
from kinetoscope.analysis.events.rows import constant
from kinetoscope.analysis.ranks.lateness import CAUSES, COMPUTE, HOST, ON_DEVICE, Usual, lower_median
from kinetoscope.analysis.ranks.parts import KERNEL_TIMES, RankPart
from kinetoscope.statistics.distribution import NORMAL
from kinetoscope.trace.schema import whole

STEP = ["rank", "step"]
ALL = 0.8  # of the time of kernels, if all of them are to be slower
NOTABLE = 1.03  # times as long: no two devices are faster or slower by less
NAMES = 3  # of kernels, of which all are slower before it is said of the device
SPREADS = 4.0
SHARED = 0.01  # of a rank's kernel time: what takes less tells nothing
# By how much longer the hosts of equal ranks take for all that they do, under the profiler: found were 0.3.
PACE = 0.4


class Excess(Struct, frozen=True, eq=False):
    """Args:
    steps: ``rank``, ``step``, ``like`` (equal for ranks that do the same), of each of ``CAUSES`` what the
        rank did (``<cause>``) and how much of that was longer than usual (``<cause>_longer``; below zero:
        shorter), ``pace_ns`` (of what was longer for its host's sake, what that is slower by at all that it
        does), ``mostly`` (by which share its host is slower at three of four ways), ``launch_ns`` (its host's
        time, of each kernel that it launches) and ``is_known`` (all of it is: not what came before a rank's
        first collective). Steps of which a rank lacks collectives are not there.
    kernels: ``rank``, ``step``, ``name``, ``launches``, ``duration_ns``, with the launches of ranks that do
        the same (``usual_launches``) and how long those usually take (``usual_ns``).
    places: ``rank``, ``kind``, ``bytes``, ``nth`` (of a step's collectives of that kind and size: a place of
        the program), ``steps`` in which it is known, ``mean_ns`` by which its host took longer on the way
        there, ``least_ns`` and ``least``: by how much longer, and by which share, where that was least.
    is_even: ranks that are compared do the same, as stages of a pipeline do not."""

    steps: pl.DataFrame
    kernels: pl.DataFrame
    places: pl.DataFrame
    is_even: bool

    def total(self, cause: str) -> dict[int, int]:
        """By rank, ns; without what its host takes longer for all that it does."""
        sums = self.steps.group_by("rank").agg(_beyond_pace(cause).sum()).sort("rank")
        return dict(sums.iter_rows())

    def by_step(self, cause: str) -> dict[str, dict[int, int]]:
        """The same by step and rank, without those of which a part is not known, where others are."""
        found: dict[str, dict[int, int]] = {}
        known = self.steps if cause == COMPUTE else self.steps.filter("is_known")
        known = self.steps if known.is_empty() else known
        for rank, step, ns in known.select(*STEP, _beyond_pace(cause)).iter_rows():
            found.setdefault(step, {})[rank] = ns
        return found

    def stays(self, cause: str) -> dict[int, float]:
        """By rank, which share of what it did is left once it takes no longer than usual."""
        sums = (
            self.steps.group_by("rank").agg(pl.col(cause).sum(), pl.col(f"{cause}_longer").sum()).sort("rank")
        )
        return {rank: 1 - max(0.0, longer) / did for rank, did, longer in sums.iter_rows() if did}

    def similar(self, rank: int) -> list[int]:
        likes = dict(self.steps.select("rank", "like").unique().sort("rank").iter_rows())
        return [other for other, like in likes.items() if like == likes.get(rank)]

    def without(self, steps: Collection[str]) -> Excess:
        left = ~pl.col("step").is_in(list(steps))
        return replace(self, steps=self.steps.filter(left), kernels=self.kernels.filter(left))


def _whole_ns(length: pl.Expr) -> pl.Expr:
    """Rounded: sums of whole numbers do not depend on their order."""
    return length.round().cast(pl.Int64)


def _beyond_pace(cause: str) -> pl.Expr:
    longer = pl.col(f"{cause}_longer")
    return longer - pl.col("pace_ns") if cause == HOST else longer


def excess(
    table: pl.DataFrame, parts: Sequence[RankPart], stages: Mapping[int, int], usual: Usual = lower_median
) -> Excess:
    """Compare what ranks did in each step. ``table``: collectives of all ranks with their
    ``lateness.OWN_WORK``; ``stages``: of the ranks of a pipeline; ``usual``: what of the ranks that do the
    same a rank is compared with."""
    sizes = [list(stages.values()).count(stage) for stage in set(stages.values())]
    known = stages if min(sizes, default=1) > 1 else {}
    like = pl.col("rank").replace_strict(known, default=-1, return_dtype=pl.Int32)
    count = (pl.col("semantics") != PAIR).sum()
    steps = (
        table.group_by(STEP)
        .agg(
            pl.col(*CAUSES, "host_ns").sum(),
            count=count,
            is_known=pl.col("own_ns").is_not_null().all(),
        )
        .with_columns(like=like)
        .filter(pl.col("count") == pl.col("count").max().over("like", "step"))
        .sort(STEP)
    )
    kernels = _kernels(parts, steps, usual)
    sums = kernels.group_by(STEP).agg(
        pl.col("duration_ns", "launches").sum(),
        kernels_longer=(pl.col("duration_ns") - pl.col("usual_ns")).sum(),
    )
    group = ["like", "step"]
    steps = steps.join(sums, on=STEP, how="left", maintain_order="left").with_columns(
        *(_whole_ns(pl.col(cause) - usual(cause).over(group)).alias(f"{cause}_longer") for cause in CAUSES),
        slower_ns=(pl.col("host_ns") - usual("host_ns").over(group)).clip(0).fill_null(0),
        usual_host_ns=usual("host_ns").over(group),
    )
    # What its device was idle for its host's sake is no more than the host took longer, beyond its pace.
    hosts = [cause for cause in CAUSES if cause not in ON_DEVICE]
    idle = pl.sum_horizontal(pl.col(f"{cause}_longer").clip(0) for cause in hosts)
    share = (pl.col("slower_ns") / idle).fill_nan(0).clip(0, 1)
    steps = steps.with_columns(
        *(_whole_ns(pl.col(f"{cause}_longer") * share).alias(f"{cause}_longer") for cause in hosts)
    ).join(_paces(ways := _ways(table)), on="rank", how="left", maintain_order="left")
    computed = (pl.col("kernels_longer") / pl.col("duration_ns")).fill_nan(0).fill_null(0)
    by_host = pl.col(f"{HOST}_longer")
    return Excess(
        steps.with_columns(
            _whole_ns(pl.col(COMPUTE) * computed).alias(f"{COMPUTE}_longer"),
            pace_ns=_whole_ns(
                (pl.col("pace").fill_null(0) * pl.col("usual_host_ns")).clip(0, by_host.clip(0))
            ),
            launch_ns=pl.col("host_ns") / pl.col("launches"),
        ).select(
            *STEP,
            "like",
            "is_known",
            "pace_ns",
            "mostly",
            "launch_ns",
            *CAUSES,
            *(f"{cause}_longer" for cause in CAUSES),
        ),
        kernels,
        _places(ways),
        bool(known) or not (table["semantics"] == PAIR).any(),
    )


def _ways(table: pl.DataFrame) -> pl.DataFrame:
    """Each rank's ways from launch to launch, and how much ``slower`` (share), ``slower_ns`` than usual."""
    place = ["kind", "bytes"]
    ways = (
        table.select("rank", "start_ns", "step", *place, "host_ns")
        .sort("rank", "start_ns")
        .with_columns(nth=pl.int_range(pl.len()).over("rank", "step", *place))
    )
    usual = lower_median("host_ns").over("step", *place, "nth")
    return ways.filter(pl.col("host_ns") > 0).with_columns(
        slower=pl.col("host_ns") / usual - 1, slower_ns=pl.col("host_ns") - usual
    )


def _paces(ways: pl.DataFrame) -> pl.DataFrame:
    """By which share each rank's host is slower at all that it does (``pace``), at most ``PACE``; and at
    three of four of its ways from launch to launch (``mostly``)."""
    return ways.group_by("rank").agg(
        pace=pl.median("slower").clip(0, PACE), mostly=pl.col("slower").quantile(0.25)
    )


def _places(ways: pl.DataFrame) -> pl.DataFrame:
    """Each rank's places that are known in three steps or more, and in all but the first, of which what came
    before a rank's first collective is not known. Of fewer, long ways may be in one place by chance."""
    recorded = ways.filter(pl.col("step") != "")
    steps = recorded["step"].n_unique()
    return (
        recorded.group_by("rank", "kind", "bytes", "nth")
        .agg(
            steps=pl.len(),
            mean_ns=pl.col("slower_ns").clip(0).mean(),
            least_ns=pl.min("slower_ns"),
            least=pl.min("slower"),
        )
        .filter(pl.col("steps") >= max(3, steps - 1))
        .sort("rank", "least_ns", descending=[False, True])
    )


def _kernels(parts: Sequence[RankPart], steps: pl.DataFrame, usual: Usual) -> pl.DataFrame:
    none = pl.DataFrame(schema={"rank": pl.Int32, **KERNEL_TIMES})
    each = (
        one.kernels.select(pl.lit(one.facts.rank, pl.Int32).alias("rank"), *KERNEL_TIMES) for one in parts
    )
    own = pl.concat([none, *each])
    ranks = steps.select(*STEP, "like")
    names = own.join(ranks, on=STEP).select("like", "step", "name").unique()
    table = (
        ranks.join(names, on=["like", "step"])
        .join(own, on=[*STEP, "name"], how="left")
        .with_columns(pl.col("launches").fill_null(0).cast(pl.Int64), pl.col("duration_ns").fill_null(0))
        .sort(*STEP, "name")
    )
    group = ["like", "step", "name"]
    table = table.with_columns(
        each=pl.when(pl.col("launches") > 0).then(pl.col("duration_ns") / pl.col("launches"))
    ).with_columns(usual_launches=usual("launches").over(group), usual=usual("each").over(group))
    slower = _stages(table)
    return (
        table.join(slower, on=["like", "step"], how="left", maintain_order="left")
        .with_columns(
            usual_ns=_whole_ns(
                (pl.col("usual_launches") * pl.col("usual") / pl.col("slower").fill_null(1.0)).fill_null(0.0)
            )
        )
        .select(*STEP, "name", "launches", "duration_ns", "usual_launches", "usual_ns")
    )


def _stages(table: pl.DataFrame) -> pl.DataFrame:
    """How many times as long (``slower``) all of a stage's kernels take as others of their names; else 1."""
    each = table.group_by("like", "step", "name").agg(
        pl.first("usual"), time=pl.first("usual") * pl.first("usual_launches")
    )
    each = each.filter(pl.col("like").n_unique().over("step", "name") > 1, pl.col("time") > 0).with_columns(
        ratio=pl.col("usual") / lower_median("usual").over("step", "name")
    )
    by = ["like", "step"]
    times = pl.col("time").sum().over(by)
    average = ((pl.col("ratio") * pl.col("time")).sum() / pl.sum("time")).over(by)
    each = each.with_columns(average=average, of=times).filter(pl.col("time") > SHARED * pl.col("of"))
    is_slower = pl.col("ratio") >= 1 + (pl.col("average") - 1) / 2
    return (
        each.group_by(by)
        .agg(
            pl.first("average"),
            names=pl.len(),
            part=pl.col("time").filter(is_slower).sum() / pl.sum("time"),
        )
        .filter(pl.col("average") >= NOTABLE, pl.col("part") >= ALL, pl.col("names") >= NAMES)
        .select(*by, slower="average")
    )


def with_usual(table: pl.DataFrame, found: Excess) -> pl.DataFrame:
    """Add ``usual_own_ns``: what a rank did of its own before each collective, had it taken no longer than
    usual in that step; and ``host_late_ns``: what of the
    difference is its host's."""
    # Looked up once, and joined a cause at a time: a join copies all that it is given.
    places = found.steps.select(STEP).with_row_index("place")
    place = table.select(STEP).join(places, on=STEP, how="left", maintain_order="left")["place"]
    longer, late = (constant(0.0, len(table), pl.Float64) for _ in range(2))
    for cause in CAUSES:
        too_long = (pl.col(f"{cause}_longer").clip(0) / pl.col(cause).clip(1)).clip(0, 1)
        each = table[cause] * found.steps.select(too_long).to_series().gather(place).fill_null(0)
        longer += each
        if cause not in ON_DEVICE:
            late += each
    return table.with_columns(usual_own_ns=(table["own_ns"] - longer).clip(0), host_late_ns=late)


def slow_hosts(found: Excess) -> tuple[int, ...]:
    """The ranks whose hosts are slower at most of what they do, by twice what equal ones are."""
    return tuple(found.steps.filter(pl.col("mostly") >= 2 * PACE)["rank"].unique().sort())


def stages_of_slow_hosts(found: Excess) -> tuple[int, ...]:
    """The ranks of a pipeline's stages, of half of them at most, all of whose hosts take longer for a launch
    than those of other stages in every step, by twice what equal ones do, and leave their devices idle for no
    other cause: within such a stage there is no difference."""
    others = [cause for cause in CAUSES if cause not in (*ON_DEVICE, HOST)]
    slower = pl.col("launch_ns") / lower_median("launch_ns").over("step") - 1
    each = found.steps.with_columns(slower=slower).group_by("like", "rank").agg(
        pl.min("slower"), other=pl.sum_horizontal(pl.col(cause).sum() for cause in others),
        host=pl.col(HOST).sum(),
    )  # fmt: skip
    slow = (pl.col("slower") >= 2 * PACE) & (pl.col("host") > pl.col("other"))
    stages = each.with_columns(slow=slow.fill_null(False)).group_by("like").agg("rank", pl.col("slow").all())
    ranks = stages.filter("slow")["rank"]
    return tuple(sorted(ranks.explode().to_list())) if 2 * len(ranks) <= len(stages) else ()


def stall_at_one_place(found: Excess, ranks: Collection[int], least_ns: float, mistaken: float) -> bool:
    """Whether each of these ranks' hosts takes ``least_ns`` longer at one place of the program in every step,
    twice what equal hosts do, and several times as much as any other rank's at any place of its own.

    Hosts stall by chance too, for times that are distributed exponentially: that one stalls so at any place
    in each step must be less likely than ``mistaken``.
    """
    place = ["kind", "bytes", "nth"]
    is_own = pl.col("rank").is_in(list(ranks))
    others = found.places.filter(~is_own)
    stalls = found.places.filter(is_own, pl.col("least") >= 2 * PACE).unique("rank", keep="first")
    needed = max(least_ns, SPREADS * whole(others["least_ns"].max()))
    if len(stalls) < len(ranks) or whole(stalls["least_ns"].min()) < needed:
        return False
    usual_ns = max(1, 2 * whole(others.group_by(place).agg(pl.mean("mean_ns"))["mean_ns"].max()))
    hosts, places = found.places["rank"].n_unique(), found.places.select(place).n_unique()
    chance = max(
        hosts * places * math.exp(-steps * least / usual_ns)
        for steps, least in stalls.select("steps", "least_ns").iter_rows()
    )
    return chance <= mistaken


def shows_in_kernels(found: Excess, ranks: Collection[int]) -> bool:
    """Whether kernels of these ranks take longer than usual in each step, or in three of four of many, by
    more than those of the other ranks differ."""
    sums = found.kernels.group_by(STEP).agg(ratio=pl.sum("duration_ns") / pl.sum("usual_ns").clip(1))
    is_own = pl.col("rank").is_in(list(ranks))
    own, others = sums.filter(is_own), sums.filter(~is_own)
    if own.is_empty():
        return False
    off = float(others.select((pl.col("ratio") - 1).abs().median()).item() or 0.0)
    least = float(own.group_by("step").agg(pl.mean("ratio"))["ratio"].quantile(0.25, "lower") or 1.0)
    return least >= max(NOTABLE, 1 + SPREADS * NORMAL * off)
