"""Ranks wait for one that is late.

What it finds
    Collectives that take long on one rank because it waits in them for another.

Why it is slow
    A collective ends when the last rank has joined. All others burn that time in a kernel that looks busy.

How it decides
    With the recordings of all ranks: what a collective takes longer than on the rank that came last. With one
    recording alone: what it takes longer than the shortest of its kind and size. Exposed waiting of 3 % of
    the step or more. A rank for whose doing half of the waiting was is the straggler, unless it may be
    chance; if they take turns it is ``collective-imbalance``; if it is unknown, as of a pipeline's
    stages, nobody is named (``report`` says why). Saved is what the job's step gains, all ranks replayed at
    once, if the late rank's ways into collectives take no longer than its peers'; where it computes longer,
    no longer than the mean of all, since the work has to be shared out and the others get slower.

What to do
    What the rank that is waited for did longer than the others between two collectives says where to look:
    its kernels (one of them, or all: a throttled device), its host, its data loader, a synchronisation,
    a recompilation. Where nothing does, compare its recording with another's.

Source
    The eight-rank DLRM recording of param, where rank 7 is last in five of eight collectives.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from kinetoscope.analysis.collectives.waiting import waits
from kinetoscope.analysis.ranks.comparison import comparison, culprit
from kinetoscope.analysis.replay.ranks import evenly_loaded, without_lateness
from kinetoscope.findings.rank_view import views
from kinetoscope.findings.rule import MEDIUM, Evidence, Finding, Findings, RankView, evidence, savings
from kinetoscope.sources.run import Run

# By the cause of its lateness (see ``analysis.ranks``): what the late rank did, and what to look at.
LOOK = {
    "slow kernel": "takes longer for one kernel: look at its input there",
    "clocks": "takes longer for all kernels: look at its device's clocks and temperature",
    "more work": "launches more kernels: give all ranks as much to do",
    "more data": "is given more data by all-to-alls: balance what its experts are sent",
    "compute": "computes longer: give all ranks as much to do",
    "host": "launches later than the others: look at its host's code, CPU and other work there",
    "data loader": "waits longer for its data loader: look at its disk, its network and its workers",
    "synchronization": "waits for its device where the others do not: remove that call",
    "recompilation": "compiles: look at what changes on it alone (`kinetoscope graphs`)",
    "allocator": "allocates device memory: look at its shapes and its memory",
}


WORK = {"slow kernel", "more work", "compute"}  # the same work, unevenly spread


def find(view: RankView) -> Findings:
    waited = waits(view.run, view.trace)
    if waited.is_empty():
        return
    rank, share = culprit(view.run)
    found = comparison(view.run).verdict
    # That one rank is waited for most is nobody's fault where it would be so by chance, or in a pipeline.
    if rank is not None and (found.rank is None or rank == view.rank):
        return
    spread = found.rank == rank and found.cause in WORK
    saving = savings.device(view, waited, "exposed waiting inside collectives, all of it")
    if saving.share < MEDIUM:
        return
    if rank is not None:
        peers = "the mean of all, as if the work was shared out" if spread else "its peers'"
        less = (evenly_loaded if spread else without_lateness)(view.run)[rank]
        basis = f"rank {rank}'s ways into collectives no longer than {peers}; all ranks replayed together"
        # A device that need not wait is not freed: it has nothing else to do meanwhile.
        saving = replace(saving, together={rank: less}, basis=basis, freed_share=0.0)
    us = view.us_of(waited, "saved_ns")
    whom = "another rank" if rank is None else f"rank {rank}"
    basis = (
        "estimated from the shortest collective of each kind"
        if rank is None
        else f"its doing in {share:.0%} of the waiting"
    )
    longest = waited.sort("saved_ns", descending=True).head(6)
    yield Finding(
        title=f"Rank {view.rank} waits {us / 1000:.1f} ms per {view.unit} for {whom} ({basis})",
        saving=saving,
        evidence=[
            evidence.of(view, "the collectives that waited longest", longest),
            *(_meanwhile(late) for late in views(view.run) if late.rank == rank and len(late.gaps)),
        ],
        advice=_advice(view.run, rank, whom),
    )


def _advice(run: Run, rank: int | None, whom: str) -> str:
    """Where to look, by what the late rank did that the others did not."""
    found = comparison(run).verdict
    if rank is None or found.rank != rank or found.cause not in LOOK:
        return f"Find out why {whom} is late: input, data loading, clocks, other work on its host."
    detail = f" ({found.detail})" if found.detail else ""
    return f"Between collectives {whom} {LOOK[found.cause]}{detail}."


def _meanwhile(late: RankView) -> Evidence:
    """What the device of the late rank idled for longest; the events are in that rank's own file."""
    (shown,) = evidence.of_gaps(late, late.gaps.sort("idle_ns", descending=True).head(1))
    return msgspec.structs.replace(shown, text=f"rank {late.rank} was {shown.text}", events=())
