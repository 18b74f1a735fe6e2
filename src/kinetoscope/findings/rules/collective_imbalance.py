"""Ranks take turns in being late, or send uneven shares.

What it finds
    Waiting inside collectives without one culprit, and all-to-alls whose split sizes differ much: experts, shards or
    sequences of uneven load.

Why it is slow
    In each collective the most loaded rank sets the pace; the others wait, each in turn.

How it decides
    Recorded split sizes whose largest is at least 1.5 times their mean, or exposed waiting of 3 % of the step with no
    rank waited for in more than 60 % of it. Half of the waiting counts as saved: an even load brings the slowest down
    to the mean, not to the fastest.

What to do
    Balance what is sent: an auxiliary load-balancing loss or capacity limit for experts, sequences packed by length,
    embedding tables placed by their traffic.

Source
    The eight-rank DLRM recording of param; mixture-of-experts load balancing (Switch Transformer).
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.profile import Profile
from kinetoscope.findings.model import Evidence, Finding
from kinetoscope.findings.rules.straggler import MOSTLY
from kinetoscope.findings.scene import LOW, MEDIUM, Scene, scenes, severity
from kinetoscope.findings.waits import culprit, waits

UNEVEN = 1.5
GAIN = 0.5


def find(profile: Profile) -> Iterable[Finding]:
    for scene in scenes(profile):
        waited = waits(scene)
        uneven = _uneven_splits(scene)
        if waited.is_empty():
            continue
        rank, share = culprit(profile)
        turns = rank is not None and share < MOSTLY
        if uneven.is_empty() and not turns:
            continue
        saving = scene.device_saving(
            waited.with_columns((pl.col("saved_ns") * GAIN).alias("saved_ns")), "half of the exposed waiting"
        )
        level = severity(saving)
        if level is None or saving.share < (LOW if len(uneven) else MEDIUM):
            continue
        us = scene.per_step(float(waited["saved_ns"].sum())) / 1000
        worst = f"split sizes up to {uneven['ratio'].max():.1f} times their mean" if len(uneven) else "ranks take turns"
        evidence: list[Evidence] = [
            scene.evidence("the collectives that waited longest", waited.sort("saved_ns", descending=True).head(6))
        ]
        if len(uneven):
            evidence.append(scene.evidence(f"splits {uneven['splits'][0]}", uneven))
        yield Finding(
            title=f"Uneven collectives: rank {scene.rank} waits {us / 1000:.2f} ms a {scene.unit} ({worst})",
            severity=level,
            saving=saving,
            evidence=evidence,
            advice="Balance what the ranks send and compute.",
            rank=scene.rank,
        )


def _uneven_splits(scene: Scene) -> pl.DataFrame:
    """Collectives with recorded split sizes whose largest is far above their mean."""
    collectives = scene.work.filter(pl.col("collective").is_not_null())
    splits = pl.coalesce(
        pl.col("collective").str.json_path_match(f"$['{side} split size']").str.extract(r"^(\[.*\d.*\])$")
        for side in ("In", "Out")
    )
    numbers = pl.col("splits").str.extract_all(r"\d+").list.eval(pl.element().cast(pl.Float64))
    return (
        collectives.with_columns(splits.alias("splits"))
        .drop_nulls("splits")
        .with_columns((numbers.list.max() / numbers.list.mean()).alias("ratio"))
        .filter(pl.col("ratio") >= UNEVEN)
        .sort("ratio", descending=True)
    )
