"""Baselines that a run is checked against, small enough for a repository and to be read in a review."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.health.verdict import losses
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.comparison.account import LAUNCH_BOUND, Account, account
from kinetoscope.comparison.comparability import busy, changed_variables
from kinetoscope.comparison.contributors import Contributor, contributors, described, grown
from kinetoscope.comparison.counts import COUNTED, Counts, counted_rank, counts
from kinetoscope.comparison.gates import (
    DEVICE_TIME,
    STEP_TIME,
    TIMES,
    Gate,
    Judgement,
    judge,
    parse,
    time_words,
)
from kinetoscope.comparison.places import line_of, lines_of
from kinetoscope.comparison.programs import program
from kinetoscope.comparison.step_change import (
    A_RUN,
    crowded,
    of_one_run_each,
    samples_us,
    varies,
    without_the_profiler,
)
from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file
from kinetoscope.recording.manifest import UNREADABLE, Environment
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.distribution import median
from kinetoscope.statistics.intervals import SECTIONS, Ratio

SCHEMA = "kinetoscope.baseline/1"
KEPT_STEPS = 2 * SECTIONS  # medians of intervals of the steps: their spread is what an interval needs
KEPT_PARTS = 200  # of each count, the largest
SHOWN_LINES = 3
IDLE = "idle: "  # before its causes, among the parts of a step
MOST = 16 << 20  # bytes of the file: it is read in reviews
PLAUSIBLE_US = (1e-6, 1e15)  # a step's time (µs) that a clock can show: from a picosecond to thirty years
BASES = ("as it runs", "as recorded")
# The gates of a check where none are given: growth of exact counts, and of time beyond doubt.
EXACT = (
    "launches", "eager_kernels", "syncs", "copies", "pageable_copies", "copied_bytes", "graph_breaks",
    "recompilations", "compile_failures",
)  # fmt: skip
GATES = (
    *(f"{name} > 0" for name in EXACT), "peak_memory > 2%", f"{STEP_TIME} > 5%", f"{DEVICE_TIME} > 5%",
)  # fmt: skip
AGAIN = "write it anew: kinetoscope check INPUT --against FILE --update"
ON_THE_HOST = "ops > 0"  # where no device worked, its ops are the program's work


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """One run's counts and step. ``step_us`` is the step as reports have it, ``busy_us`` the device's time in
    it; ``steps_us`` are medians of intervals of its steps, in their order, for how far they spread;
    ``device_us`` is the device's time in each of the recorded steps, likewise; empty of a host's program.
    ``kernels`` are launches per step by short name, those launched most; ``by`` what the other counts consist
    of, and ``step_time`` (µs). ``cpu``, ``cores`` and ``load`` (the load average when it was recorded) are
    the host's, ``variables`` the environment's; ``command`` is what was run, ``program`` its script."""

    schema: str = SCHEMA
    counts: dict[str, float]
    devices: list[str] = []
    kernels: dict[str, float] = {}
    step_basis: str | None = None
    steps_us: list[float] = []
    torch: str | None = None
    cpu: str | None = None
    program: str | None = None
    device_us: list[float] = []
    by: dict[str, dict[str, float]] = {}
    cores: int | None = None
    load: float | None = None
    command: list[str] = []
    variables: dict[str, str] = {}
    step_us: float | None = None
    busy_us: float | None = None


class _Versioned(msgspec.Struct):
    schema: str


def of(run: LoadedRun) -> Baseline:
    """The baseline of a run. Raises InputError where it has nothing to keep, or parts of it were lost."""
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
    manifest = run.manifest
    environment = manifest.environment if manifest else Environment()
    counted = {
        name: value for name, value in counts(run).items() if value is not None and COUNTED[name].exact
    }
    return Baseline(
        counts=counted,
        devices=sorted({device.name for trace in run.traces for device in trace.devices}),
        kernels={} if own is None else _kernels(own),
        step_basis=None if own is None else own.basis,
        steps_us=[] if own is None else _kept(samples_us(own)),
        torch=environment.torch,
        cpu=environment.cpu or None,
        program=program(run),
        device_us=[] if own is None else _kept(own.busy_by_step_us),
        by={
            **{name: parts for name, count in counted.items() if count and (parts := _by(run, name))},
            **({} if own is None else {STEP_TIME: {k: _short(one.amount) for k, one in _parts(own).items()}}),
        },
        cores=environment.cpu_count or None,
        load=environment.load_average,
        command=[*manifest.command] if manifest else [],
        variables=environment.variables,
        step_us=None if own is None else _short(own.step_us),
        busy_us=_short(own.busy_us) if own is not None and own.busy_by_step_us else None,
    )


def of_counts(run: LoadedRun) -> Baseline:
    """The baseline of a test: its counts, by whichever command and host. Raises InputError as ``of`` does."""
    found = of(run)
    return Baseline(
        counts=found.counts, devices=found.devices, kernels=found.kernels, by=found.by, torch=found.torch
    )


def grown_counts(run: LoadedRun, baseline: Baseline) -> list[Judgement]:
    """The gates of counts that a run fails by a baseline; those of time are not judged."""
    return [one for one in checked(run, baseline, []) if one.failed and one.name not in TIMES]


def _by(run: LoadedRun, name: str) -> dict[str, float]:
    """The largest parts of a count; of launches they are ``kernels``."""
    if name == "launches":
        return {}
    largest = islice(contributors(run, name).values(), KEPT_PARTS)
    return {one.key: round(one.amount, 2) for one in largest}


def _kernels(own: Account) -> dict[str, float]:
    table = (
        own.launches.group_by("name", maintain_order=True)
        .agg(pl.col("launches").sum())
        .sort("launches", "name", descending=[True, False])
    )
    found: dict[str, float] = {}
    for name, launches in table.head(KEPT_PARTS).iter_rows():
        found[short_name(name)] = round(found.get(short_name(name), 0.0) + launches, 2)
    return found


def _parts(own: Account) -> dict[str, Contributor]:
    """The step by what it goes to (µs), the largest: kernels (or ops), and idle time by its cause."""
    sums: dict[str, float] = {f"{IDLE}{LAUNCH_BOUND}": float(own.launches["idle_us"].sum())}
    for name, us in own.launches.select("name", "us").iter_rows():
        sums[short_name(name)] = sums.get(short_name(name), 0.0) + us
    for cause, us in own.idle.select("cause", "us").iter_rows():
        sums[f"{IDLE}{cause}"] = sums.get(f"{IDLE}{cause}", 0.0) + us
    largest = sorted(sums.items(), key=lambda item: -item[1])[:KEPT_PARTS]
    return {name: Contributor(us, name) for name, us in largest if us > 0}


def _kept(values: Sequence[float]) -> list[float]:
    """Times, as medians of so many intervals where there are more."""
    if len(values) <= KEPT_STEPS:
        return [_short(us) for us in values]
    edges = [len(values) * k // KEPT_STEPS for k in range(KEPT_STEPS + 1)]
    return [_short(median(values[i:j])) for i, j in pairwise(edges)]


def _short(us: float) -> float:
    """Five digits: more are noise, and make differences of files unreadable."""
    return float(f"{us:.5g}")


def render(baseline: Baseline) -> str:
    """Sorted, one fact a line; times on one."""
    rows = msgspec.to_builtins(baseline)
    times = [f'  "{name}": {json.dumps(rows.pop(name))}' for name in ("device_us", "steps_us")]
    text = json.dumps(rows, indent=2, sort_keys=True, ensure_ascii=False)
    return ",\n".join([text.removesuffix("\n}"), *times]) + "\n}\n"


def read(path: Path) -> Baseline:
    """The baseline in a file. Raises InputError where there is none, or nothing can be checked against it."""
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
    yield from (f"device_us has {us!r}" for us in baseline.device_us if not 0 <= us <= high)
    shown = {"step_us": baseline.step_us, "busy_us": baseline.busy_us}
    yield from (f"{name} is {us!r}" for name, us in shown.items() if us is not None and not 0 <= us <= high)
    if baseline.step_basis not in (None, *BASES):
        yield f"step_basis is {baseline.step_basis!r}, which is none of {', '.join(BASES)}"
    if bool(baseline.steps_us) != (baseline.step_basis is not None):
        yield "it has only one of steps_us and step_basis"


def checked(run: LoadedRun, baseline: Baseline, gates: list[Gate]) -> list[Judgement]:
    """A run judged by a baseline; without ``gates``, by the usual ones on what either counts.

    A gate that cannot be judged has failed: all gates of a baseline of another device or program, and, where
    gates are given, times that were measured otherwise; without, times are then not judged. The step's time
    is in every answer.
    """
    now, lost = _of(run), tuple(f"the recording is incomplete: {what}" for what in losses(run))
    usual = GATES if now.counts.get("launches") else (*GATES, ON_THE_HOST)
    judged = gates or [parse(text) for text in usual]
    known = dict.fromkeys(COUNTED)
    both = {**known, **baseline.counts}, {**known, **now.counts}
    if not gates:
        judged = [gate for gate in judged if _is_there(gate, both, baseline, now)]
    unlike, times, apart = _unlike(baseline, now), _times(baseline, now), _timed_apart(baseline, now)
    why = {gate: lost or unlike or (apart if gate.name in times else ()) for gate in judged}
    judgements = [judge(gate, both, times, why[gate]) for gate in judged]
    if apart and not gates:
        judgements = [
            _not_judged(one, times[one.name], apart[0]) if one.name in TIMES else one for one in judgements
        ]
    step = times[STEP_TIME]
    if step is not None and not any(one.name == STEP_TIME for one in judgements):
        judgements.append(Judgement(STEP_TIME, STEP_TIME, False, time_words(STEP_TIME, *step), known=False))
    judgements.sort(key=lambda one: one.name != STEP_TIME)
    if not gates and step is not None and step[1].high < 1 and not lost and not unlike and not apart:
        judgements = [_forgiven(one) for one in judgements]
    variables = _other_variables(baseline, now)
    return [
        _named(_with(one, variables), baseline, run) if one.failed and one.known else one
        for one in judgements
    ]


def _with(judgement: Judgement, variables: str) -> Judgement:
    """A count that grew, with the environment variables that may be why."""
    words = f"{judgement.words} ({variables})" if variables else judgement.words
    return msgspec.structs.replace(judgement, words=words)


def _not_judged(judgement: Judgement, timed: tuple[float, Ratio] | None, why: str) -> Judgement:
    words = f"not judged: {why}"
    if timed is not None:
        words = f"{time_words(judgement.name, *timed)}; {words}"
    return msgspec.structs.replace(judgement, failed=False, known=False, words=words)


def _forgiven(judgement: Judgement) -> Judgement:
    """The judgement of a count that grew while the step got faster beyond doubt: it has not failed."""
    if not judgement.failed or not judgement.known:
        return judgement
    return msgspec.structs.replace(
        judgement, failed=False, words=f"{judgement.words}; it may, since the step is faster"
    )


def _is_there(gate: Gate, both: tuple[Counts, Counts], baseline: Baseline, now: Baseline) -> bool:
    if gate.name in TIMES:
        step = bool(baseline.steps_us or now.steps_us)
        return step if gate.name == STEP_TIME else bool(baseline.device_us and now.device_us)
    amounts = {counted[gate.name] for counted in both}
    no_device = COUNTED[gate.name].of_device and not (baseline.devices or now.devices)
    return amounts != {None} and not (no_device and amounts == {0.0})


def _unlike(baseline: Baseline, now: Baseline) -> tuple[str, ...]:
    if None not in (baseline.program, now.program) and baseline.program != now.program:
        return (f"the baseline is of another program ({baseline.program}; here {now.program})",)
    if baseline.devices == now.devices:
        return ()
    own, kept = (", ".join(one.devices) or "no device" for one in (now, baseline))
    return (f"the baseline is of {kept}, this run of {own}",)


def _timed_apart(baseline: Baseline, now: Baseline) -> tuple[str, ...]:
    variables = _other_variables(baseline, now)
    found = [f"other environment variables than for the baseline: {variables}"] if variables else []
    facts = {
        "processor": (baseline.cpu, now.cpu),
        "number of cores": (baseline.cores, now.cores),
        "torch": (baseline.torch, now.torch),
        "command": (shlex.join(baseline.command), shlex.join(now.command)),
    }
    found += [
        f"the baseline's time is of another {what} ({kept}; here {own})"
        for what, (kept, own) in facts.items()
        if kept and own and kept != own
    ]
    found += busy("the baseline", baseline.load, baseline.cores)
    found += busy("this run", now.load, now.cores)
    if baseline.steps_us and now.steps_us and baseline.step_basis != now.step_basis:
        found.append(f"the baseline's steps were timed {baseline.step_basis}, these {now.step_basis}")
    return tuple(found)


def _other_variables(baseline: Baseline, now: Baseline) -> str:
    """The environment variables that differ; none where the baseline does not have them."""
    return ", ".join(changed_variables(baseline.variables, now.variables)) if baseline.command else ""


def _times(baseline: Baseline, now: Baseline) -> dict[str, tuple[float, Ratio] | None]:
    """The base's step and device time (µs) with the ratio of this run's to it."""
    shares = _device_share(baseline), _device_share(now)
    vary = max(
        varies(share, crowded(one.load, one.cores))
        for share, one in zip(shares, (baseline, now), strict=True)
    )
    step = _timed(baseline.steps_us, now.steps_us, (baseline.step_us, now.step_us), vary)
    if step is not None and baseline.step_basis == "as recorded":
        step = step[0], without_the_profiler(step[1], *shares)
    busy_us = baseline.busy_us, now.busy_us
    return {STEP_TIME: step, DEVICE_TIME: _timed(baseline.device_us, now.device_us, busy_us, A_RUN)}


def _timed(
    before: list[float], after: list[float], shown: tuple[float | None, float | None], vary: float
) -> tuple[float, Ratio] | None:
    """The base's time and the ratio to it: of what reports show, with the interval of the times kept."""
    if min(before, default=0) <= 0 or min(after, default=0) <= 0:
        return None
    found, (base_us, now_us) = of_one_run_each(before, after, vary)[0], shown
    if not base_us or not now_us:  # an older baseline has none
        return median(before), found
    shift = now_us / base_us / found.ratio
    return base_us, Ratio(now_us / base_us, found.low * shift, found.high * shift)


def _device_share(one: Baseline) -> float:
    """The part of the step in which the device works; older baselines do not say of a device's program."""
    if not one.device_us or not one.steps_us:
        return 1.0 if one.devices else 0.0
    return min(1.0, median(one.device_us) / median(one.steps_us))


def _whole(known: dict[str, float], now: Iterable[str]) -> dict[str, float]:
    """The kept parts; of one that is not among so many there was no more than of the least."""
    return known if len(known) < KEPT_PARTS else {**dict.fromkeys(now, min(known.values())), **known}


def _named(judgement: Judgement, baseline: Baseline, run: LoadedRun) -> Judgement:
    """The judgement with what grew most of what is counted, and its line; of a time, what takes longer, or
    where an older baseline does not have that, what is launched more often."""
    if judgement.name in TIMES and (times := baseline.by.get(STEP_TIME)):
        own = account(run)
        parts = {} if own is None else _parts(own)
        if judgement.name == DEVICE_TIME:
            parts = {name: one for name, one in parts.items() if not name.startswith(IDLE)}
        times = _whole(times, parts)
        if (slower := grown(times, parts)) is None:
            return judgement
        was = numbers.time(times.get(slower.name, 0.0))
        words = f"{slower.name}, {was} → {numbers.time(slower.amount)} per step"
        return msgspec.structs.replace(judgement, culprit=words)
    count = "launches" if judgement.name in TIMES else judgement.name
    known = baseline.kernels if count == "launches" else baseline.by.get(count)
    now = contributors(run, count)
    known = None if known is None else _whole(known, now)
    one = grown(known or {}, now)
    if one is None or (known is None and not now) or (judgement.name in TIMES and not known):
        return judgement
    before = None if known is None else known.get(one.key, 0.0)
    trace = counted_rank(run)
    words = described(count, before, one, of_steps=trace is not None and len(trace.steps) > 0)
    # A baseline has no lines: of several that call it the one that calls it more often is not known.
    lines = lines_of(run, count, one) if before else []
    if len(lines) > 1:
        more = (
            f" and {numbers.count(len(lines) - SHOWN_LINES, 'line')} more" if len(lines) > SHOWN_LINES else ""
        )
        words += f", called at {', '.join(lines[:SHOWN_LINES])}{more}"
    line = None if len(lines) > 1 else line_of(run, one)
    return msgspec.structs.replace(judgement, culprit=words, source=line)
