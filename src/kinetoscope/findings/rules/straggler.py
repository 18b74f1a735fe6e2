"""Ranks wait for one that is late, or for a slow link.

What it finds
    Collectives that take long on one rank because it waits in them for another, or because the link of its
    group moves data more slowly than those of groups like it.

Why it is slow
    A collective ends when the last rank has joined. All others burn that time in a kernel that looks busy.

How it decides
    With the recordings of all ranks: what a collective takes longer than on the rank that came last; with one
    alone: than the shortest of its kind and size. Exposed waiting of 3 % of the step or more. A rank that
    caused half of it is the straggler, unless that may be chance; if ranks take turns it is
    ``collective-imbalance``. A link is slow if its group's collectives take 1.3 times as long as the median
    of such groups. The saving is what the job's step gains, all ranks replayed together, if the late rank
    takes no longer than its peers; of work that has to be shared, less by the share of the late ranks among
    those that do the same.

What to do
    Look at what the straggler did longer than the others between two collectives: its kernels (one of them,
    or all: a throttled device), its host, its data loader, a synchronisation, a recompilation. Where nothing
    does, compare its recording with another's.

Source
    The eight-rank DLRM recording of param, where rank 7 is last in five of eight collectives.
"""

import msgspec

from kinetoscope.analysis.collectives.waiting import waiting
from kinetoscope.analysis.ranks.comparison import (
    RankComparison,
    comparison,
    culprit,
    slow_transfers,
)
from kinetoscope.analysis.ranks.rows import LINK, TO_SHARE, WHY, RankVerdict, seen
from kinetoscope.analysis.replay.ranks import verdict_as_it_runs, without_lateness
from kinetoscope.findings.rule import *

LISTED = 30  # characters; more ranks are counted
AS_LONG = "with transfers as long as those of groups like it"


def compared(ranks: RankComparison) -> Findings:
    """The rank, the ranks or the link that the comparison of ranks names, and the cost that it found."""
    yield from _named(ranks.verdict)


def _named(found: RankVerdict, together: Changes | None = None) -> Findings:
    if found.status == LINK:
        who = f"ranks {found.listed}{_place(found)}"
        yield Finding(
            title=f"The link of {who} is slow: its transfers take {found.detail}",
            saving=savings.by_comparison(found, AS_LONG, together),
            evidence=[],
            advice=_look(found, ""),
        )
    elif found.rank is not None:
        name = _name(found)
        keeps = "keep" if len(found.ranks) > 1 else "keeps"
        shared = f"with the work of {name} shared by its peers"
        basis = shared if found.cause in TO_SHARE else f"with {name} no later than its peers"
        yield Finding(
            title=f"{name[0].upper()}{name[1:]}{_place(found)} {keeps} the others waiting",
            saving=savings.by_comparison(found, basis, together),
            evidence=[],
            advice=_look(found, name),
        )


def find(view: RankView) -> Findings:
    found = verdict_as_it_runs(view.run)
    if found.status == LINK:
        yield from _slow_link(view, found)
        return
    waited = view.waits
    # That one rank is waited for most is not its fault where that may be chance, or in a pipeline.
    is_chance = found.rank is None and culprit(view.run)[0] is not None
    if waited.is_empty() or is_chance or view.rank in found.ranks:
        return
    longest = waited.sort("saved_ns", descending=True).head(6)
    shown = [evidence.of(view, "the collectives that waited longest", longest)]
    us = view.us_of(waited, "saved_ns")
    if found.rank is not None:
        shown += [_meanwhile(late) for late in views(view.run) if late.rank == found.rank and len(late.gaps)]
        less = without_lateness(view.run)
        for one in _named(found, {rank: less[rank] for rank in found.ranks}):
            yield replace(one, affected_us=us, evidence=shown)
        return
    saving = savings.device(view, waited, "exposed waiting inside collectives, all of it")
    if saving.share >= MEDIUM:
        yield Finding(
            title=f"Another rank keeps rank {view.rank} waiting (estimated from the shortest collective "
            "of each kind)",
            affected_us=us,
            saving=saving,
            evidence=shown,
            advice=_look(found, "another rank"),
        )


def _slow_link(view: RankView, found: RankVerdict) -> Findings:
    """The collectives of a rank that take longer since its group's link is slow."""
    if view.rank not in found.ranks:
        return
    own = waiting(view.run).filter(rank=view.rank).select("id", "instance")
    shares = slow_transfers(comparison(view.run))
    left = pl.col("instance").replace_strict(shares, default=1.0, return_dtype=pl.Float64)
    slow = view.work.join(own.filter(left < 1), on="id", maintain_order="left")
    slow = slow.with_columns(saved_ns=pl.col("duration_ns") * (1 - left))
    longest = slow.sort("saved_ns", descending=True).head(6)
    shown = [evidence.of(view, "the collectives that lost most", longest)]
    for one in _named(found, {view.rank: shorten(slow["id"], slow["saved_ns"])}):
        yield replace(one, affected_us=view.us_of(slow), evidence=shown)


def _name(found: RankVerdict) -> str:
    if len(found.listed) > LISTED:
        return f"{len(found.ranks)} ranks"
    return f"ranks {found.listed}" if len(found.ranks) > 1 else f"rank {found.rank}"


def _place(found: RankVerdict) -> str:
    """Where they run, if that is one host."""
    if len(found.hosts) != 1:
        return ""
    device = f", GPU {found.devices[0]}" if len(found.devices) == 1 else ""
    return f" on host {found.hosts[0]}{device}"


def _look(found: RankVerdict, name: str) -> str:
    """The place to look at, by what the late rank did and the others did not."""
    if found.cause not in WHY:
        return f"Find out why {name} is late: input, data loading, clocks, other work on its host."
    why = seen(found.cause, found.detail)
    return f"{why[0].upper()}{why[1:]}: {WHY[found.cause][1]}."


def _meanwhile(late: RankView) -> Evidence:
    """The longest idle time of the late rank's device; the events are in that rank's own file."""
    (shown,) = evidence.of_gaps(late, late.gaps.sort("idle_ns", descending=True).head(1))
    return msgspec.structs.replace(shown, text=f"rank {late.rank} was {shown.text}", events=())
