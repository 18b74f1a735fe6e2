"""Ranks wait for one that is late.

What it finds
    Collectives that take long on one rank because it waits in them for another.

Why it is slow
    A collective ends when the last rank has joined. All others burn that time in a kernel that looks busy.

How it decides
    With the recordings of all ranks: what a collective takes longer than on the rank that came last. With one
    recording alone: what it takes longer than the shortest of its kind and size. Exposed waiting of 3 % of the step
    or more. If one rank is waited for in more than 60 % of the time it is the straggler; if they take turns it is
    ``collective-imbalance``.

What to do
    On the rank that is waited for: is its input longer, its disk or CPU slower, its clock throttled? Compare its
    recording with another's (``kinetoscope diff``).

Source
    The eight-rank DLRM recording of param, where rank 7 is last in five of eight collectives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kinetoscope.analysis.idle.waits import culprit, waits
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Evidence, Finding
from kinetoscope.findings.scene import MEDIUM, Scene, scenes, severity

MOSTLY = 0.6


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        waited = waits(scene.run, scene.rank, scene.work)
        if waited.is_empty():
            continue
        rank, share = culprit(run)
        if rank is not None and (share < MOSTLY or rank == scene.rank):
            continue
        saving = scene.device_saving(waited, "exposed waiting inside collectives, all of it")
        level = severity(saving)
        if level is None or saving.share < MEDIUM:
            continue
        us = scene.per_step(float(waited["saved_ns"].sum())) / 1000
        whom = "another rank" if rank is None else f"rank {rank}"
        basis = (
            "estimated from the shortest collective of each kind"
            if rank is None
            else f"in {share:.0%} of the waiting"
        )
        yield Finding(
            title=f"Rank {scene.rank} waits {us / 1000:.1f} ms a {scene.unit} for {whom} ({basis})",
            severity=level,
            saving=saving,
            evidence=[
                scene.evidence(
                    "the collectives that waited longest", waited.sort("saved_ns", descending=True).head(6)
                ),
                *(_meanwhile(late) for late in scenes(run) if late.rank == rank and len(late.gaps)),
            ],
            advice=f"Find out why {whom} is late: input, data loading, clocks, other work on its host.",
            rank=scene.rank,
        )


def _meanwhile(late: Scene) -> Evidence:
    """What the device of the late rank idled for longest; the events are in that rank's own file."""
    shown = late.gap_evidence(late.gaps.sort("idle_ns", descending=True).row(0, named=True))
    return replace(shown, text=f"rank {late.rank} was {shown.text}", events=())
