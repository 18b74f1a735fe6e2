"""How a run under `kinetoscope run` differs from a plain one, and what its recording holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harm.catalogue import Program

OURS = "kinetoscope:"
# Parts of lines on stderr that differ between any two runs: addresses, process numbers, times of day.
# Addresses, numbers of three digits and times; what is free of a device that others share; which thread block
# of a failed assertion spoke first.
_VARIES = re.compile(
    r"0x[0-9a-f]+|\b\d{3,}\b|\d+:\d+:\d+[.,\d]*"
    r"|(?:of which|this process has) [\d.]+ [KMG]iB|block: \[[\d,]+\], thread: \[[\d,]+\]"
)
# What other processes hold of a device, in an error of memory: before or after what this one holds.
_OF_OTHERS = re.compile(r"Process \d+ has [\d.]+ [KMG]iB memory in use\. ")
# Messages of Kineto and of torch's profiler, from C++; no setting silences them (docs/evidence/recording.md).
_OF_TORCH = re.compile(
    r"^[A-Z]+:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ "
    r"|^ERROR: External init callback must run in same thread"
    r"|Requested callback is not found"
    r"|^\[W.* collection\.cpp:\d+\]"
    r"|observer\.cpp:\d+\] Warning: Leaked callback handle"
    r"|^  File \".*/kinetoscope/capture/"
    r"|Memory block of unknown size was allocated before the profiling started"
)


@dataclass(frozen=True)
class Ended:
    """How one run ended and what it left: its files by name, each with a sum of its content."""

    status: int | None  # None: it was still running at its time-out
    out: str
    err: str
    files: Mapping[str, str]
    seconds: float


@dataclass
class Plain:
    """A program without us: its first run, whether its outputs are alike each time, and what went wrong."""

    program: Program
    run: Ended
    out_steady: bool
    err_steady: bool
    fault: str = ""


def compare(plain: Plain, run: Ended) -> list[str]:
    """What of the run under `run` is not as in the plain one, a sentence each."""
    if run.status is None:
        return ["it hangs"]
    differences = []
    before = plain.run
    if _as_shells_have_it(run.status) != _as_shells_have_it(before.status):
        differences.append(f"its status is {run.status}, plainly {before.status}")
    if plain.out_steady:
        if run.out != before.out:
            differences.append(f"stdout: {_first_difference(before.out, run.out)}")
        if run.files != before.files:
            differences.append(f"files: {_of_mappings(before.files, run.files)}")
    else:
        if len(run.out.splitlines()) != len(before.out.splitlines()):
            differences.append(
                f"stdout has {len(run.out.splitlines())} lines, plainly {len(before.out.splitlines())}"
            )
        if set(run.files) != set(before.files):
            differences.append(f"files: {sorted(set(run.files) ^ set(before.files))}")
    if plain.err_steady and own_lines(run.err) != own_lines(before.err):
        first = _first_difference("\n".join(own_lines(before.err)), "\n".join(own_lines(run.err)))
        differences.append(f"stderr: {first}")
    return differences


def interruption(plain: Plain, run: Ended) -> list[str]:
    """What is wrong with a run that was interrupted, if it had not ended before."""
    if run.status is None:
        return ["it hangs after an interrupt"]
    differences = []
    status = _as_shells_have_it(run.status)
    allowed = {130, _as_shells_have_it(plain.run.status)}
    # An interrupt within an import, or within a thread that is waited for, ends as another exception.
    if status not in allowed and not (status == 1 and "KeyboardInterrupt" in run.err):
        differences.append(f"its status after an interrupt is {run.status}")
    line = plain.program.interrupted
    if line and status == 130 and "ready" in run.out and line not in run.out.splitlines():
        differences.append(f"it did not print {line!r}")
    return differences


def recorded(folder: Path) -> tuple[str, list[str]]:
    """How many steps a recording has (``whole``, ``first`` or ``none``), and what of it cannot be read."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError) as error:
        return "none", [f"the manifest cannot be read: {error}"]
    faults, steps = [], "none"
    for rank in manifest.get("ranks", []):
        for kind in ("trace", "device_trace"):
            if kind not in rank:
                continue
            try:
                events = json.loads((folder / rank[kind]).read_bytes())["traceEvents"]
            except (OSError, ValueError, KeyError) as error:
                faults.append(f"{rank[kind]} cannot be read: {type(error).__name__}: {error}")
                continue
            if not isinstance(events, list):
                faults.append(f"{rank[kind]} holds no events")
        found = rank.get("steps", {})
        if "trace" in rank and steps in ("none", "first"):
            whole = found.get("found_by", "whole") in ("whole", "program")
            steps = str(len(found.get("profiled_s", ()))) if found.get("profiled_s") else ""
            steps = steps or ("whole" if whole else "first")
    return steps, faults


def last_recorded(folder: Path) -> tuple[str, list[str]]:
    """The same of the last of the recordings that were requested; none need have been."""
    made = sorted(folder.glob("*/manifest.json")) if folder.is_dir() else []
    return recorded(made[-1].parent) if made else ("none", [])


def _as_shells_have_it(status: int | None) -> int | None:
    return 128 - status if status is not None and status < 0 else status


def own_lines(err: str) -> list[str]:
    """The lines of stderr that are the program's, without what differs between any two runs, and without
    where each thread was when Python's fault handler was called."""
    lines = err.partition("Fatal Python error: ")[0].splitlines()
    own = (line for line in lines if line and not line.startswith(OURS))
    return [_VARIES.sub("…", _OF_OTHERS.sub("", line)) for line in own if not _OF_TORCH.search(line)]


def _first_difference(before: str, after: str) -> str:
    plainly, under = before.splitlines(), after.splitlines()
    for number, (one, other) in enumerate(zip(plainly, under, strict=False), 1):
        if one != other:
            return f"line {number} is {other[:300]!r}, plainly {one[:300]!r}"
    if len(under) > len(plainly):
        return f"line {len(plainly) + 1} is more: {under[len(plainly)][:300]!r}"
    if len(under) < len(plainly):
        return f"line {len(under) + 1} is missing: {plainly[len(under)][:300]!r}"
    return "line ends"


def _of_mappings(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
