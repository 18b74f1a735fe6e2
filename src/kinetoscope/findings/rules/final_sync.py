"""The wait at the end of the recording is the profiler's.

What it finds
    ``cudaDeviceSynchronize`` (``hipDeviceSynchronize``) after the last recorded step: the profiler waits for the device
    to finish, so that it can collect what ran.

Why it is slow
    It is not the program's cost. Its length is mostly the work that was still queued: long in a program that launches
    far ahead of its device, short in one that waits for launches.

How it decides
    The last synchronisation of the recording comes after the last launch, and the program had not itself waited for
    the device between its last launch and the end of its last step.

What to do
    Leave it out of the reckoning. If the steps' own host times matter, end each step with a synchronisation while
    profiling.

Source
    "Profiling in PyTorch", part 1: "Why is cudaDeviceSynchronize so big?"
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.events.torch_names import SYNCHRONIZATION
from kinetoscope.analysis.run import Run
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.scene import scenes

FLUSH = r"^(cuda|hip)DeviceSynchronize$"


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        flushes = scene.host(FLUSH).sort("start_ns")
        launches = scene.trace.host_events["start_ns"].gather(
            scene.trace.device_events["launch"].drop_nulls()
        )
        if flushes.is_empty() or launches.is_empty():
            continue
        last, launched = flushes.tail(1), int(launches.max())  # type: ignore[arg-type]
        at = int(last["start_ns"][0])
        if at < launched:
            continue
        waited = scene.host(SYNCHRONIZATION).filter(
            (pl.col("start_ns") > launched) & (pl.col("start_ns") < at)
        )
        if len(waited):
            continue
        duration = int(last["duration_ns"][0])
        pending = scene.trace.device_events.filter(pl.col("start_ns") + pl.col("duration_ns") > at)
        still = (
            f"{len(pending)} device events had still to run"
            if len(pending)
            else f"nothing was left to run, and the device had been busy {scene.busy_share:.0%} of the time"
        )
        yield Finding(
            title=f"The {numbers.time(duration / 1000)} of {last['name'][0]} at the end are the profiler's flush: {still}",
            severity="info",
            saving=Saving(0.0, "the profiler's own cost; a run without it does not pay this", False, 0.0),
            evidence=[scene.evidence("the flush", last)],
            advice="Leave it out of the reckoning.",
            rank=scene.rank,
        )
