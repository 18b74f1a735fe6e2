"""Ranks wait for one that is late, or for a slow link.

What it finds
    Collectives that take long on one rank because it waits in them for another, or because the link of its
    group moves data more slowly than those of groups like it.

Why it is slow
    A collective ends when the last rank has joined. All others burn that time in a kernel that looks busy.

How it decides
    With the recordings of all ranks: what a collective takes longer than on the rank that came last. With one
    recording alone: what it takes longer than the shortest of its kind and size. Exposed waiting of 3 % of
    the step or more. A rank that caused half of the waiting is the straggler, unless that may be
    chance; if ranks take turns it is ``collective-imbalance``; if it is unknown, as with a pipeline's
    stages, none is named (``report`` gives the reason). A link is slow if its group's collectives take 1.3
    times as long as the median of such groups. The saving is what the job's step gains, with all
    ranks replayed together, if the late rank takes no longer than its peers to reach collectives; where it
    computes longer, no longer than the mean of all, since the work has to be shared and the others get
    slower.

What to do
    Look at what the straggler did longer than the others between two collectives: its kernels (one of them,
    or all: a throttled device), its host, its data loader, a synchronisation, a recompilation. Where nothing
    does, compare its recording with another's.

Source
    The eight-rank DLRM recording of param, where rank 7 is last in five of eight collectives.
"""

import msgspec

from kinetoscope.analysis.collectives.waiting import waiting, waits
from kinetoscope.analysis.ranks.comparison import (
    RankComparison,
    comparison,
    culprit,
    slow_transfers,
    verdict_of,
)
from kinetoscope.analysis.ranks.rows import LINK, WHY, RankVerdict
from kinetoscope.analysis.replay.ranks import evenly_loaded, without_lateness
from kinetoscope.findings.rule import *

WORK = {"slow kernel", "more work", "compute"}  # the same work, unevenly spread


LISTED = 30  # characters; more ranks are counted
AS_LONG = "with transfers as long as those of groups like it"


def compared(ranks: RankComparison) -> Findings:
    """The rank, the ranks or the link that the comparison of ranks names, and the cost that it found."""
    found = ranks.verdict
    if found.status == LINK:
        yield Finding(
            title=f"The link of ranks {found.listed} is slow: its transfers take {found.detail}",
            saving=savings.by_comparison(found, AS_LONG),
            evidence=[],
            advice=_look(found, ""),
        )
    elif found.rank is not None:
        name = _name(found)
        keeps = "keep" if len(found.ranks) > 1 else "keeps"
        caused = f"which caused {found.share_of_waiting:.0%} of the waiting"
        yield Finding(
            title=f"{name.capitalize()}{_place(found)} {keeps} the others waiting ({caused})",
            saving=savings.by_comparison(found, f"with {name} in collectives no later than its peers"),
            evidence=[],
            advice=_look(found, name),
        )


def find(view: RankView) -> Findings:
    found = verdict_of(view.run)
    if found.status == LINK:
        yield from _slow_link(view, found)
        return
    waited = waits(view.run, view.trace)
    # That one rank is waited for most is not its fault where that may be chance, or in a pipeline.
    is_chance = found.rank is None and culprit(view.run)[0] is not None
    if waited.is_empty() or is_chance or view.rank in found.ranks:
        return
    saving = savings.device(view, waited, "exposed waiting inside collectives, all of it")
    us = view.us_of(waited, "saved_ns")
    longest = waited.sort("saved_ns", descending=True).head(6)
    shown = [evidence.of(view, "the collectives that waited longest", longest)]
    if found.rank is None:
        if saving.share >= MEDIUM:
            yield Finding(
                title=f"Another rank keeps rank {view.rank} waiting (estimated from the shortest collective "
                "of each kind)",
                affected_us=us,
                saving=saving,
                evidence=shown,
                advice=_look(found, "another rank"),
            )
        return
    if saving.share < LOW:  # what is named costs more than chance
        return
    shown += [_meanwhile(late) for late in views(view.run) if late.rank == found.rank and len(late.gaps)]
    spread = found.cause in WORK and comparison(view.run).longer.is_even
    peers = "the mean of all, as if the work was shared" if spread else "its peers"
    less = (evenly_loaded if spread else without_lateness)(view.run)
    basis = f"with {_name(found)} in collectives no later than {peers}; all ranks replayed together"
    # A device that does not wait is not freed: it has nothing else to do then.
    together = {one: less[one] for one in found.ranks}
    saving = replace(saving, together=together, basis=basis, freed_share=0.0)
    for one in compared(comparison(view.run)):
        yield replace(one, affected_us=us, saving=saving, evidence=shown)


def _slow_link(view: RankView, found: RankVerdict) -> Findings:
    """The collectives of a rank that take longer since its group's link is slow."""
    own = waiting(view.run).filter(rank=view.rank).select("id", "instance")
    shares = slow_transfers(comparison(view.run))
    left = pl.col("instance").replace_strict(shares, default=1.0, return_dtype=pl.Float64)
    slow = view.work.join(own.filter(left < 1), on="id", maintain_order="left")
    slow = slow.with_columns(saved_ns=pl.col("duration_ns") * (1 - left))
    saving = savings.of(view, shorten(slow["id"], slow["saved_ns"]), AS_LONG)
    if view.rank not in found.ranks or saving.share < LOW:
        return
    longest = slow.sort("saved_ns", descending=True).head(6)
    shown = [evidence.of(view, "the collectives that lost most", longest)]
    for one in compared(comparison(view.run)):
        yield replace(one, affected_us=view.us_of(slow), saving=saving, evidence=shown)


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
    seen, look = WHY[found.cause]
    detail = f" ({found.detail})" if found.detail else ""
    return f"{seen[0].upper()}{seen[1:]}{detail}: {look}."


def _meanwhile(late: RankView) -> Evidence:
    """The longest idle time of the late rank's device; the events are in that rank's own file."""
    (shown,) = evidence.of_gaps(late, late.gaps.sort("idle_ns", descending=True).head(1))
    return msgspec.structs.replace(shown, text=f"rank {late.rank} was {shown.text}", events=())
