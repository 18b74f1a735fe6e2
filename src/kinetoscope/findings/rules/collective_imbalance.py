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

from kinetoscope.analysis.idle.waits import culprit, waits
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Evidence, Finding
from kinetoscope.findings.rules.straggler import MOSTLY
from kinetoscope.findings.scene import LOW, MEDIUM, Scene, scenes, severity

UNEVEN = 1.5
GAIN = 0.5


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        uneven = _uneven_splits(scene)
        rank, share = culprit(run)
        turns = rank is not None and share < MOSTLY
        if uneven.is_empty() and not turns:
            continue
        waited = waits(scene.run, scene.rank, scene.work) if turns else _beyond_its_bytes(uneven)
        saving = scene.device_saving(
            waited.with_columns((pl.col("saved_ns") * GAIN).alias("saved_ns")), "half of the exposed waiting"
        )
        level = severity(saving)
        if level is None or saving.share < (LOW if len(uneven) else MEDIUM):
            continue
        us = scene.per_step(float(waited["saved_ns"].sum())) / 1000
        worst = (
            f"split sizes up to {uneven['ratio'].max():.1f} times their mean"
            if len(uneven)
            else "ranks take turns"
        )
        evidence: list[Evidence] = [
            scene.evidence(
                "the collectives that waited longest", waited.sort("saved_ns", descending=True).head(6)
            )
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


def _beyond_its_bytes(uneven: pl.DataFrame) -> pl.DataFrame:
    """What uneven collectives took longer than the fastest of them would take for as many elements (``saved_ns``).

    Ranks cannot be compared one by one here: the same collective has another size on each."""
    sizes = (
        pl.col("collective")
        .cast(pl.String)
        .str.json_path_match(f"$['{side} msg nelems']")
        .cast(pl.Float64, strict=False)
        for side in ("In", "Out")
    )
    sized = uneven.with_columns(pl.max_horizontal(*sizes).alias("elements")).filter(pl.col("elements") > 0)
    fastest = (pl.col("duration_ns") / pl.col("elements")).min()
    return sized.with_columns((pl.col("duration_ns") - fastest * pl.col("elements")).alias("saved_ns"))


def _uneven_splits(scene: Scene) -> pl.DataFrame:
    """Collectives with recorded split sizes whose largest is far above their mean."""
    collectives = scene.work.filter(pl.col("collective").is_not_null())
    texts = {
        side: pl.col("collective")
        .cast(pl.String)
        .str.json_path_match(f"$['{side} split size']")
        .fill_null("")
        for side in ("In", "Out")
    }
    ratios = []
    for text in texts.values():
        numbers = text.str.extract_all(r"\d+").list.eval(pl.element().cast(pl.Float64))
        ratios.append(numbers.list.max() / numbers.list.mean())
    return (
        collectives.with_columns(
            pl.max_horizontal(*ratios).alias("ratio"),
            pl.concat_str("in " + texts["In"], "out " + texts["Out"], separator=", ").alias("splits"),
        )
        .filter(pl.col("ratio") >= UNEVEN)
        .sort("ratio", descending=True)
    )
