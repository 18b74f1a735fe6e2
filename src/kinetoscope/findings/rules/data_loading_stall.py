"""The device waits for the next batch.

What it finds
    Idle time while the training thread sits in the DataLoader's ``__next__``.

Why it is slow
    The batch is made when it is asked for (``num_workers=0``), or the workers make batches more slowly than
    the device consumes them.

How it decides
    Idle time of the cause ``data-loading``. In a recording without device work: the time in ``__next__``
    itself.

What to do
    More workers (``num_workers``), ``persistent_workers=True``, ``prefetch_factor``, ``pin_memory=True``; do
    the decoding once and store the result; move augmentation to the device.

Source
    PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.events.torch_names import DATA_LOADER
from kinetoscope.findings import evidence, savings
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import Scene


def find(scene: Scene) -> Iterable[Finding]:
    calls = scene.inside(scene.host(DATA_LOADER))
    if calls.is_empty():
        return
    if len(scene.work):
        waiting, basis = "The device waits", "idle time while the host waits for a batch"
        us = scene.idle_us("data-loading")
    else:
        waiting, basis = "The step waits", "time in the loader"
        us = scene.us_of(calls)
    alone = calls["name"].cast(pl.String).str.contains("SingleProcess").any()
    yield Finding(
        title=f"{waiting} {us / 1000:.1f} ms a {scene.unit} for data ({us / scene.step_us:.0%} of it)"
        + (": the loader has no workers" if alone else ""),
        saving=savings.idle(scene, us, basis),
        evidence=[evidence.of(scene, f"{len(calls)} calls of the loader's __next__", calls)],
        advice="Let workers make batches ahead of time."
        if alone
        else "The workers do not keep up: more of them, a larger prefetch_factor, or less work per sample.",
        snippet="DataLoader(dataset, num_workers=8, pin_memory=True, persistent_workers=True, "
        "prefetch_factor=4)",
        source=evidence.source(scene, calls["id"]),
    )
