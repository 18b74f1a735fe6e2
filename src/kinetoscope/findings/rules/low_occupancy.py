"""A kernel's registers or shared memory leave room for few threads.

What it finds
    Long kernels, not matrix products, whose blocks are so heavy that a multiprocessor holds few warps.

Why it is slow
    A multiprocessor hides the latency of memory by switching between warps. With a tenth of them resident, it waits.
    Matrix products live well at low occupancy (they pipeline their loads); pointwise work and reductions do not.

How it decides
    At most a quarter of the threads that a multiprocessor holds can be resident, computed from registers per thread,
    shared memory and block size; the grid has more blocks than the device can hold at once, and the kernel takes 20 µs
    or more. Half of its time counts as saved: the gain that such kernels show when their registers are halved.

What to do
    Smaller blocks or more warps for the same block (Triton: ``BLOCK`` down, ``num_warps`` up), fewer values held at a
    time, less unrolling.

Source
    CUDA C++ Best Practices Guide, "Occupancy".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding
from kinetoscope.findings.proof import commands as proofs
from kinetoscope.findings.scene import heaviest, scenes, severity

LONG_NS = 20_000
OCCUPANCY = 0.25
GAIN = 0.5
# Warps of their own kind: software-pipelined loads and tensor cores do not need many.
PIPELINED = ("matmul", "convolution", "attention", "template", "communication", "copy")


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        if scene.multiprocessors is None:
            continue
        long = scene.work.filter((pl.col("part") == "compute") & (pl.col("duration_ns") >= LONG_NS))
        long = long.filter(~pl.col("category").cast(pl.String).is_in(PIPELINED))
        kernels = (
            scene.shaped(long)
            .with_columns(
                (pl.col("resident") * pl.col("threads") / scene.threads_per_multiprocessor).alias("occupancy")
            )
            .filter(
                (pl.col("occupancy") <= OCCUPANCY)
                & (pl.col("blocks") > pl.col("resident") * scene.multiprocessors)
            )
            .with_columns((pl.col("duration_ns") * GAIN).alias("saved_ns"))
        )
        for group in heaviest(kernels, "name"):
            name = str(group["name"][0])
            saving = scene.device_saving(group, "half of the kernels' time, an estimate")
            level = severity(saving, at_most="medium")
            if level in (None, "info"):  # one kernel of many, beside the critical path
                continue
            first = group.sort("duration_ns", descending=True).row(0, named=True)
            yield Finding(
                subject=name,
                title=f"{scene.short(name)} keeps {first['occupancy']:.0%} of a multiprocessor's threads resident "
                f"({first['registers']} registers a thread, {(first['shared_memory_bytes'] or 0) / 1024:.0f} KiB shared)",
                severity=level,
                saving=saving,
                evidence=[
                    scene.evidence(f"{len(group)} launches", group.sort("duration_ns", descending=True))
                ],
                advice="Smaller blocks, more warps, or fewer values held at a time.",
                snippet="kernel[grid](…, BLOCK=1024, num_warps=4)",
                source=scene.source(group["op"]),
                proof=proofs.bench(scene, name),
                rank=scene.rank,
            )
