"""The report on a terminal: a first screen, or whole."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import Report
from kinetoscope.render import names, palette
from kinetoscope.render.screen import Section, fitting
from kinetoscope.render.table import Name, Prose, columns, drawn, heading, heads, rest
from kinetoscope.views import bars, headline, own_pace, pace_lines, phase_lines
from kinetoscope.views import ranks as rank_lines
from kinetoscope.views.bars import Bar
from kinetoscope.views.next_commands import NextCommand, next_commands

LINES = 39  # of the first screen: 40 with the prompt
# Rows of each section: of the whole report; of a first screen; where that is too much; what it grows by.
WHOLE = {
    "lead": 4, "findings": 3, "busy": 8, "ranks": 8, "phases": 12, "pace": 99, "categories": 8, "graphs": 3,
    "kernels": 10, "ops": 12, "next": 9,
}  # fmt: skip
LEAST = {"lead": 2, "findings": 1, "busy": 1, "next": 3}
LESS = (("lead", 1), ("next", 2), ("next", 1), ("busy", 0))
MORE = (
    ("findings", 2), ("ranks", 1), ("findings", 3), ("busy", 4), ("ops", 5), ("phases", 4), ("kernels", 3),
    ("next", 9), ("categories", 4), ("kernels", 5), ("graphs", 2), ("ops", 12), ("busy", 8), ("kernels", 8),
    ("categories", 8),
)  # fmt: skip
STEPS = 6
WIDE = 120  # columns, from which bars and categories have more of them
SEEN = 0.0005  # of the window: 0.1 %, as it is written
WORTH_WORDS = 0.05  # of the window, unexplained

# Without colour the uses of time are still told apart, by their fill.
_FILLS = {palette.COMPUTE: "█", palette.COMMUNICATION: "▓", palette.COPY: "▒", palette.IDLE: "░"}
_ASCII_FILLS = {palette.COMPUTE: "#", palette.COMMUNICATION: "=", palette.COPY: "+", palette.IDLE: "."}
_VERDICT_STYLES = {"good": "green", "degraded": "yellow", "unreliable": "bold red"}
_SEVERITY_STYLES = {"high": "bold red", "medium": "yellow", "low": "blue"}


@dataclass(frozen=True)
class _Look:
    """How it is drawn: with what letters, how much room bars and categories have, whether all of it."""

    ascii_only: bool
    is_wide: bool
    is_whole: bool


def print_report(report: Report, inputs: Sequence[str], console: Console, *, whole: bool = False) -> None:
    """Print the report of ``inputs`` (as they were typed: the next commands name them).

    Args:
        whole: not only what fits on a screen.
    """
    look = _Look(not console.encoding.startswith("utf"), console.width >= WIDE, whole)
    sections = _sections(report, inputs, look)
    if whole:
        shown = [part for name, section in sections.items() for part in section(WHOLE[name])]
    else:
        shown = fitting(sections, LEAST, LESS, MORE, console, LINES)
    # Tables keep to the width; only a long command to copy may run past it.
    console.print(Group(*shown), markup=False, crop=False)


def _sections(report: Report, inputs: Sequence[str], look: _Look) -> dict[str, Section]:
    sections: dict[str, Section] = {"lead": partial(_lead, report, look)}
    if headline.worth_doing(report):
        sections["findings"] = partial(_findings, report)
    if report.devices:
        sections |= {
            "busy": partial(_busy, report, look),
            "ranks": partial(_ranks, report, look),
            "phases": partial(_phases, report),
            "pace": partial(_pace, report),
            "categories": partial(_categories, report, look),
            "graphs": partial(_graphs, report),
            "kernels": partial(_kernels, report, look),
        }
    else:
        sections |= {"phases": partial(_phases, report), "ops": partial(_ops, report)}
    return sections | {"next": partial(_next, report, inputs, look)}


def _lead(report: Report, look: _Look, notes: int) -> Iterable[RenderableType]:
    yield Text(" · ".join(headline.title(report)), style="dim", no_wrap=True, overflow="ellipsis")
    yield from _health(report, look.ascii_only, notes)
    yield Text()
    yield Prose(headline.headline(report), style="bold")
    if look.is_whole and (timing := headline.timing(report)):
        yield Prose(timing)
    if compiled := headline.compilation(report):
        yield Prose(compiled)


def _health(report: Report, ascii_only: bool, most: int) -> Iterable[RenderableType]:
    good = report.health.verdict == "good"
    mark = ("+" if good else "!") if ascii_only else ("✓" if good else "⚠")
    yield Text(f"{mark} {headline.verdict(report)}", style=_VERDICT_STYLES.get(report.health.verdict, ""))
    notes = headline.notes(report)
    table = columns("left", "left*")
    for note in notes[:most]:
        table.add_row(Text("  -"), Text(note))
    if notes:
        yield table
    yield from rest(len(notes) - most, "note")


def _findings(report: Report, most: int) -> Iterable[RenderableType]:
    shown = headline.worth_doing(report)[:most]
    yield from heading("Findings", "what to change, the largest saving first")
    table = columns("left", "left*")
    for row in shown:
        where = f" ({names.plain(row.source)})" if row.source else ""
        saving = headline.saving(report, row)
        saving = f"{saving[0].upper()}{saving[1:]}. " if saving else ""
        measured = headline.measured(row)
        table.add_row(
            Text(names.plain(row.severity), style=_SEVERITY_STYLES.get(row.severity, "")),
            Group(
                Prose(names.shorten(row.title, 240)),
                Prose(f"{saving}{names.shorten(row.advice, 300)}{where}", style="dim"),
                *(
                    [Prose(f"M{measured[1:]}.", style=palette.verdict(row.measured_verdict))]
                    if measured
                    else []
                ),
            ),
        )
    yield table
    if together := headline.together(report):
        yield Prose(together)
    yield from rest(len(report.findings) - len(shown), "finding")
    for problem in report.unread:
        yield Text(names.shorten(problem, 300), style="yellow")


def _busy(report: Report, look: _Look, most: int) -> Iterable[RenderableType]:
    talks = any(row.communication_us for row in report.devices)
    exposed = "; communication, copies: exposed" if talks else ""
    yield from heading("Busy", f"share of {headline.recorded_window(report)}{exposed}")
    table = columns("left*", "left", "right", "left", leave=(1, 3))
    device_bars = bars.device_bars(report)
    step_bars = bars.step_bars(report) if look.is_whole and len(device_bars) == 1 else []
    for bar in device_bars[:most]:
        parts = " · ".join(
            f"{segment.use} {numbers.percent(segment.share)}"
            for segment in bar.segments
            if segment.share >= 0.005 and segment.use != palette.IDLE
        )
        table.add_row(
            Name(bar.label),
            _bar(bar, look),
            Text(f"{numbers.percent(bar.busy)} busy"),
            Text(parts, style="dim"),
        )
    for bar in step_bars[:STEPS]:
        table.add_row(
            Name(names.shorten(bar.label, 24)),
            _bar(bar, look),
            Text(f"{numbers.percent(bar.busy)} busy"),
            Text(f"of {numbers.time(bar.time_us)}", style="dim"),
        )
    yield table
    yield from rest(len(device_bars) - most, "device")
    yield from rest(len(step_bars) - STEPS, "step")
    yield from _idle(report, look)
    if not look.is_whole and (judged := pace_lines.judged(report)):
        yield Prose(judged, style="dim")


def _ranks(report: Report, look: _Look, most: int) -> Iterable[RenderableType]:
    if report.ranks is None:
        return
    yield from heading("Ranks", "who waits for whom in collectives")
    sentences = rank_lines.lines(report.ranks)
    for sentence in sentences if look.is_whole else sentences[:most]:
        yield Prose(names.plain(sentence))
    for shown in rank_lines.grids(report.ranks, most) if look.is_whole else ():
        yield from heading(shown.title, shown.basis)
        yield drawn(shown)


def _idle(report: Report, look: _Look) -> Iterable[RenderableType]:
    causes = headline.idle_causes(report)
    if own := own_pace.idle(report):
        listed = " · ".join(
            f"{names.plain(cause)} {numbers.percent(share)}" for cause, share in own[:4] if share >= SEEN
        )
        yield Text.assemble(("as it runs, idle because   ", "dim"), listed)
        causes = causes if look.is_whole else []
    if causes:
        recorded = "as recorded, idle because  " if own else "idle because  "
        listed = " · ".join(
            f"{names.plain(row.cause)} {numbers.percent(row.share_of_window)}"
            for row in causes[:4]
            if row.share_of_window >= SEEN
        )
        yield Text.assemble((recorded, "dim"), listed)
    for row in causes:
        if row.cause == "unexplained" and row.share_of_window >= WORTH_WORDS and row.text:
            yield Prose(f"unexplained: mostly, {names.shorten(row.text, 300)}", style="dim")


def _phases(report: Report, most: int) -> Iterable[RenderableType]:
    found = phase_lines.lines(report)
    if not found:
        return
    yield from heading("Phases", "unlike steps apart; median, and busy share of it")
    table = columns("left", *["right"] * 6, "left*")
    heads(table, *phase_lines.HEADS)
    for line in found[:most]:
        table.add_row(*map(Text, line[:-1]), Name(line.kernel))
    yield table
    yield from rest(len(found) - most, "phase")


def _pace(report: Report, most: int) -> Iterable[RenderableType]:
    found = pace_lines.lines(report)[:most]
    if not found:
        return
    yield from heading("Steps, launches, memory")
    table = columns("left", "left*")
    last = ""
    for what, sentence in found:
        table.add_row(Text("" if what == last else what, style="dim"), Text(sentence))
        last = what
    yield table


def _categories(report: Report, look: _Look, most: int) -> Iterable[RenderableType]:
    if not report.categories:
        return
    total = sum(row.device_time_us for row in report.categories)
    yield from heading("GPU time by category", f"share of {numbers.time(total)} of device time")
    table = columns("left", "left", "right", "right", "right", "right", leave=(5, 4, 1))
    largest, cells = report.categories[0].share_of_device_time, 56 if look.is_wide else 28
    for row in report.categories[:most]:
        colour = palette.category(row.category)
        table.add_row(
            Text(names.shorten(row.category, 22)),
            Text(
                _length(row.share_of_device_time / largest if largest else 0, cells, look.ascii_only),
                style=colour,
            ),
            Text(numbers.percent(row.share_of_device_time)),
            Text(numbers.time(row.device_time_us)),
            Text(numbers.count(row.launches, "launch"), style="dim"),
            Text(numbers.count(row.distinct_kernels, "kernel"), style="dim"),
        )
    yield table
    yield from rest(len(report.categories) - most, "category")


def _kernels(report: Report, look: _Look, most: int) -> Iterable[RenderableType]:
    if not report.kernels:
        return
    yield from heading("Top kernels", "share of device time; median and range of one launch")
    table = columns("left*", "left", "right", "right", "right", "right", "right", leave=(6, 5, 4, 1))
    heads(table, "kernel", "category", "share", "total", "launches", "median", "min–max")
    for row in report.kernels[:most]:
        table.add_row(
            Name(names.plain(row.short_name)),
            Text(
                names.shorten(row.category, 24 if look.is_wide else 13), style=palette.category(row.category)
            ),
            Text(numbers.percent(row.share_of_device_time)),
            Text(numbers.time(row.device_time_us)),
            Text(numbers.count(row.launches)),
            Text(numbers.time(row.median_us)),
            Text(numbers.span(row.min_us, row.max_us), style="dim"),
        )
    yield table
    yield from rest(len(report.kernels) - most, "kernel")


def _graphs(report: Report, most: int) -> Iterable[RenderableType]:
    if not report.graphs:
        return
    yield from heading("Compiled graphs", "share of device time; of each graph's own time")
    table = columns("left", "right", "right", "right", "left*")
    for row, label in zip(report.graphs[:most], headline.graph_labels(report), strict=False):
        parts = " · ".join(
            f"{names.shorten(part.category, 22)} {numbers.percent(part.share_of_graph)}"
            for part in row.categories[:3]
        )
        table.add_row(
            Text(names.shorten(label, 30)),
            Text(numbers.percent(row.share_of_device_time)),
            Text(numbers.time(row.device_time_us)),
            Text(numbers.count(row.calls, "call")),
            Text(parts, style="dim"),
        )
    yield table
    yield from rest(len(report.graphs) - most, "graph")


def _ops(report: Report, most: int) -> Iterable[RenderableType]:
    rows = headline.host_ops(report)
    if not rows:
        return
    total = sum(row.host_self_us for row in rows)
    yield from heading("Top ops", f"share of {numbers.time(total)} of host time in ops and runtime calls")
    table = columns("left*", "right", "right", "right", "right", leave=(3, 4))
    heads(table, "op", "share", "self", "total", "calls")
    for row in rows[:most]:
        table.add_row(
            Name(headline.event(report, row.name)),
            Text(numbers.percent(row.host_self_us / total if total else 0.0)),
            Text(numbers.time(row.host_self_us)),
            Text(numbers.time(row.host_total_us)),
            Text(numbers.count(row.calls)),
        )
    yield table
    yield from rest(len(rows) - most, "op")


def _next(report: Report, inputs: Sequence[str], look: _Look, most: int) -> Iterable[RenderableType]:
    yield from heading("Next")
    *commands, page = next_commands(report, inputs)
    commands = [*commands[: most - 1], page]
    if not look.is_whole:
        quoted = " ".join(map(shlex.quote, inputs))
        commands.append(NextCommand(f"kinetoscope report {quoted} --verbose", "what did not fit here"))
    longest = max(len(command.shows) for command in commands)
    for command in commands:
        # Never folded or shortened: the line must be right when it is copied.
        yield Text.assemble(
            (f"{command.shows:{longest}}  ", "dim"),
            (names.plain(command.line), "cyan"),
            no_wrap=True,
            overflow="ignore",
        )


def _bar(bar: Bar, look: _Look) -> Text:
    fills, width = _ASCII_FILLS if look.ascii_only else _FILLS, 40 if look.is_wide else 20
    text = Text()
    drawn, edge = 0, 0.0
    for segment in bar.segments:
        # Each edge is rounded, not each length: the bar always has its whole width.
        edge += segment.share
        cells = round(edge * width) - drawn
        text.append(fills[segment.use] * cells, style=palette.USES[segment.use])
        drawn += cells
    return text


def _length(share: float, width: int, ascii_only: bool) -> str:
    """A bar of ``share`` of ``width`` cells, to an eighth of a cell."""
    eighths = max(round(share * width * 8), 1)
    if ascii_only:
        return "#" * max(eighths // 8, 1)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
