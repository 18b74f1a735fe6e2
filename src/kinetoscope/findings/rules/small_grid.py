"""A long kernel with fewer blocks than the device has multiprocessors.

What it finds
    Kernels of 20 µs and more whose grid leaves multiprocessors without a block.

Why it is slow
    A block runs on one multiprocessor. Eight blocks on a device of 132 use a sixteenth of it, at any block size.

How it decides
    Blocks of the grid against the device's multiprocessors (at most half of them used). Were the work cut finer, the
    kernel would take blocks/multiprocessors of its time. Communication kernels, small on purpose, are left out.

What to do
    Cut the work along another dimension: a scan or reduction in pieces, split-K, more heads or rows in one launch.

Source
    CUDA C++ Best Practices Guide, "Thread and Block Heuristics".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding
from kinetoscope.findings.proof import commands as proofs
from kinetoscope.findings.scene import heaviest, scenes, severity

LONG_NS = 20_000  # shorter ones are as long as a launch: more blocks would save nothing
USED = 0.5  # above it, some multiprocessors have one block more than others, and cutting finer gains little


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        processors = scene.multiprocessors
        if processors is None:
            continue
        kernels = (
            scene.shaped(
                scene.work.filter((pl.col("part") == "compute") & (pl.col("duration_ns") >= LONG_NS))
            )
            .filter(pl.col("blocks") <= USED * processors)
            .with_columns((pl.col("duration_ns") * (1 - pl.col("blocks") / processors)).alias("saved_ns"))
        )
        for group in heaviest(kernels, "name"):
            name = str(group["name"][0])
            saving = scene.device_saving(group, f"the same work spread over {processors} multiprocessors")
            level = severity(saving)
            if level in (None, "info"):  # one kernel of many, beside the critical path
                continue
            longest = group.sort("duration_ns", descending=True)
            yield Finding(
                subject=name,
                title=f"{scene.short(name)} uses {longest['blocks'][0]} blocks on {processors} multiprocessors and takes "
                f"{numbers.time(int(longest['duration_ns'][0]) / 1000)}",
                severity=level,
                saving=saving,
                evidence=[scene.evidence(f"{len(group)} launches", longest)],
                advice="Cut the work along another dimension, so that every multiprocessor has some.",
                source=scene.source(longest["op"]),
                proof=proofs.bench(scene, name),
                rank=scene.rank,
            )
