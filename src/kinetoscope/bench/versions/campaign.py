"""`kinetoscope compare`: base and new in pairs of runs, each a process; a coin says which is first."""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kinetoscope.bench.tune.program import OutOfTimeError, run_trial
from kinetoscope.bench.tune.results import steady
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.bench.tune.trial import TrialRequest, TrialResult
from kinetoscope.bench.versions.worktree import Version
from kinetoscope.errors import InputError, ProgramError
from kinetoscope.statistics import distribution, intervals
from kinetoscope.statistics.intervals import Ratio, Stands

SCHEMA = "kinetoscope.compare/1"


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Times (s) of the same work in every run, the base's step; ``spread`` is the half of their middle 80 %,
    as a share of their median: by how much runs of one program differ here."""

    samples_s: tuple[float, ...]
    spread: float


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version: its step (s; the base's is the median of its runs', the new one's is that times the
    ratio), each run's, and what of it is counted."""

    label: str
    step_s: float
    runs_s: tuple[float, ...]
    steps: int
    graph_breaks: int
    graphs: int
    peak_memory_bytes: int | None


class VersionsCompared(msgspec.Struct, frozen=True, kw_only=True):
    """``ratio`` is the new step over the base's, ``low`` to ``high`` its 95 % interval (from the pairs of
    runs, so that how runs differ is in it; ``high`` is null and ``low`` 0 of fewer than six pairs);
    ``first`` has each pair's version that ran first, ``stopped`` why no more were run. ``load`` is the
    machine's load average between the runs (the median; null: unknown), ``cores`` how many may be used."""

    schema: str = SCHEMA
    command: tuple[str, ...]
    device: str
    steps_by: str | None
    base: VersionRow
    new: VersionRow
    ratio: float
    low: float
    high: float
    verdict: Stands
    pairs: int
    stopped: Literal["precise", "out of time"]
    seconds: float
    calibration: Calibration | None
    load: float | None = None
    cores: int | None = None
    first: tuple[Literal["base", "new"], ...] = ()

    @property
    def interval(self) -> Ratio:
        return Ratio(self.ratio, self.low, self.high)


FEWEST_PAIRS = 6  # of fewer pairs the signed ranks have no interval of 95 %
# So many pairs end the comparison if all of them point one way, which is the chance of the coins that this
# takes from each side of the interval.
AGREEING_PAIRS = 10
TAIL = intervals.TAIL - 0.5**AGREEING_PAIRS
# Each run is timed for so many seconds, however short its steps are; for less, but for so many steps at
# least, where fewer pairs than these would fit into the budget. Runs differ more from each other than the
# many short steps of one do: the interval of twelve pairs is two thirds as wide as that of six.
SECONDS, LEAST_SECONDS, MANY = 5.0, 1.0, 1_000_000
PAIRS, TIMED_STEPS = 12, 30
AS_WRITTEN = Setting(as_written=True)

RunVersion = Callable[[Version, TrialRequest, Sequence[str]], TrialResult]


def run_version(version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
    return run_trial(order, words, version.environment(), version.folder)


def compare_versions(
    base: Version,
    new: Version,
    words: Sequence[str],
    *,
    module: bool = False,
    # steps after which a run is ended, the first of them to warm up; or after ``seconds``: runs of short
    # steps are as long as those of long ones
    steps: int = MANY,
    seconds: float | None = None,  # None: at most 5, and less where few pairs would fit into the budget
    budget_s: float = 300.0,  # a run that is not over by then is ended, and its pair does not count
    precision: float = 0.01,
    launch: RunVersion = run_version,  # makes one run (tests give their own)
    clock: Callable[[], float] = time.monotonic,
    draw: random.Random | None = None,  # throws the coins
    progress: Callable[[str], None] = lambda _: None,
) -> VersionsCompared:
    """Run both in pairs, until the answer is known to ``precision`` of the step, or the budget is spent.

    A coin decides which of a pair runs first: all that the machine does otherwise from one run to the next
    is then as likely to be on either side, and the interval assumes nothing else of it. When to stop depends
    on how far apart the two of each pair are, never on which of them is faster, so that looking often makes
    no difference where there is none; and on whether ten pairs agree, whose chance the interval allows for.

    Raises ProgramError where a version fails, has no steps, or the budget is over before the first pair is,
    InputError where a version has no such script.
    """
    versions, draw = (base, new), draw or random.Random()
    words = words if module else [_relative(words[0], new), *words[1:]]
    _check(versions, words, module)
    reports: tuple[list[TrialResult], list[TrialResult]] = ([], [])
    loads: list[float] = []
    first: list[Literal["base", "new"]] = []
    began, took, is_known = clock(), list[float](), False
    with tempfile.TemporaryDirectory(prefix="kinetoscope-compare-") as folder:
        timed_s = seconds or _between(LEAST_SECONDS, budget_s / (2 * PAIRS), SECONDS)
        order = TrialRequest(setting=AS_WRITTEN, folder=folder, steps=steps, seconds=timed_s, module=module)

        def launched(side: int) -> TrialResult:
            limited = msgspec.structs.replace(order, limit_s=began + budget_s - clock())
            return _usable(launch(versions[side], limited, words), versions[side])

        while True:
            pairs, pair_began = len(first), clock()
            progress(f"pair {pairs + 1}{_so_far(reports)}")
            sides = (0, 1) if draw.random() < 0.5 else (1, 0)
            try:
                pair = {side: launched(side) for side in sides}
            except OutOfTimeError:
                break
            for side, report in pair.items():
                reports[side].append(report)
            first.append("new" if sides[0] else "base")
            loads += _load()
            now, pairs = clock(), pairs + 1
            spent, pair_s = now - began, now - pair_began
            # The first pair finds nothing in the machine's caches; those after it tell how long one takes. A
            # pair that is tried for lack of a longer budget, and ended by it, costs nothing.
            took = [*took, pair_s] if pairs > 2 else [pair_s]
            if pairs == 1 and seconds is None:
                fitting_s = _fitting_s(spent, timed_s, budget_s, max(map(max, map(_steps_s, reports))))
                order = msgspec.structs.replace(order, seconds=fitting_s)
                took = [pair_s - 2 * (timed_s - fitting_s)]
            if pairs == 1:
                progress(_plan(spent, took[0], budget_s))
            is_known = _is_known(reports, precision)
            if is_known or spent + distribution.median(took) > budget_s:
                break
    if not first:
        raise ProgramError(
            f"the budget of {budget_s:g} s was over before one run of each version was",
            hint=f"--budget {math.ceil(2 * FEWEST_PAIRS * budget_s)}, or fewer steps a run: --steps N",
        )
    ratio = _ratio(reports)
    rows = (_row(base, reports[0]), _row(new, reports[1]))
    return VersionsCompared(
        command=(*(("-m",) if module else ()), *words),
        device=reports[1][0].device,
        steps_by=reports[1][0].steps_by,
        base=rows[0],
        new=msgspec.structs.replace(rows[1], step_s=rows[0].step_s * ratio.ratio),
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        verdict=intervals.stands(ratio, precision),
        pairs=len(first),
        stopped="precise" if is_known else "out of time",
        seconds=clock() - began,
        calibration=_calibration(_steps_s(reports[0])),
        load=distribution.median(loads) if loads else None,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        first=tuple(first),
    )


def _is_known(reports: tuple[list[TrialResult], list[TrialResult]], precision: float) -> bool:
    """Whether pairs that differ as these do would tell ``precision`` if the versions were the same (Student's
    margin around no change: of the size of each difference, not of its sign), or ten agree and tell it."""
    pairs, ratio = len(reports[0]), _ratio(reports)
    if pairs < FEWEST_PAIRS:
        return False
    logs = [math.log(new / base) for base, new in zip(*map(_steps_s, reports), strict=True)]
    margin = intervals.student_t(1 - TAIL, pairs) * math.hypot(*logs) / pairs
    agree = pairs >= AGREEING_PAIRS and len({value > 0 for value in logs[:AGREEING_PAIRS]}) == 1
    return margin <= precision or (agree and (ratio.high - ratio.low) / 2 <= precision)


def _plan(pair_s: float, further_s: float, budget_s: float) -> str:
    """The pairs that fit into the budget, by how long the first one took: said before it is spent."""
    fitting = 1 + int((budget_s - pair_s) / further_s)
    if fitting >= FEWEST_PAIRS:
        return f"{fitting} pairs of runs fit into the budget"
    needed = math.ceil(pair_s + further_s * (PAIRS - 1))
    return (
        f"{fitting} of the {FEWEST_PAIRS} pairs of runs that a verdict needs fit into the budget "
        f"(--budget {needed} has {PAIRS})"
    )


def _between(least: float, value: float, most: float) -> float:
    return min(most, max(least, value))


def _fitting_s(pair_s: float, timed_s: float, budget_s: float, step_s: float) -> float:
    """Seconds of a run of which ``PAIRS`` fit into the budget, by how long the first pair took."""
    started_s = max(0.0, pair_s / 2 - timed_s)
    fitting_s = (budget_s - pair_s) / (2 * (PAIRS - 1)) - started_s
    return _between(max(LEAST_SECONDS, min(TIMED_STEPS * step_s, timed_s)), fitting_s, SECONDS)


def _load() -> list[float]:
    """The load average of the last minute, the compared runs included; empty where it is unknown."""
    try:
        return [os.getloadavg()[0]]
    except (OSError, AttributeError):
        return []


def _relative(script: str, new: Version) -> str:
    """A script of the checkout as seen from the folder: an absolute path would be the same file in both."""
    path = Path(script)
    inside = path.is_absolute() and path.resolve().is_relative_to(new.root)
    return os.path.relpath(path.resolve(), new.folder) if inside else script


def _check(versions: Sequence[Version], words: Sequence[str], module: bool) -> None:
    for version in versions:
        if not version.folder.is_dir():
            raise InputError(
                f"{version.label} has no such folder",
                where=os.path.relpath(version.folder, version.root),
                hint="run it from one that both have",
            )
        if not module and not (version.folder / words[0]).is_file():
            raise InputError(
                f"{version.label} has no such script", where=words[0], hint="name it as seen from this folder"
            )


def _usable(report: TrialResult, version: Version) -> TrialResult:
    if report.error is not None:
        raise ProgramError(
            f"the program fails in {version.label}: {report.error}",
            hint="its output is above"
            + (
                "; what git does not track, as data, is in it with --link FOLDER"
                if version.instead_of
                else ""
            ),
        )
    if len(report.steps_s) < 3:
        raise ProgramError(
            f"no steps were found in {version.label}",
            hint="mark them: kinetoscope.profile().step(), or a loop that calls a module or an optimizer",
        )
    return report


def _steps_s(reports: Sequence[TrialResult]) -> list[float]:
    return [distribution.median(steady(report)) for report in reports]


def _ratio(reports: tuple[list[TrialResult], list[TrialResult]]) -> Ratio:
    return intervals.compare_pairs(_steps_s(reports[0]), _steps_s(reports[1]), tail=TAIL)


def _so_far(reports: tuple[list[TrialResult], list[TrialResult]]) -> str:
    if not reports[0]:
        return ""
    ratio = _ratio(reports)
    margin = f" ± {50 * (ratio.high - ratio.low):.1f}" if math.isfinite(ratio.high) else ""
    return f": {100 * (ratio.ratio - 1):+.1f} %{margin} so far"


def _row(version: Version, reports: Sequence[TrialResult]) -> VersionRow:
    runs = _steps_s(reports)
    return VersionRow(
        label=version.label,
        step_s=distribution.median(runs),
        runs_s=tuple(runs),
        steps=sum(len(steady(report)) for report in reports),
        graph_breaks=reports[0].graph_breaks,
        graphs=reports[0].graphs,
        peak_memory_bytes=reports[0].peak_memory_bytes,
    )


def _calibration(samples: Sequence[float]) -> Calibration:
    middle = distribution.median(samples)
    spread = (distribution.quantile(samples, 0.9) - distribution.quantile(samples, 0.1)) / 2 / middle
    return Calibration(samples_s=tuple(samples), spread=spread)
