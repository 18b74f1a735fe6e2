"""What a run is held against, small enough to be kept in a repository and read in a review."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import polars as pl

from kinetoscope.analysis.health.losses import losses
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.counts import COUNTED, counts
from kinetoscope.comparison.gates import STEP_TIME, Gate, Judgement, judge, parse
from kinetoscope.comparison.places import source
from kinetoscope.comparison.step_time import of_one_run_each, samples_us
from kinetoscope.errors import InputError
from kinetoscope.recording.manifest import UNREADABLE
from kinetoscope.sources.run import Run
from kinetoscope.statistics.distribution import median
from kinetoscope.statistics.intervals import SECTIONS, Ratio

SCHEMA = "kinetoscope.baseline/1"
KEPT_STEPS = 2 * SECTIONS  # medians of stretches of the steps: their spread is what an interval needs
KEPT_KERNELS = 60
# What a check fails on where nothing else is asked for: growth of what is exact, time beyond doubt.
EXACT = (
    "launches", "eager_kernels", "graph_calls", "syncs", "copies", "pageable_copies", "copied_bytes",
    "graph_breaks", "recompilations", "compile_failures", "generated_kernels",
)  # fmt: skip
GATES = (*(f"{name} > 0" for name in EXACT), "peak_memory > 2%", f"{STEP_TIME} > 5%")
ON_THE_HOST = "ops > 0"  # where no device worked, its ops are the program's work


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """One run's counts and step. ``steps_us`` are medians of stretches of its steps, in their order;
    ``kernels`` are launches a step by short name, those launched most."""

    schema: str = SCHEMA
    counts: dict[str, float]
    devices: list[str] = []
    kernels: dict[str, float] = {}
    step_basis: str | None = None
    steps_us: list[float] = []
    torch: str | None = None


def of(run: Run) -> Baseline:
    """What is kept of a run.

    Raises:
        InputError: something of its recording was lost.
    """
    if lost := losses(run):
        raise InputError(
            f"no baseline is made of an incomplete recording: {'; '.join(lost)}",
            where=", ".join(trace.source.path for trace in run.traces),
            mend="record it again",
        )
    return _of(run)


def _of(run: Run) -> Baseline:
    own = account(run)
    environment = run.manifest.environment if run.manifest else None
    devices = {device.name for trace in run.traces for device in trace.devices}
    return Baseline(
        counts={
            name: value for name, value in counts(run).items() if value is not None and COUNTED[name].exact
        },
        devices=sorted(devices),
        kernels={} if own is None else _kernels(own),
        step_basis=None if own is None else own.basis,
        steps_us=[] if own is None else [_short(us) for us in _stretches(samples_us(own))],
        torch=environment.torch if environment else None,
    )


def _kernels(own: Account) -> dict[str, float]:
    table = (
        own.launches.group_by("name")
        .agg(pl.col("launches").sum())
        .sort("launches", "name", descending=[True, False])
    )
    found: dict[str, float] = {}
    for name, launches in table.head(KEPT_KERNELS).iter_rows():
        found[short_name(name)] = round(found.get(short_name(name), 0.0) + launches, 2)
    return found


def _stretches(values: list[float]) -> list[float]:
    if len(values) <= KEPT_STEPS:
        return values
    edges = [len(values) * k // KEPT_STEPS for k in range(KEPT_STEPS + 1)]
    return [median(values[i:j]) for i, j in pairwise(edges)]


def _short(us: float) -> float:
    """Five digits: more are noise, and make differences of files unreadable."""
    return float(f"{us:.5g}")


def render(baseline: Baseline) -> str:
    """Sorted, one fact a line; steps on one."""
    rows = msgspec.to_builtins(baseline)
    steps = rows.pop("steps_us")
    text = json.dumps(rows, indent=2, sort_keys=True, ensure_ascii=False)
    return text.removesuffix("\n}") + f',\n  "steps_us": {json.dumps(steps)}\n}}\n'


def read(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        InputError: there is none, or it is not one.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Baseline)
    except OSError as error:
        raise InputError(
            f"cannot read the baseline: {error.strerror or error}",
            where=str(path),
            mend="write it: kinetoscope check INPUT --against FILE --update",
        ) from error
    except UNREADABLE as error:
        raise InputError(f"that is no baseline: {error}", where=str(path)) from error


def checked(run: Run, baseline: Baseline, gates: list[Gate]) -> list[Judgement]:
    """A run held to a baseline; of what neither counts nothing is said where no gate was asked for."""
    now, lost = _of(run), tuple(f"the recording is incomplete: {what}" for what in losses(run))
    asked = gates or [
        parse(text) for text in (GATES if now.counts.get("launches") else (*GATES, ON_THE_HOST))
    ]
    known = dict.fromkeys(COUNTED)
    both = {**known, **baseline.counts}, {**known, **now.counts}
    if not gates:
        asked = [gate for gate in asked if gate.name == STEP_TIME or both[0][gate.name] is not None]
        asked = [gate for gate in asked if gate.name != STEP_TIME or _comparable(baseline, now)]
    step = _step(baseline, now)
    judgements = [judge(gate, both, step, lost) for gate in asked]
    return [_named(one, baseline, now, run) if one.failed and one.known else one for one in judgements]


def _comparable(baseline: Baseline, now: Baseline) -> bool:
    """Whether times may be held against each other: the same device, timed in the same way."""
    return bool(baseline.steps_us) and (baseline.devices, baseline.step_basis) == (
        now.devices,
        now.step_basis,
    )


def _step(baseline: Baseline, now: Baseline) -> tuple[float, Ratio] | None:
    if not baseline.steps_us or not now.steps_us:
        return None
    return median(baseline.steps_us), of_one_run_each(baseline.steps_us, now.steps_us)[0]


def _named(judgement: Judgement, baseline: Baseline, now: Baseline, run: Run) -> Judgement:
    """With the kernel that is launched more often by most, its op and line; of several, the step's first."""
    own = account(run)
    more = {name: count - baseline.kernels.get(name, 0.0) for name, count in now.kernels.items()}
    most = max(more.values(), default=0.0)
    if own is None or most <= 0:
        return judgement
    for full, op_name, op in own.launches.select("name", "op_name", "op").iter_rows():
        if more.get(name := short_name(full)) == most:
            words = f"{name}, {baseline.kernels.get(name, 0.0):g} → {now.kernels[name]:g} a step"
            words += f", called by {op_name}" if op_name != full else ""
            return replace(judgement, culprit=words, source=source(own, full, op))
    return judgement
