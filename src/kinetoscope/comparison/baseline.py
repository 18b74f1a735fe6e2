"""Baselines that a run is checked against, small enough for a repository and to be read in a review."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import polars as pl

from kinetoscope.analysis.health.verdict import losses
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.comparability import program
from kinetoscope.comparison.counts import COUNTED, Counts, counts
from kinetoscope.comparison.gates import STEP_TIME, Gate, Judgement, judge, parse
from kinetoscope.comparison.places import source
from kinetoscope.comparison.step_change import of_one_run_each, samples_us
from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file
from kinetoscope.recording.manifest import UNREADABLE
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.distribution import median
from kinetoscope.statistics.intervals import SECTIONS, Ratio

SCHEMA = "kinetoscope.baseline/1"
KEPT_STEPS = 2 * SECTIONS  # medians of intervals of the steps: their spread is what an interval needs
KEPT_KERNELS = 60
MOST = 16 << 20  # bytes of the file: it is read in reviews
# A step's time (µs) that a clock can show: from a picosecond to thirty years.
PLAUSIBLE_US = (1e-6, 1e15)
BASES = ("as it runs", "as recorded")
# The gates of a check where none are given: growth of exact counts, and of time beyond doubt.
EXACT = (
    "launches", "eager_kernels", "syncs", "copies", "pageable_copies", "copied_bytes", "graph_breaks",
    "recompilations", "compile_failures",
)  # fmt: skip
# Which launches make a count grow: all, or those of copies. What else is counted is no device work.
CULPRITS = {
    "launches": "", "eager_kernels": "", "copies": "Memcpy", "pageable_copies": "Memcpy",
    "copied_bytes": "Memcpy",
}  # fmt: skip
GATES = (*(f"{name} > 0" for name in EXACT), "peak_memory > 2%", f"{STEP_TIME} > 5%")
AGAIN = "write it anew: kinetoscope check INPUT --against FILE --update"
ON_THE_HOST = "ops > 0"  # where no device worked, its ops are the program's work


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """One run's counts and step. ``steps_us`` are medians of intervals of its steps, in their order;
    ``kernels`` are launches per step by short name, those launched most.
    ``cpu`` is the host's, of a program that no device worked for; ``program`` its script or module."""

    schema: str = SCHEMA
    counts: dict[str, float]
    devices: list[str] = []
    kernels: dict[str, float] = {}
    step_basis: str | None = None
    steps_us: list[float] = []
    torch: str | None = None
    cpu: str | None = None
    program: str | None = None


class _Versioned(msgspec.Struct):
    schema: str


def of(run: LoadedRun) -> Baseline:
    """The baseline of a run.

    Raises:
        InputError: parts of its recording were lost, or it has nothing that a baseline keeps.
    """
    if lost := losses(run):
        raise InputError(
            f"no baseline is made of an incomplete recording: {'; '.join(lost)}",
            where=", ".join(trace.source.path for trace in run.traces),
            hint="record it again",
        )
    found = _of(run)
    if wrong := next(_wrong(found), None):
        raise InputError(f"no baseline is made of it: {wrong}", where=", ".join(run.inputs))
    return found


def _of(run: LoadedRun) -> Baseline:
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
        steps_us=[] if own is None else [_short(us) for us in _sections(samples_us(own))],
        torch=environment.torch if environment else None,
        cpu=environment.cpu or None if environment and not devices else None,
        program=program(run),
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


def _sections(values: list[float]) -> list[float]:
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
        InputError: there is none, or a run cannot be checked against it.
    """
    try:
        content = plain_file.content(path, MOST)
        schema = msgspec.json.decode(content, type=_Versioned).schema
        if schema != SCHEMA:
            what = f"its schema is {schema!r}, and a baseline's is {SCHEMA!r}"
            raise InputError(what, where=str(path), hint=AGAIN)
        found = msgspec.json.decode(content, type=Baseline)
    except OSError as error:
        raise InputError(
            f"cannot read the baseline: {error.strerror or error}",
            where=str(path),
            hint="write it: kinetoscope check INPUT --against FILE --update",
        ) from error
    except UNREADABLE as error:
        raise InputError(f"that is no baseline: {error}", where=str(path), hint=AGAIN) from error
    if wrong := next(_wrong(found), None):
        raise InputError(f"that is no baseline: {wrong}", where=str(path), hint=AGAIN)
    return found


def _wrong(baseline: Baseline) -> Iterator[str]:
    """Values that no run has, by name."""
    if not baseline.counts and not baseline.steps_us:
        yield "it has neither counts nor steps"
    for name, count in baseline.counts.items():
        if name not in COUNTED:
            yield f"nothing is counted that is called {name!r}"
        elif not 0 <= count < math.inf:
            yield f"counts.{name} is {count!r}"
    for name, count in baseline.kernels.items():
        if not 0 <= count < math.inf:
            yield f"kernels.{name} is {count!r}"
    low, high = PLAUSIBLE_US
    yield from (f"steps_us has {us!r}" for us in baseline.steps_us if not low <= us <= high)
    if baseline.step_basis not in (None, *BASES):
        yield f"step_basis is {baseline.step_basis!r}, which is none of {', '.join(BASES)}"
    if bool(baseline.steps_us) != (baseline.step_basis is not None):
        yield "it has only one of steps_us and step_basis"


def checked(run: LoadedRun, baseline: Baseline, gates: list[Gate]) -> list[Judgement]:
    """A run judged by a baseline; without ``gates``, by the usual ones on what either counts.

    A gate that cannot be judged has failed: all gates of a baseline of another device, and times that were
    measured otherwise.
    """
    now, lost = _of(run), tuple(f"the recording is incomplete: {what}" for what in losses(run))
    usual = GATES if now.counts.get("launches") else (*GATES, ON_THE_HOST)
    judged = gates or [parse(text) for text in usual]
    known = dict.fromkeys(COUNTED)
    both = {**known, **baseline.counts}, {**known, **now.counts}
    if not gates:
        judged = [gate for gate in judged if _is_there(gate, both, baseline, now)]
    unlike = _unlike(baseline, now)
    step, apart = _step(baseline, now), _timed_apart(baseline, now)
    why = {gate: lost or unlike or (apart if gate.name == STEP_TIME else ()) for gate in judged}
    judgements = [judge(gate, both, step, why[gate]) for gate in judged]
    judgements.sort(key=lambda one: one.name != STEP_TIME)
    if not gates and step is not None and step[1].high < 1 and not lost and not unlike and not apart:
        judgements = [_forgiven(one) for one in judgements]
    return [_named(one, baseline, now, run) if one.failed and one.known else one for one in judgements]


def _forgiven(judgement: Judgement) -> Judgement:
    """The judgement of a count that grew while the step got faster beyond doubt: it has not failed."""
    if not judgement.failed or not judgement.known:
        return judgement
    return msgspec.structs.replace(
        judgement, failed=False, words=f"{judgement.words}; it may, since the step is faster"
    )


def _is_there(gate: Gate, both: tuple[Counts, Counts], baseline: Baseline, now: Baseline) -> bool:
    if gate.name == STEP_TIME:
        return bool(baseline.steps_us or now.steps_us)
    return any(counted[gate.name] is not None for counted in both)


def _unlike(baseline: Baseline, now: Baseline) -> tuple[str, ...]:
    """Why a run cannot be compared with a baseline."""
    if None not in (baseline.program, now.program) and baseline.program != now.program:
        return (f"the baseline is of another program ({baseline.program}; here {now.program})",)
    if baseline.devices == now.devices:
        return ()
    own, kept = (", ".join(one.devices) or "no device" for one in (now, baseline))
    return (f"the baseline is of {kept}, this run of {own}",)


def _timed_apart(baseline: Baseline, now: Baseline) -> tuple[str, ...]:
    """Why their times cannot be compared."""
    if None not in (baseline.cpu, now.cpu) and baseline.cpu != now.cpu:
        return (f"the baseline's time is of another processor ({baseline.cpu}; here {now.cpu})",)
    if baseline.steps_us and now.steps_us and baseline.step_basis != now.step_basis:
        return (f"the baseline's steps were timed {baseline.step_basis}, these {now.step_basis}",)
    return ()


def _step(baseline: Baseline, now: Baseline) -> tuple[float, Ratio] | None:
    if not baseline.steps_us or not now.steps_us:
        return None
    return median(baseline.steps_us), of_one_run_each(baseline.steps_us, now.steps_us)[0]


def _named(judgement: Judgement, baseline: Baseline, now: Baseline, run: LoadedRun) -> Judgement:
    """The judgement with the work that is counted and whose launches grew most, its op and line; of several,
    the step's first."""
    begins = CULPRITS.get(judgement.name)
    own = account(run) if begins is not None else None
    more = {name: count - baseline.kernels.get(name, 0.0) for name, count in now.kernels.items()}
    more = {name: count for name, count in more.items() if name.startswith(begins or "")}
    most = max(more.values(), default=0.0)
    if own is None or most <= 0:
        return judgement
    for full, op_name, op in own.launches.select("name", "op_name", "op").iter_rows():
        if more.get(name := short_name(full)) == most:
            words = f"{name}, {baseline.kernels.get(name, 0.0):g} → {now.kernels[name]:g} per step"
            words += f", called by {op_name}" if op_name != full else ""
            return msgspec.structs.replace(judgement, culprit=words, source=source(own, full, op))
    return judgement
