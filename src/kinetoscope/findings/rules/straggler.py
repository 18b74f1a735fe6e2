"""Ranks wait for one that is late.

What it finds
    Collectives that take long on one rank because it waits in them for another.

Why it is slow
    A collective ends when the last rank has joined. All others burn that time in a kernel that looks busy.

How it decides
    With the recordings of all ranks: what a collective takes longer than on the rank that came last. With one
    recording alone: what it takes longer than the shortest of its kind and size. Exposed waiting of 3 % of
    the step or more. A rank that caused half of the waiting is the straggler, unless that may be
    chance; if ranks take turns it is ``collective-imbalance``; if it is unknown, as with a pipeline's
    stages, none is named (``report`` gives the reason). The saving is what the job's step gains, with all
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

from kinetoscope.analysis.collectives.recorded import ranges
from kinetoscope.analysis.collectives.waiting import waits
from kinetoscope.analysis.ranks.comparison import comparison, culprit
from kinetoscope.analysis.replay.ranks import evenly_loaded, without_lateness
from kinetoscope.findings.rule import *
from kinetoscope.sources.run import LoadedRun

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
    # That one rank is waited for most is not its fault where that may be chance, or in a pipeline.
    if rank is not None and (found.rank is None or view.rank in found.ranks):
        return
    spread = found.rank == rank and found.cause in WORK and comparison(view.run).longer.is_even
    saving = savings.device(view, waited, "exposed waiting inside collectives, all of it")
    if saving.share < MEDIUM:
        return
    several = f"ranks {ranges(found.ranks)}" if len(found.ranks) > 1 else f"rank {rank}"
    other = "another rank" if rank is None else several
    if rank is not None:
        peers = "the mean of all, as if the work was shared" if spread else "its peers"
        less = (evenly_loaded if spread else without_lateness)(view.run)
        basis = f"with {other} in collectives no later than {peers}; all ranks replayed together"
        # A device that does not wait is not freed: it has nothing else to do then.
        together = {one: less[one] for one in found.ranks}
        saving = replace(saving, together=together, basis=basis, freed_share=0.0)
    us = view.us_of(waited, "saved_ns")
    keeps = "keep" if len(found.ranks) > 1 else "keeps"
    basis = (
        "estimated from the shortest collective of each kind"
        if rank is None
        else f"which caused {share:.0%} of the waiting"
    )
    longest = waited.sort("saved_ns", descending=True).head(6)
    yield Finding(
        title=f"{other.capitalize()} {keeps} rank {view.rank} waiting ({basis})",
        affected_us=us,
        saving=saving,
        evidence=[
            evidence.of(view, "the collectives that waited longest", longest),
            *(_meanwhile(late) for late in views(view.run) if late.rank == rank and len(late.gaps)),
        ],
        advice=_advice(view.run, rank, other),
    )


def _advice(run: LoadedRun, rank: int | None, other: str) -> str:
    """The place to look at, by what the late rank did and the others did not."""
    found = comparison(run).verdict
    if rank is None or found.rank != rank or found.cause not in LOOK:
        return f"Find out why {other} is late: input, data loading, clocks, other work on its host."
    detail = f" ({found.detail})" if found.detail else ""
    return f"Between collectives {other} {LOOK[found.cause]}{detail}."


def _meanwhile(late: RankView) -> Evidence:
    """The longest idle time of the late rank's device; the events are in that rank's own file."""
    (shown,) = evidence.of_gaps(late, late.gaps.sort("idle_ns", descending=True).head(1))
    return msgspec.structs.replace(shown, text=f"rank {late.rank} was {shown.text}", events=())
