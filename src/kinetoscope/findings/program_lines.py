"""Which lines of the program launch its work, load its data and wait: what findings name to begin with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.origins.attribution import lines_of_work
from kinetoscope.analysis.passes.thread_lines import ThreadLine
from kinetoscope.analysis.passes.whole_run import whole_run
from kinetoscope.findings.rank_view import RankView

# A function is named where it has at least this share; its lines, from so many samples on.
MOST = 1 / 3
FEWEST_SAMPLES = 10
# A thread that waits for less of its time is at work all day.
NEVER = 0.05
# Lines of ops that were laid over so few of the recorded ones are of a step that went another way.
VERIFIED = 0.5


def of_thread(view: RankView) -> Sequence[ThreadLine]:
    """The lines in which the thread that steps was, by samples without the profiler; none where not known."""
    watched = whole_run(view.run)
    return watched.lines if watched is not None and watched.rank == view.rank else ()


def waits_at(view: RankView, line: str | None) -> ThreadLine | None:
    """The samples of a line (``src/serve.py:70``) at which the thread waits for others; None of any other."""
    name = "" if line is None else PurePosixPath(line).name
    return next((one for one in of_thread(view) if one.waits and one.line == name), None)


def of_loader(view: RankView) -> str:
    """Where in the program's data set the time of a loader without workers passes, as a sentence after
    another; empty where that is not known."""
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
    """The function of the program in which most of the thread's time in the program's own lines passes.

    Attributes:
        sentence: says so, without its end.
        line: the one of most time.
    """

    function: str
    line: str
    sentence: str


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


def never_waits(view: RankView) -> bool:
    """Whether the thread that steps is known to wait for no request, other thread or process; it may wait for
    a lock that others of its kind have."""
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
    functions: defaultdict[str, int] = defaultdict(int)
    for line, number in by_line.items():
        functions[line.partition(" ")[2]] += number
    if not functions:
        return None
    function, number = max(functions.items(), key=lambda one: (one[1], one[0]))
    if number < MOST * launches.n_unique() or not function:
        return None
    line = next(line for line in by_line if line.partition(" ")[2] == function).partition(" ")[0]
    share = numbers.percent(number / launches.n_unique())
    return f" {share} of the launches come from {function} ({line}): begin there.", line


def _largest(lines: dict[ThreadLine, float], whole: float) -> tuple[str, float]:
    """The function with the largest share of these lines, and that share."""
    functions: defaultdict[str, float] = defaultdict(float)
    for line, share in lines.items():
        functions[line.function] += share
    function, share = max(functions.items(), key=lambda one: (one[1], one[0]))
    return function, share / whole
