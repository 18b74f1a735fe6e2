"""Which lines of the program launch its work, load its data and wait: what findings name to begin with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import gcd
from pathlib import PurePosixPath
from typing import NamedTuple

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.origins.attribution import lines_of_work
from kinetoscope.analysis.origins.source import FileLine, Located, program_files
from kinetoscope.analysis.passes.thread_lines import ThreadLine
from kinetoscope.findings.rank_view import RankView

# A function is named where it has at least this share; its lines, from so many samples on.
MOST = 1 / 3
FEWEST_SAMPLES = 10
NEVER = 0.05  # a thread that waits for less of its time is at work all day
# Lines that run so often in a step, and launch so much of it, are a loop: models have fewer layers.
TURNS, OF_LOOP = 50, 1 / 2
WRAPPER = "wrapper"  # a decorator's function says nothing of what it wraps
# Lines of ops that were laid over so few of the recorded ones are of a step that went another way.
VERIFIED = 0.5


def of_thread(view: RankView) -> Sequence[ThreadLine]:
    """The lines in which the thread that steps was, by samples without the profiler; none where not known."""
    return view.watched.lines if view.watched is not None else ()


def waits_at(view: RankView, line: str | None) -> ThreadLine | None:
    """The samples of a line (``src/serve.py:70``) at which the thread waits for others; None of any other."""
    name = "" if line is None else PurePosixPath(line).name
    return next((one for one in of_thread(view) if one.waits and one.line == name), None)


def of_loader(view: RankView) -> str:
    """Where in the data set the time of a loader without workers passes, a sentence after another, or ""."""
    loading = [one for one in of_thread(view) if one.loads]
    whole = sum(one.share for one in loading)
    if sum(one.samples for one in loading) < FEWEST_SAMPLES or whole <= 0:
        return ""
    function, share = _largest({one: one.share for one in loading}, whole)
    first = next(one for one in loading if one.function == function)
    libraries = {one.library for one in loading if one.function == function} - {""}
    calls = f", mostly in calls of {sorted(libraries)[0]}" if len(libraries) == 1 and first.library else ""
    return f" {numbers.percent(share)} of it passes in {function} ({first.line}){calls}."


def that_launch(view: RankView, launches: pl.Series) -> tuple[str, str] | None:
    """The function of the program that makes most of these launches (rows of ``host_events``), those of
    backward passes counted to their forward ops: a sentence after another, and its line; None where no
    function stands out, or lines are not known."""
    if view.lines is not None and view.lines.verified >= VERIFIED:
        return _by_launches(view, launches)
    found = that_computes(view)
    return None if found is None else (f" {found.sentence}: begin there.", found.line)


class Computing(NamedTuple):
    """The function of the program in which most of the thread's time in the program's own lines passes."""

    function: str
    line: str  # the one of most time
    sentence: str  # says so, without its end


def that_computes(view: RankView) -> Computing | None:
    """None where no function stands out, or samples are few."""
    # What torch or Python does in a line, such as a backward pass or waiting, is done elsewhere.
    working = [
        one for one in of_thread(view) if one.line and not one.loads and (one.library or not one.calls)
    ]
    whole = sum(one.share for one in working)
    if sum(one.samples for one in working) < FEWEST_SAMPLES:
        return None
    function, share = _largest({one: one.share for one in working}, whole)
    if share < MOST:
        return None
    first = next(one for one in working if one.function == function)
    calls = f", which calls {first.library} {first.calls}" if first.library else ""
    sentence = (
        f"Of the thread's time in the program's own lines {numbers.percent(share)} passes in {function} "
        f"({first.line}){calls}"
    )
    return Computing(function, first.line, sentence)


def statement(view: RankView, op: int) -> Located | None:
    """The statement of the program that calls an op, with its file; None where no line is known."""
    file, _, number = ((view.lines.line(op) if view.lines else None) or "").rpartition(":")
    return program_files(view.run).located(FileLine(file, int(number))) if file else None


def never_waits(view: RankView) -> bool:
    """Whether the thread that steps is known to wait for no request, other thread or process."""
    lines = of_thread(view)
    enough = sum(one.samples for one in lines) >= FEWEST_SAMPLES
    return enough and sum(one.share for one in lines if one.waits) < NEVER


def _by_launches(view: RankView, launches: pl.Series) -> tuple[str, str] | None:
    device = view.trace.device_events.select("launch", lines_of_work(view.trace, view.lines)["line"])
    counted = (
        device.filter(pl.col("launch").is_in(launches.implode()))
        .unique("launch")
        .drop_nulls("line")
        .with_columns(pl.col("line").cast(pl.String))
        .group_by("line")
        .len()
        .sort("len", "line", descending=[True, False])
    )
    by_line = {str(line): int(number) for line, number in counted.iter_rows()}
    turns, within = _loop(view, by_line)
    functions: defaultdict[str, int] = defaultdict(int)
    for line, number in by_line.items():
        functions[line.partition(" ")[2]] += number
    if not functions:
        return None
    function, number = max(functions.items(), key=lambda one: (one[1], one[0]))
    line = next(line for line in by_line if line.partition(" ")[2] == function).partition(" ")[0]
    loop, then = "", "begin there"
    if sum(within.values()) >= OF_LOOP * launches.n_unique():
        number, (line, _, function) = sum(within.values()), next(iter(within)).partition(" ")
        loop = f"lines that run {turns:,} times per {view.unit}, most from "
        then = "what no turn of that loop needs from the one before can be done for all at once"
    elif number < MOST * launches.n_unique() or not function:
        return None
    share, name = numbers.percent(number / launches.n_unique()), PurePosixPath(line).name
    into = [one for one in of_thread(view) if one.line == name and one.library and one.calls != WRAPPER]
    called = f", which calls {into[0].library} {into[0].calls}" if into else ""
    return (
        f" {share} of the launches ({view.per_step(number):,.0f} per {view.unit}) come from "
        f"{loop}{function} ({line}){called}: {then}.",
        line,
    )


def _loop(view: RankView, launched: dict[str, int]) -> tuple[int, dict[str, int]]:
    """How many turns the loop has whose lines launch most, and what each of these lines launches. A line of a
    loop runs in each turn, once or several times; how often it runs in a step is the greatest number that
    divides the calls of each of its ops."""
    assert view.lines is not None
    calls = view.called.select("name", line=view.lines.texts["line"].gather(view.called["id"]))
    counts = calls.drop_nulls().group_by("line", "name").len().group_by("line").agg("len")
    times = {str(line): gcd(*each) // view.steps for line, each in counts.iter_rows()}
    known = {line: number for line, number in launched.items() if times.get(line, 0) >= TURNS}
    of_turns = {
        turns: {line: number for line, number in known.items() if times[line] % turns == 0}
        for turns in {times[line] for line in known}
    }
    return max(of_turns.items(), key=lambda one: (sum(one[1].values()), one[0]), default=(0, {}))


def _largest(lines: dict[ThreadLine, float], whole: float) -> tuple[str, float]:
    """The function with the largest share of these lines, and that share."""
    functions: defaultdict[str, float] = defaultdict(float)
    for line, share in lines.items():
        functions[line.function] += share
    function, share = max(functions.items(), key=lambda one: (one[1], one[0]))
    return function, share / whole
