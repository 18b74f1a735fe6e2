"""`kinetoscope compare`: base and new in turn, A B B A, each run a process of its own."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kinetoscope.bench.tune.program import run_trial
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
    """One version: its step (s, the geometric mean of its runs', of which the ratio is), each run's, and what
    of it is counted."""

    label: str
    step_s: float
    runs_s: tuple[float, ...]
    steps: int
    graph_breaks: int
    graphs: int
    peak_memory_bytes: int | None


class VersionsCompared(msgspec.Struct, frozen=True, kw_only=True):
    """``ratio`` is the new step over the base's, ``low`` to ``high`` its 95 % interval (from the pairs of
    runs, so that how runs differ is in it); ``stopped`` says why no more were run. ``load`` is the machine's
    load average between the runs (the median; null: unknown), ``cores`` how many may be used."""

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

    @property
    def interval(self) -> Ratio:
        return Ratio(self.ratio, self.low, self.high)


# An interval of fewer pairs is narrow by luck too often: see docs/guide/compare.md.
FEWEST_PAIRS = 6
# Each run is timed for so many seconds, however short its steps are; for less, but for so many steps at
# least, where fewer pairs than these would fit into the budget. Runs differ more from each other than the
# many short steps of one do: the interval of twelve pairs is two thirds as wide as that of six.
SECONDS, LEAST_SECONDS, MANY = 5.0, 1.0, 1_000_000
PAIRS, TIMED_STEPS = 12, 30
AS_WRITTEN = Setting(as_written=True)

RunVersion = Callable[[Version, TrialRequest, Sequence[str]], TrialResult]


def run_version(version: Version, order: TrialRequest, words: Sequence[str]) -> TrialResult:
    """One run in the version's own folder."""
    return run_trial(order, words, version.environment(), version.folder)


def compare_versions(
    base: Version,
    new: Version,
    words: Sequence[str],
    *,
    module: bool = False,
    steps: int = MANY,
    seconds: float | None = None,
    budget_s: float = 300.0,
    precision: float = 0.01,
    launch: RunVersion = run_version,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[str], None] = lambda _: None,
) -> VersionsCompared:
    """Run both in turn (A B B A), until half of the interval is ``precision`` of the step, or the budget is
    spent.

    The order turns from pair to pair: slow drift, of a clock or a temperature, affects both equally. When to
    stop depends on how wide the interval is, never on where it lies.

    Args:
        steps: steps after which a run is ended, the first of them to warm up; or after ``seconds``: runs of
            short steps are as long as those of long ones.
        seconds: None: at most 5, and less where few pairs would fit into the budget.
        launch: makes one run (tests give their own).

    Raises:
        ProgramError: a version fails, or has no steps.
        InputError: a version has no such script.
    """
    versions = (base, new)
    words = words if module else [_relative(words[0], new), *words[1:]]
    _check(versions, words, module)
    reports: tuple[list[TrialResult], list[TrialResult]] = ([], [])
    loads: list[float] = []
    began, longest_s = clock(), 0.0
    with tempfile.TemporaryDirectory(prefix="kinetoscope-compare-") as folder:
        order = TrialRequest(
            setting=AS_WRITTEN, folder=folder, steps=steps, seconds=seconds or SECONDS, module=module
        )
        while True:
            pairs, pair_began = len(reports[1]), clock()
            progress(f"pair {pairs + 1}{_so_far(reports)}")
            for side in (0, 1) if pairs % 2 == 0 else (1, 0):
                reports[side].append(_usable(launch(versions[side], order, words), versions[side]))
            loads += _load()
            now, pairs = clock(), pairs + 1
            spent, longest_s = now - began, max(longest_s, now - pair_began)
            if pairs == 1 and seconds is None:
                fitting_s = _fitting_s(spent, budget_s, max(map(max, map(_steps_s, reports))))
                order = msgspec.structs.replace(order, seconds=fitting_s)
                longest_s -= 2 * (SECONDS - fitting_s)
            ratio = _ratio(reports)
            narrow = pairs >= FEWEST_PAIRS and (ratio.high - ratio.low) / 2 <= precision
            if narrow or spent + longest_s > budget_s:
                break
    return VersionsCompared(
        command=(*(("-m",) if module else ()), *words),
        device=reports[1][0].device,
        steps_by=reports[1][0].steps_by,
        base=_row(base, reports[0]),
        new=_row(new, reports[1]),
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        verdict=intervals.stands(ratio, precision),
        pairs=pairs,
        stopped="precise" if narrow else "out of time",
        seconds=spent,
        calibration=_calibration(_steps_s(reports[0])),
        load=distribution.median(loads) if loads else None,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    )


def _fitting_s(pair_s: float, budget_s: float, step_s: float) -> float:
    """Seconds of a run of which ``PAIRS`` fit into the budget, by how long the first pair took."""
    started_s = max(0.0, pair_s / 2 - SECONDS)
    fitting_s = (budget_s - pair_s) / (2 * (PAIRS - 1)) - started_s
    return min(SECONDS, max(LEAST_SECONDS, TIMED_STEPS * step_s, fitting_s))


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
    return intervals.compare_rounds(_steps_s(reports[0]), _steps_s(reports[1]))


def _so_far(reports: tuple[list[TrialResult], list[TrialResult]]) -> str:
    if len(reports[0]) < 2:
        return ""
    ratio = _ratio(reports)
    return f": {100 * (ratio.ratio - 1):+.1f} % ± {50 * (ratio.high - ratio.low):.1f} so far"


def _row(version: Version, reports: Sequence[TrialResult]) -> VersionRow:
    runs = _steps_s(reports)
    return VersionRow(
        label=version.label,
        step_s=statistics.geometric_mean(runs),
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
