"""The device waits, and nothing that was recorded says what for.

What it finds
    A tenth of the step or more in which the device has nothing to do while the thread that launches its work
    is silent: no op, no runtime call, no wait was recorded there.

Why it is slow
    The thread runs code that a profiler of ops does not see: Python of the program (tokenising, logging,
    metrics, augmentation), NumPy and other libraries, file and network access.

How it decides
    Idle time of the cause ``unexplained`` that ends with a launch made too late. What was launched in time
    and started late is the device's own affair and is left out. What it saves is a ceiling: all of it, where
    that code goes to another thread or to the loader's workers.

What to do
    Record it with stacks (``kinetoscope run --stacks``), which name the functions; then take them out of the
    step, do them less often or in another thread.

Source
    "Profiling in PyTorch", part 1: gaps between kernels in a step.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.findings import evidence, savings
from kinetoscope.findings.model import Evidence, Finding
from kinetoscope.findings.savings import HIGH
from kinetoscope.findings.scene import Scene

SHOWN = 3  # gaps


def find(scene: Scene) -> Iterable[Finding]:
    silent = _silent(scene)
    if scene.us_of(silent, "idle_ns") < HIGH * scene.step_us:
        return
    saving = savings.idle(scene, silent, "the idle time in which the launching thread recorded nothing")
    longest = silent.sort("idle_ns", descending=True).head(SHOWN)
    yield Finding(
        title=f"The device waits {numbers.time(scene.us_of(silent, 'idle_ns'))} a {scene.unit} for code that "
        f"was not recorded: Python, or a library that is not profiled",
        saving=saving,
        at_most="medium" if scene.unprofiled_us is None else "high",
        evidence=[_gap(scene, gap) for gap in longest.iter_rows(named=True)],
        advice="Record with --stacks to see which function it is; take it out of the step, do it less often, "
        "or in another thread.",
        source=evidence.source(scene, longest["op"]),
    )


def _silent(scene: Scene) -> pl.DataFrame:
    """Unexplained idle time before work that was launched too late, with that work's ``op``."""
    device, host = scene.trace.device_events, scene.trace.host_events
    gaps = scene.idle("unexplained").filter(pl.col("start_ns") > scene.first_work_ns)
    ended = device.select("op", "launch")[gaps["next"]]
    return gaps.with_columns(
        ended.select(pl.coalesce("op", "launch").alias("op")).to_series(),
        host["start_ns"].gather(ended["launch"]).alias("launched_ns"),
    ).filter(pl.col("launched_ns") >= pl.col("start_ns"))


def _gap(scene: Scene, gap: dict[str, int | None]) -> Evidence:
    op, start, end = gap["op"], gap["start_ns"] or 0, gap["end_ns"] or 0
    name = "" if op is None else f" before {scene.trace.host_events['name'][op]}"
    shown = () if op is None else (int(scene.trace.host_events["event"][op]),)
    return Evidence(f"idle {numbers.time((end - start) / 1000)}{name}", start / 1000, end / 1000, shown)
