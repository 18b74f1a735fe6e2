"""The device waits for the next batch.

What it finds
    Idle time while the training thread sits in the DataLoader's ``__next__``.

Why it is slow
    The batch is made when it is asked for (``num_workers=0``), or the workers make batches more slowly than the
    device consumes them.

How it decides
    Idle time of the cause ``data-loading``. In a recording without device work: the time in ``__next__`` itself.

What to do
    More workers (``num_workers``), ``persistent_workers=True``, ``prefetch_factor``, ``pin_memory=True``; do the
    decoding once and store the result; move augmentation to the device.

Source
    PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.events.torch_names import DATA_LOADER
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import scenes, severity


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        calls = scene.inside(scene.host(DATA_LOADER))
        if calls.is_empty():
            continue
        on_device = len(scene.work) > 0
        us = (
            scene.idle_us("data-loading")
            if on_device
            else int(calls["duration_ns"].sum()) / scene.steps / 1000
        )
        saving = scene.idle_saving(
            us, "idle time while the host waits for a batch" if on_device else "time in the loader"
        )
        level = severity(saving)
        if level is None:
            continue
        alone = calls["name"].cast(pl.String).str.contains("SingleProcess").any()
        yield Finding(
            title=f"{'The device waits' if on_device else 'The step waits'} {us / 1000:.1f} ms a {scene.unit} for data "
            f"({us / scene.step_us:.0%} of it)" + (": the loader has no workers" if alone else ""),
            severity=level,
            saving=saving,
            evidence=[scene.evidence(f"{len(calls)} calls of the loader's __next__", calls)],
            advice="Let workers make batches ahead of time."
            if alone
            else "The workers do not keep up: more of them, a larger prefetch_factor, or less work per sample.",
            snippet="DataLoader(dataset, num_workers=8, pin_memory=True, persistent_workers=True, prefetch_factor=4)",
            source=scene.source(calls["id"]),
            rank=scene.rank,
        )
