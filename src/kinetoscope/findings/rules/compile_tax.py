"""Entering compiled code costs more than what it does.

What it finds
    Compiled functions that are entered many times a step for one to three kernels each.

Why it is slow
    Each call checks its guards (TorchDynamo Cache Lookup), goes through AOTAutograd's prologue and the generated
    wrapper: 30 to 60 µs of host time, where the eager op takes ten.

How it decides
    At least five entries a step, a median of at most three launches per entry, and host time that shortens the step
    when it is taken down to 10 µs a launch.

What to do
    Compile the caller instead: the loop, the block, the whole model. Or leave the tiny function eager. CUDA graphs
    (``mode="reduce-overhead"``) help if the shapes are fixed.

Source
    "Profiling in PyTorch", part 1: "CPU overhead went up, not down".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.compiled.regions import region_of_work, regions
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import scenes, severity

ENTRIES = 5  # a step: below, the tax is a few hundred microseconds at most
LAUNCHES = 3
EAGER_NS = 10_000  # what an eager op takes on the host, its launch included


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        entered = scene.inside(regions(scene.trace))
        if len(entered) < ENTRIES * scene.steps:
            continue
        launches = region_of_work(scene.trace).rename("id").drop_nulls().value_counts(name="launches")
        entered = entered.join(launches, on="id", how="left").with_columns(pl.col("launches").fill_null(0))
        small = entered.filter(pl.col("launches").is_between(1, LAUNCHES))
        if len(small) < ENTRIES * scene.steps or float(entered["launches"].median() or 0) > LAUNCHES:  # type: ignore[arg-type]
            continue
        lookups = scene.inside(scene.host(r"^TorchDynamo Cache Lookup$"))
        lookup = float(lookups["duration_ns"].median() or 0) if len(lookups) else 0.0  # type: ignore[arg-type]
        spared = small.select(
            (pl.col("start_ns") + pl.col("duration_ns")).alias("at"),
            (pl.col("duration_ns") + lookup - EAGER_NS * pl.col("launches"))
            .clip(lower_bound=0)
            .alias("saved_ns"),
        ).cast(pl.Int64)
        saving = scene.host_saving(spared, "host time of the entries beyond 10 µs a launch")
        level = severity(saving)
        if level is None:
            continue
        each = float(small["duration_ns"].median() or 0) / 1000  # type: ignore[arg-type]
        names = small["name"].cast(pl.String).unique(maintain_order=True).head(2).to_list()
        yield Finding(
            title=f"Compiled code is entered {scene.per_step(len(small)):.0f} times a {scene.unit} for "
            f"{float(small['launches'].mean() or 0):.0f} launches each, at {numbers.time(each + lookup / 1000)} of host time",  # type: ignore[arg-type]
            severity=level,
            saving=saving,
            evidence=[scene.evidence(f"entries of {', '.join(names)}", small)],
            advice="Compile what calls these functions, so that one entry does all of it.",
            snippet="model = torch.compile(model)  # not each of its helpers",
            source=scene.source(small["id"]),
            rank=scene.rank,
        )
