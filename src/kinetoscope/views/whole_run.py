"""The whole run: how much of it the recorded steps are like, and what else the program did."""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope import numbers
from kinetoscope.document import Report, WholeRunRow
from kinetoscope.render import names
from kinetoscope.render.blocks import Block, Heading, Prose, field, table

HALF = 0.5  # of the run after its setup: with less, what was recorded is the lesser part, which is said first
NAMED, WORTH = 3, 0.01  # phases that the sentence names, and the least that it mentions
# Steps after the recording took another time where it differs by this factor, over so many at least.
UNLIKE, FEWEST_LATER = 1.5, 5


def is_lesser_part(report: Report) -> bool:
    """Whether the recorded steps are like less than half of what the program does once it is set up."""
    found = report.whole_run
    return found is not None and found.steps_share_after_setup < HALF


def sentence(report: Report) -> str:
    """The share of the run that the recorded steps stand for, and the rest; empty where that is unknown."""
    found = report.whole_run
    if found is None:
        return ""
    rest = ", ".join(_rest(found))
    steps = f" ({_steps(found)})" if found.about_steps else ""
    return (
        f"The recorded steps are like {numbers.percent(found.steps_share)} of the program's "
        f"{numbers.time(found.time_us)}{steps}{f': {rest}' if rest else ''}.{_pace(found)}"
    )


def _pace(found: WholeRunRow) -> str:
    later, timed = found.later_step_us, found.timed_step_us
    if not later or not timed or (found.later_steps or 0) < FEWEST_LATER:
        return ""
    if 1 / UNLIKE < later / timed < UNLIKE:
        return ""
    return (
        f" The program did not keep that pace: the {found.later_steps:,} steps after these took "
        f"{numbers.time(later)} at the mean, those that were timed {numbers.time(timed)} "
        "(`--warmup N` records later ones)."
    )


def _steps(found: WholeRunRow) -> str:
    timed = f"{found.timed_steps:,} timed, " if found.timed_steps else ""
    counted, known = found.about_steps or 0, ""
    if found.least_steps:  # the time of later ones may be many times as long
        counted, known = found.least_steps, "at least "
    elif found.later_steps is None:
        known = "about "
    return f"{known}{numbers.count(counted, 'step')}, {timed}{found.recorded_steps:,} recorded"


def _rest(found: WholeRunRow) -> Iterable[str]:
    own = [row for row in found.phases if row.kind in ("phase", "other-steps")]
    parts = [(row.share, names.shorten(row.title, 80)) for row in own[:NAMED]]
    others = [*own[NAMED:], *(row for row in found.phases if row.kind == "other")]
    for name, kinds in (("setup", ("importing", "setup")), ("compiling", ("compiling",))):
        parts.append((sum(row.share for row in found.phases if row.kind in kinds), name))
    parts.append((sum(row.share for row in others), "other"))
    shown = [(share, name) for share, name in parts if share >= WORTH]
    for at, (share, name) in enumerate(shown):
        yield f"{numbers.percent(share)}{' is' if at == 0 else ''} {name}"


def section(report: Report, most: int) -> Iterable[Block]:
    """The phases of the whole run, the steps first."""
    found = report.whole_run
    if found is None:
        return
    yield Heading(
        "The whole run", f"share of {numbers.time(found.time_us)}, by samples of the thread that steps"
    )
    yield table(
        found.phases,
        field("phase", "words", lambda row: names.shorten(row.name, 80)),
        field("share", "share", "share"),
        field("time", "time", "time_us"),
        field("begins at", "words", lambda row: "" if row.where is None else names.plain(row.where)),
        field("times", "count", lambda row: row.times if row.kind == "phase" and row.times else None),
        field("longest", "time", lambda row: (row.longest_us or None) if row.kind == "phase" else None),
        most=most,
        noun="phase",
    )
    if (long := found.long_steps) is not None:
        yield Prose(
            f"{long.count} of {long.of} timed steps were long, by {numbers.time(long.more_us)} each: "
            f"{names.shorten(long.title, 80)}, seen {numbers.count(long.times, 'time')}, takes "
            f"{numbers.time(long.step_us)} of each step at the mean."
        )


def thread(report: Report, most: int) -> Iterable[Block]:
    found = report.whole_run
    if found is None or not found.lines:
        return
    samples = sum(line.samples for line in found.lines)
    yield Heading(
        "The thread that steps", f"share of {numbers.count(samples, 'sample')} of steps, without the profiler"
    )
    yield table(
        found.lines,
        field("line", "words", lambda row: names.plain(row.line)),
        field("share", "share", "share"),
        field("per step", "time", lambda row: row.time_us or None),  # of first steps it is not known
        field("function", "words", lambda row: names.shorten(row.function, 40)),
        field("calls", "words", lambda row: names.shorten(f"{row.library} {row.calls}".strip(), 40)),
        most=most,
        noun="line",
    )
