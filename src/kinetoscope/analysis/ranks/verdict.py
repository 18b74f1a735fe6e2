"""Who makes a run slow: ranks that work longer than their like, or groups whose links are slower.

Suspects are ranks that worked longer than ranks that do the same (``excess``), and process groups whose
transfers take longer than those of groups like them. Each is put right in the replay, and the one that costs
most is named, unless what it loses may be chance. Several ranks that lose as much for one cause are named
together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean, mean, median, stdev
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.collectives.recorded import ARRIVAL, TOGETHER
from kinetoscope.analysis.ranks.attribution import EVEN_COMPUTE, kernel_cause
from kinetoscope.analysis.ranks.excess import (
    Excess,
    shows_in_kernels,
    slow_hosts,
    stages_of_slow_hosts,
    stall_at_one_place,
)
from kinetoscope.analysis.ranks.lateness import (
    ALLOCATOR,
    CAUSES,
    COMPILE,
    COMPUTE,
    GARBAGE,
    HOST,
    LOADER,
    SYNC,
    lower_median,
)
from kinetoscope.analysis.ranks.rows import LINK
from kinetoscope.analysis.ranks.without_stragglers import PutRight, WithoutStragglers
from kinetoscope.statistics.distribution import NORMAL
from kinetoscope.statistics.intervals import student_t
from kinetoscope.trace.schema import whole

# By what part of a step equal ranks differ in one step, by chance and the profiler: two H200s that do the
# same were found 0.2 apart. What a straggler loses is more than so many times the spread of as many steps.
CHANCE = 0.1
SPREADS = 2.5
# What one rank loses in each of several steps is no chance either if it hardly varies: by Student's t, wrong
# for one of so many equal jobs. A few steps may be equal by chance, so it is taken to vary by so much of one.
MISTAKEN = 0.01
VARIES = 0.005
# Hardly by chance: what the others do not do at all in that step.
UNLIKE, HARDLY = (SYNC, COMPILE, ALLOCATOR), 0.01
HOSTS = (HOST, LOADER, GARBAGE)  # causes that are a host's own doing
LEAST = 0.015  # of all time: what costs less is not named
TRIED = 8  # groups of slow links
AS_MUCH = 0.5  # of what the worst rank loses: who loses more for the same cause is named too
# A link is slow where its transfers take so many times as long as those of groups like it, and three of four
# of them at least so many times.
SLOWER, MOSTLY = 1.3, 1.15


class Suspect(NamedTuple):
    """Ranks with a cause of ``CAUSES``, or ``LINK`` with what would be left of their groups' transfers."""

    ranks: tuple[int, ...]
    cause: str
    transfers: Mapping[int, float] = {}

    @property
    def remedy(self) -> PutRight:
        if self.cause == LINK:
            return PutRight(transfers=self.transfers)
        return PutRight(frozenset(self.ranks))


def costliest(suspects: Iterator[Suspect], replay: WithoutStragglers | None) -> tuple[Suspect, float] | None:
    """The suspect that costs most, and its share of the time; without a replay the first, of unknown cost."""
    if replay is None:
        return None
    costs = [(replay.saved(one.remedy), one) for one in suspects]
    cost, worst = max(costs, key=lambda one: one[0], default=(0.0, None))
    return None if worst is None or cost < LEAST else (worst, cost)


def late_ranks(found: Excess, steps: pl.DataFrame) -> Iterator[Suspect]:
    """By cause, the ranks that lose most for it, where that is more than chance."""
    if ranks := stages_of_slow_hosts(found):
        yield Suspect(ranks, HOST)
    totals = {cause: found.total(cause) for cause in CAUSES}
    slow_anywhere = set(slow_hosts(found))
    step_ns = whole(steps["length_ns"].median())
    for cause, own in totals.items():
        most = max(own.values(), default=0)
        ranks = tuple(rank for rank, ns in own.items() if ns >= AS_MUCH * most)
        if most <= 0 or 2 * len(ranks) > len(own):
            continue
        if cause != max(CAUSES, key=lambda one: sum(totals[one][rank] for rank in ranks)):
            continue  # they lose more for another one
        by_step = found.by_step(cause)
        lost = lost_by_step(by_step, ranks)
        like = found.similar(ranks[0])
        slow = tuple(rank for rank in like if rank in slow_anywhere)
        of_slow = set(ranks) <= set(slow)
        if (
            stands_out(lost, steps, HARDLY if cause in UNLIKE else CHANCE)
            or (found.is_even and is_notable(found, cause, ranks) and loses_in_each_step(lost, steps))
            or (found.is_even and cause == COMPUTE and shows_in_kernels(found, ranks))
            or (found.is_even and cause == HOST and of_slow)
            or (
                found.is_even
                and cause in HOSTS
                and (
                    stall_at_one_place(found, ranks, LEAST * step_ns, MISTAKEN)
                    or stall_alone(by_step, ranks, like, LEAST * step_ns)
                )
            )
        ):
            # A host that is slower at most of what it does also waits for its device at other times, and may
            # lose less than others that are as slow, for which it waits.
            yield Suspect(slow, HOST) if of_slow and cause in (HOST, SYNC) else Suspect(ranks, cause)


def stall_alone(
    each: Mapping[str, Mapping[int, float]], ranks: Collection[int], like: Sequence[int], least_ns: float
) -> bool:
    """Whether these ranks lose so much in every step, and no rank that does the same (``like``) does so in
    any. ``each``: by step and rank the time lost.

    However often hosts stall by chance, that always the same one of n does, and none of the others ever, is
    likeliest where each does so in one step of n. Ranks that stall together count as one.
    """
    known = [own for step, own in each.items() if step and all(rank in own for rank in like)]
    is_so = all((own[rank] >= least_ns) == (rank in ranks) for own in known for rank in like)
    count = len(like) // len(ranks)
    if not known or not is_so or count < 2:
        return False
    return count * (1 / count * (1 - 1 / count) ** (count - 1)) ** len(known) <= MISTAKEN


def is_notable(found: Excess, cause: str, ranks: Sequence[int]) -> bool:
    """Whether a loss that is the same in each step is more than equal devices always differ by."""
    return cause != COMPUTE or kernel_cause(found.kernels, ranks, None)[0] != EVEN_COMPUTE


def slow_links(table: pl.DataFrame, hosts: Mapping[int, str]) -> Iterator[Suspect]:
    """Groups whose transfers take longer than those of groups of the same name, size and number of hosts."""
    asked = table.select("rank", "instance", "kind", "bytes", "transfer_ns", "group", "group_name", "size",
                        "semantics", "complete", "before")  # fmt: skip
    known = asked.filter(
        pl.col("semantics").is_in([TOGETHER, ARRIVAL]), pl.col("complete"), ~pl.col("before")
    )
    host = pl.col("rank").replace_strict(hosts, default="", return_dtype=pl.String)
    each = (
        known.group_by("instance")
        .agg(
            pl.col("group", "group_name", "size", "kind").first(),
            pl.when(pl.col("kind").first() != "all-to-all").then(pl.col("bytes").first()).alias("bytes"),
            pl.col("transfer_ns").min(),
            ranks=pl.col("rank").sort(),
            hosts=host.n_unique(),
        )
        .sort("instance")
    )
    like = ["group_name", "size", "kind", "bytes", "hosts"]
    groups = each.group_by(*like, "group", "ranks", maintain_order=True).agg(
        pl.col("transfer_ns").median().alias("own"), pl.col("transfer_ns").quantile(0.25).alias("least"),
        pl.len().alias("count"), "instance",
    )  # fmt: skip
    groups = groups.with_columns(usual=lower_median("own").over(like)).filter(
        pl.col("own") >= SLOWER * pl.col("usual"), pl.col("least") >= MOSTLY * pl.col("usual")
    )
    found: dict[tuple[int, ...], dict[int, float]] = {}
    longer = (pl.col("own") - pl.col("usual")) * pl.col("count")
    order = groups.with_columns(longer=longer).sort(
        "longer", pl.col("ranks").list.min(), descending=[True, False]
    )
    for ranks, own, usual, instances in order.select("ranks", "own", "usual", "instance").iter_rows():
        found.setdefault(tuple(ranks), {}).update(dict.fromkeys(instances, usual / own))
    for ranks, transfers in list(found.items())[:TRIED]:
        yield Suspect(ranks, LINK, transfers)


def lost_by_step(each: Mapping[str, Mapping[int, float]], ranks: Collection[int]) -> list[float]:
    """Time that ranks lost in each step, at the mean, beyond any other rank, ns; below zero where another one
    lost more, as it is half of the time or more among equal ranks. Empty where no steps were recorded.
    ``each``: by step and rank the time lost."""
    found: list[float] = []
    for step, own in each.items():
        if step and (known := [own[rank] for rank in ranks if rank in own]):
            found.append(fmean(known) - max([0.0, *(ns for rank, ns in own.items() if rank not in ranks)]))
    return found


def stands_out(lost: Sequence[float], steps: pl.DataFrame, chance: float, *, is_one: bool = True) -> bool:
    """Whether what one rank lost, or all did in turn, is more than chance: by chance one rank is late in some
    steps and early in others, and some rank in each. ``lost``: see ``lost_by_step``; ``steps``: see
    ``comparison.lengths``; ``chance``: the least by which steps differ, of a step. Without steps nothing is
    known of chance."""
    if not lost:
        return True
    apart = whole(median(abs(one - median(lost)) for one in lost)) if len(lost) > 2 else 0
    spread = max(chance * whole(steps["length_ns"].median()), NORMAL * apart)
    return sum(lost) > SPREADS * spread * len(lost) ** (0.5 if is_one else 1)


def loses_in_each_step(lost: Sequence[float], steps: pl.DataFrame) -> bool:
    """Whether one rank loses about as much in each step (``lost_by_step``, ``comparison.lengths``), as equal
    ranks do not. Two steps do not tell."""
    if len(lost) < 3:
        return False
    varies = max(stdev(lost), VARIES * whole(steps["length_ns"].median()))
    certain = student_t(1 - MISTAKEN / steps["rank"].n_unique(), len(lost) - 1)
    return mean(lost) > certain * varies / math.sqrt(len(lost))
