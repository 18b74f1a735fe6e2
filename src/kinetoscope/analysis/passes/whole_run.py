"""The phases of the whole run: how much of it steps like the recorded ones make up, and what the rest is.

The main thread was sampled from the process' start to its end (``recording.whole_run``); ``run_division``
divides what it was seen in.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.passes.long_steps import LongSteps, long_steps
from kinetoscope.analysis.passes.run_division import (
    COMPILING,
    IMPORTING,
    OPTIMIZER,
    PhasePart,
    RunDivision,
    path_to_loop,
)
from kinetoscope.analysis.passes.samples import LIBRARIES, SampleTree, function_name, where_it_is
from kinetoscope.analysis.passes.thread_lines import ThreadLine, lines_of_steps
from kinetoscope.analysis.passes.unprofiled import unprofiled
from kinetoscope.recording.manifest import StepTimings
from kinetoscope.recording.whole_run import PERIODS, Period, SampledPlace, WholeRun
from kinetoscope.sources.run import LoadedRun

# So many samples of timed steps are enough to know them by; with fewer, those count while their time settled.
OF_TIMED = 20
FEWEST = 3  # samples of steps: fewer say nothing
SMALL = 0.01  # of the run: what takes no more is joined

Kind = Literal["steps", "other-steps", "importing", "compiling", "setup", "phase", "other"]


class RunPhase(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of the run; phases of one run sum to ``WholeRunRow.time_us``."""

    name: str  # a function, lines, or what torch or Python does
    # ``other-steps`` are an optimizer's of another phase, with a function in place of one that the recorded
    # steps call; ``setup`` ran mostly before the first step; ``other`` takes a hundredth each, or less
    kind: Kind
    time_us: float
    share: float
    # ``file.py:12``, where that begins, of a library ``library/file.py:12``; null of the steps and of what is
    # joined
    where: str | None = None
    # how often it was seen to run: more often, where it takes less than two samples are apart; 0 where that
    # is not known
    times: int = 0
    longest_us: float = 0.0  # from its first to its last sample, the longest time that it was seen in a row
    # the innermost line, with its function, that at least half of its time passes in; null where that says no
    # more than the name
    mostly_in: str | None = None
    # first_line, last_line: the first and the last that was seen, where they are lines
    first_line: int | None = None
    last_line: int | None = None

    @property
    def title(self) -> str:
        """``evaluate (train.py:88)``; lines say where they are."""
        return (
            self.name if self.where is None or self.first_line is not None else f"{self.name} ({self.where})"
        )


class WholeRunRow(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run of one rank's process, from its start to its end."""

    rank: int
    # of the process, without the pauses that the recording made and what was recorded (``ours_us``), and
    # without the time in which it profiled itself
    time_us: float
    ours_us: float
    samples: int
    steps_in: str  # the function that the steps' loop is in
    steps_share: float  # the part of ``time_us`` that steps like the recorded ones make up
    steps_share_after_setup: float  # the same of what is left without importing, compiling and setup
    # how many steps that is: counted where ``later_steps`` are known; else about so many, by their time; null
    # where that is not known
    about_steps: int | None
    # so many were seen, where ``later_steps`` are not known; null: not known either
    least_steps: int | None = None
    # timed_steps, recorded_steps: of those
    timed_steps: int
    recorded_steps: int
    timed_step_us: float | None = None  # of the timed steps, the mean
    # steps once nothing was timed or recorded any more; null where they were not counted
    later_steps: int | None = None
    later_step_us: float | None = None  # of those, at the mean, without what else the program did
    phases: list[RunPhase]
    # where the thread that steps was in them, those of most time first; what takes less than a hundredth of
    # the steps is left out
    lines: list[ThreadLine] = []
    long_steps: LongSteps | None = None  # what rare long steps are about, as far as samples show it
    # the function in which an optimizer first stepped once all was recorded; null: none did
    first_optimizer_after: str | None = None


@remembered
def whole_run(run: LoadedRun) -> WholeRunRow | None:
    """The phases of the whole run; None of a bare trace, and where no steps were sampled."""
    records = {record.rank: record for record in run.records}
    for rank, watched in sorted(run.watched.items()):
        if rank in records and (found := phases(watched, records[rank].steps, rank)) is not None:
            return found
    return None


@remembered
def libraries_of_steps(run: LoadedRun) -> frozenset[str]:
    """The files of libraries, by their paths in them, whose functions were on the stack in steps."""
    return frozenset(
        place.file[library.end() :].replace("\\", "/")
        for watched in run.watched.values()
        for node in SampleTree(watched).stepping()
        if (place := watched.places[node]).file and (library := LIBRARIES.match(place.file))
    )


def phases(watched: WholeRun, timings: StepTimings, rank: int = 0) -> WholeRunRow | None:
    """The phases of one process, from its samples; None where too few are of its steps."""
    tree = SampleTree(watched)
    periods: tuple[Period, ...] = ("timed",)
    if tree.samples_of(tree.roots, periods) < OF_TIMED:
        periods = ("settling", "timed")
    evidence = tree.samples_of(tree.roots, periods)
    path = path_to_loop(tree, watched.tick, periods)
    if not path or evidence < FEWEST:
        return None
    timed = unprofiled(timings)
    step_s = timings.profiled_step_s if timed is None else timed.mean_us / 1e6
    # Steps that end with an optimizer's all have one, however few samples of them show it.
    always = frozenset({OPTIMIZER}) if timings.found_by == "optimizer" else frozenset[str]()
    found = RunDivision(tree, path, periods, evidence, step_s or 0.0, always)
    found.divide()
    total_s = watched.earlier_s + sum(sum(node.seconds) for node in watched.nodes)
    found.parts[IMPORTING, "", 0].seconds["before"] += watched.earlier_s
    rows = _rows(found, total_s)
    setup_s = sum(row.time_us for row in rows if row.kind in ("importing", "compiling", "setup")) / 1e6
    steps_s = found.steps.total_s
    later = timings.steps_after
    return WholeRunRow(
        rank=rank,
        time_us=1e6 * total_s,
        ours_us=1e6 * watched.ours_s,
        samples=tree.samples_of(tree.roots, PERIODS),
        steps_in=tree.name_of(path[-1]),
        steps_share=steps_s / total_s,
        steps_share_after_setup=min(1.0, steps_s / (total_s - setup_s)) if total_s > setup_s else 1.0,
        about_steps=_about_steps(timings, found.steps, step_s) if step_s else None,
        least_steps=timings.passed if later is None else None,
        timed_steps=sum(timed.counts) if timed else 0,
        recorded_steps=len(timings.profiled_s),
        timed_step_us=timed.mean_us if timed else None,
        later_steps=later,
        later_step_us=1e6 * found.steps.seconds["after"] / later if later else None,
        phases=rows,
        lines=lines_of_steps(tree, path[-1], found.in_steps, 1e6 * (step_s or 0.0)),
        long_steps=long_steps(tree, path[-1], found.in_steps, timed, watched.tick),
        first_optimizer_after=None if timings.found_by == "optimizer" else _first_optimizer_after(tree),
    )


def _about_steps(timings: StepTimings, steps: PhasePart, step_s: float) -> int:
    """Steps that were counted, and the others by their time: the first steps may take many times as long."""
    later = timings.steps_after
    if timings.passed:
        return timings.passed + (round(steps.seconds["after"] / step_s) if later is None else later)
    if not timings.first_step:
        return round(steps.total_s / step_s)
    timed_after = len(timings.after.step_s) if timings.after else 0
    return timings.first_step + timed_after + round(steps.seconds["after"] / step_s)


def _rows(found: RunDivision, total_s: float) -> list[RunPhase]:
    """The steps, the other phases by their time, and what is joined."""

    def row(name: str, kind: Kind, part: PhasePart, where: str | None = None) -> RunPhase:
        return RunPhase(
            name=name,
            kind=kind,
            time_us=1e6 * part.total_s,
            share=part.total_s / total_s,
            where=where,
            times=part.stays,
            longest_us=1e6 * part.longest_s,
        )

    rows: list[RunPhase] = []
    joined = PhasePart()
    for (name, file, line), part in found.parts.items():
        if part.total_s <= SMALL * total_s:
            joined.add(part)
            continue
        kind: Kind = "setup" if part.seconds["before"] > part.later_s else "phase"
        kind = "other-steps" if part.trains else kind
        where = where_it_is(SampledPlace(file, name, line)) if file else None
        if name in (IMPORTING, COMPILING) and not file:
            kind = "importing" if name == IMPORTING else "compiling"
        if part.lines:
            first, last = min(part.lines), max(part.lines)
            span = f"line {first}" if first == last else f"lines {first}–{last}"
            lines = row(f"{span} of {name}", kind, part, where_it_is(SampledPlace(file, name, first)))
            rows.append(msgspec.structs.replace(lines, first_line=first, last_line=last))
            continue
        mostly_in = _mostly_in(found.tree, part)
        rows.append(msgspec.structs.replace(row(name, kind, part, where), mostly_in=mostly_in))
    rows.sort(key=lambda one: -one.time_us)
    rows.insert(0, row("steps like the recorded ones", "steps", found.steps))
    if joined.total_s > 0:
        rows.append(msgspec.structs.replace(row("other", "other", joined), times=0, longest_us=0.0))
    return rows


def _mostly_in(tree: SampleTree, part: PhasePart) -> str | None:
    """The innermost line that takes at least half of a phase's time; None where that is the phase itself."""
    node, below, line = -1, part.nodes, -1
    while below:
        node = max(below, key=lambda one: sum(tree.seconds[one]))
        if sum(tree.seconds[node]) < part.total_s / 2:
            break
        line = node if tree.place(node) is None else line
        below = tree.children[node]
    if line < 0 or tree.function_of(line) in part.nodes:
        return None
    place = tree.place(tree.function_of(line))
    at = tree.nodes[line].line
    return place and f"{function_name(place)} ({where_it_is(SampledPlace(place.file, place.name, at))})"


def _first_optimizer_after(tree: SampleTree) -> str | None:
    """The function in which optimizers step, where they do so only once all is recorded."""
    stepping = [node for node in range(len(tree.nodes)) if tree.does(node) == OPTIMIZER]
    if not stepping or tree.samples_of(stepping, PERIODS[:-1]):
        return None
    functions = [tree.function_of(node) for node in stepping]
    return next((tree.name_of(node) for node in functions if node >= 0), None)
