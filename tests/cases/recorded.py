"""The labelled cases as profiles: what `record.py` recorded and measured."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kinetoscope.analysis.run import Run, load
from kinetoscope.findings.model import Finding
from kinetoscope.findings.registry import find
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings

HERE = Path(__file__).resolve().parent


def cases() -> list[str]:
    """Every folder that has a program."""
    return sorted(path.parent.name for path in HERE.glob("*/after.py"))


@cache
def recorded(case: str, side: str) -> Run | None:
    """One side's recording, with the step times that were measured without the profiler; None: not recorded."""
    folder = HERE / case
    files = sorted(
        [
            *folder.glob(f"{side}.json.gz"),
            *folder.glob(f"{side}.rank*.json.gz"),
            *folder.glob(f"{side}.compile.log.gz"),
        ]
    )
    if not files:
        return None
    ranks = [
        RankRecord(rank=rank, steps=StepTimings(unprofiled_s=tuple(us / 1e6 for us in run["unprofiled_us"])))
        for rank, run in enumerate(_runs(case, side))
        if "unprofiled_us" in run
    ]
    loaded = load(*files)
    return replace(loaded, manifest=Manifest(ranks=tuple(ranks))) if ranks else loaded


def found(case: str, side: str) -> list[Finding]:
    """What the case's own rule finds in one side's recording."""
    recording = recorded(case, side)
    return [finding for finding in find(recording) if finding.rule == case] if recording else []


def predicted_us(case: str) -> float:
    return sum(finding.saving.us for finding in found(case, "before"))


def measured_us(case: str) -> float | None:
    """Step time before less step time after the fix, without the profiler; None where it was not measured."""
    times = [_step_us(case, side) for side in ("before", "after")]
    return times[0] - times[1] if times[0] is not None and times[1] is not None else None


def _step_us(case: str, side: str) -> float | None:
    runs = _runs(case, side)
    if not runs:
        return None
    return statistics.median(runs[0].get("unprofiled_us") or [runs[0]["recorded_wall_us"]])


def _runs(case: str, side: str) -> list[dict[str, Any]]:
    """What was measured, one entry a rank."""
    entry = measured().get(case, {}).get(side, [])
    return entry if isinstance(entry, list) else [entry]


@cache
def measured() -> dict[str, dict[str, Any]]:
    return msgspec.json.decode((HERE / "measured.json").read_bytes())
