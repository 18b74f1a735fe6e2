"""The labelled cases as runs: what `record.py` recorded and measured."""

from __future__ import annotations

import statistics
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from cases.record import options
from kinetoscope.findings.model import Finding
from kinetoscope.findings.registry import find
from kinetoscope.recording.manifest import BatchPadding, Manifest, OptimizerStep, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun, MemoryFiles, load

HERE = Path(__file__).resolve().parent


class Measured(msgspec.Struct, frozen=True):
    """What `record.py` measured of one rank: step times without the profiler, the mean step with it."""

    recorded_wall_us: float
    unprofiled_us: tuple[float, ...] = ()
    peak: dict[str, int] | None = None


def cases() -> list[str]:
    """Every folder that has a program."""
    return sorted(path.parent.name for path in HERE.glob("*/after.py"))


@cache
def recorded(case: str, side: str) -> LoadedRun | None:
    """One side's recording, with the step times measured without the profiler; None: not recorded."""
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
        RankRecord(
            rank=rank,
            steps=StepTimings(
                unprofiled_s=tuple(us / 1e6 for us in ran.unprofiled_us),
                updates=tuple(OptimizerStep(*update) for update in options(case, side)["updates"]),
                padding=BatchPadding(*padding) if (padding := options(case, side)["padding"]) else None,
            ),
            peak_memory_bytes=(ran.peak or {}).get("allocated"),
        )
        for rank, ran in enumerate(_ranks(case, side))
        if ran.unprofiled_us
    ]
    loaded = load(*files)
    if (snapshot := folder / f"{side}.memory.pickle.gz").is_file():
        memory = (MemoryFiles(0, snapshot, folder / f"{side}.memory.json"),)
        loaded = replace(loaded, snapshots=memory)
    return replace(loaded, manifest=Manifest(ranks=tuple(ranks))) if ranks else loaded


@cache
def findings(case: str, side: str) -> tuple[Finding, ...]:
    """What all rules find in one side's recording."""
    recording = recorded(case, side)
    return tuple(find(recording)) if recording else ()


def found(case: str, side: str) -> list[Finding]:
    """What the case's own rule finds in one side's recording."""
    return [finding for finding in findings(case, side) if finding.rule == case]


def predicted_us(case: str) -> float:
    return sum(finding.saving.us for finding in found(case, "before"))


def predicted_bytes(case: str) -> int:
    return sum(finding.saving_bytes for finding in found(case, "before"))


def measured_bytes(case: str) -> int | None:
    """The peak before less the peak after the fix, without the profiler, of what was allocated (of holes:
    reserved); None where it was not measured."""
    kind = "reserved" if case == "memory-fragmentation" else "allocated"
    peaks = [ranks[0].peak for side in ("before", "after") if (ranks := _ranks(case, side))]
    before, after = [*peaks, None, None][:2]
    return before[kind] - after[kind] if before and after else None


def measured_us(case: str) -> float | None:
    """Step time before less step time after the fix, without the profiler; None where it was not measured."""
    times = [_step_us(case, side) for side in ("before", "after")]
    return times[0] - times[1] if times[0] is not None and times[1] is not None else None


def _step_us(case: str, side: str) -> float | None:
    ranks = _ranks(case, side)
    return statistics.median(ranks[0].unprofiled_us or [ranks[0].recorded_wall_us]) if ranks else None


def _ranks(case: str, side: str) -> list[Measured]:
    """What was measured, one entry a rank."""
    entry = _measured().get(case, {}).get(side, [])
    return entry if isinstance(entry, list) else [entry]


@cache
def _measured() -> dict[str, dict[str, Measured | list[Measured]]]:
    text = (HERE / "measured.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, Measured | list[Measured]]])
