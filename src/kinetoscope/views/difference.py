"""A comparison on the terminal: what changed in a screenful."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document.difference import ChangePart, Difference, FindingChange, SumChange
from kinetoscope.render import names, palette
from kinetoscope.render.screen import Section, fitting
from kinetoscope.render.table import Name, Prose, columns, heading, heads, rest
from kinetoscope.views import difference_words as words
from kinetoscope.views.check import gate_lines

LINES = 39
LEAST = {"lead": 3, "changes": 3, "counts": 3, "gates": 9}
LESS = (("counts", 0), ("lead", 1), ("changes", 1), ("gates", 4))
MORE = (
    ("changes", 5), ("counts", 6), ("findings", 2), ("categories", 3), ("idle", 2), ("changes", 8),
    ("lead", 6), ("findings", 4), ("counts", 12), ("categories", 5), ("modules", 3), ("lines", 4),
    ("idle", 4), ("changes", 10),
)  # fmt: skip
WHOLE = {
    "lead": 99, "changes": 60, "counts": 99, "findings": 99, "categories": 99, "ops": 30, "modules": 30,
    "graphs": 30, "lines": 30, "idle": 20, "code": 200, "gates": 99,
}  # fmt: skip
COMPARABLE = {"good": "green", "limited": "yellow", "none": "bold red"}
STEP = {**palette.VERDICTS, "same": "green", "cannot tell": "yellow"}


def print_difference(found: Difference, console: Console, *, whole: bool = False) -> None:
    """Print what differs; ``whole``: not only what fits on a screen."""
    sections = _sections(found)
    if whole:
        shown = [part for name, section in sections.items() for part in section(WHOLE[name])]
    else:
        shown = fitting(sections, LEAST, LESS, MORE, console, LINES)
    console.print(Group(*shown), markup=False, crop=False)


def _sections(found: Difference) -> dict[str, Section]:
    sections: dict[str, Section] = {"lead": partial(_lead, found)}
    if found.changes or found.facts:
        sections["changes"] = partial(_changes, found)
    sections["counts"] = partial(_counts, found)
    if found.findings_gone or found.findings_come:
        sections["findings"] = partial(_findings, found)
    tables = {
        "categories": ("Busy by category", found.categories),
        "idle": ("Idle by cause", found.idle),
        "ops": ("Busy by op", found.ops),
        "modules": ("Busy by module", found.modules),
        "graphs": ("Busy by compiled graph", found.graphs),
        "lines": ("Busy by line", found.lines),
    }
    for name, (title, table) in tables.items():
        if len(table) > 1 or (name == "idle" and table):
            sections[name] = partial(_sums, title, table)
    if found.code:
        sections["code"] = partial(_code, found.code)
    if found.gates:
        sections["gates"] = partial(_gates, found)
    return sections


def _lead(found: Difference, most: int) -> Iterable[RenderableType]:
    yield Text(names.plain(words.title(found)), style="dim", no_wrap=True, overflow="ellipsis")
    good = found.comparability == "good"
    remark = f"{'✓' if good else '⚠'} {words.REMARKS[found.comparability]}"
    yield Text(remark, style=COMPARABLE[found.comparability])
    for why in found.why[:most]:
        yield Text(f"  - {names.plain(why)}", no_wrap=True, overflow="ellipsis")
    yield from rest(len(found.why) - most, "difference")
    yield Text()
    style = STEP.get(found.step.verdict, "") if found.step else ""
    yield Prose(words.headline(found), style=f"bold {style}".strip())
    if found.step:
        yield Text(found.step.basis, style="dim", no_wrap=True, overflow="ellipsis")
    if advice := words.next_step(found):
        yield Text(advice, style="dim", no_wrap=True, overflow="ellipsis")


def _changes(found: Difference, most: int) -> Iterable[RenderableType]:
    yield from heading(*words.reason(found))
    table = columns("right", "left*")
    for change in found.changes[:most]:
        _change_rows(table, change)
    left = found.changes[most:]
    if left:
        together = sum(change.delta_us for change in left)
        table.add_row(
            Text(words.signed(together)),
            Text(f"{numbers.count(len(left), 'smaller change')} together", style="dim"),
        )
    yield table
    claimed = {change.name for change in found.changes}
    for fact in [fact for fact in found.facts if not any(fact.name in name for name in claimed)][:2]:
        where = f"  {names.plain(fact.source)}" if fact.source else ""
        yield Text(f"  {names.plain(fact.name)}{where}", style="dim", no_wrap=True, overflow="ellipsis")


def _change_rows(table: Table, change: ChangePart) -> None:
    style = "red" if change.delta_us > 0 else "green"
    table.add_row(Text(words.signed(change.delta_us), style=style), Name(names.plain(change.name)))
    place = words.where(change)
    detail = words.did(change) + (f", {place}" if place else "")
    table.add_row(Text(), Text(names.plain(detail), style="dim", no_wrap=True, overflow="ellipsis"))
    for part in change.parts[:2]:
        told = f"{words.signed(part.delta_us)}  {names.plain(part.name)}"
        table.add_row(Text(), Text(told, style="dim", no_wrap=True, overflow="ellipsis"))


def _counts(found: Difference, most: int) -> Iterable[RenderableType]:
    differing = list(words.counts(found))
    same = words.same_counts(found)
    if not differing:
        if same:
            yield Text()
            yield Text(
                f"Every count is the same: {', '.join(same)}", style="dim", no_wrap=True, overflow="ellipsis"
            )
        return
    yield from heading("Counted", "of the usual step; of compiling, in all")
    table = columns("left", "right", "left", "right", "left*", leave=[4])
    for row, base, new in differing[:most]:
        kind = row.words if row.exact else f"{row.words} (may differ from run to run)"
        table.add_row(Text(row.name), Text(base), Text("→", style="dim"), Text(new), Text(kind, style="dim"))
    yield table
    yield from rest(len(differing) - most, "count")


def _findings(found: Difference, most: int) -> Iterable[RenderableType]:
    yield from heading("Findings", "that only one of them has")
    table = columns("left", "left", "left*")
    rows: list[tuple[str, str, FindingChange]] = [
        *(("+", "red", row) for row in found.findings_come),
        *((words.MINUS, "green", row) for row in found.findings_gone),
    ]
    for sign, style, row in rows[:most]:
        table.add_row(Text(sign, style=style), Text(names.plain(row.rule)), Name(names.plain(row.title)))
    yield table
    yield from rest(len(rows) - most, "finding")


def _sums(title: str, rows: list[SumChange], most: int) -> Iterable[RenderableType]:
    yield from heading(title, "a step")
    table = columns("left*", "right", "right", "right")
    heads(table, "", "base", "new", "difference")
    for row in rows[:most]:
        cells = (numbers.time(row.base_us), numbers.time(row.new_us), words.signed(row.delta_us))
        table.add_row(Name(names.plain(row.name)), *map(Text, cells))
    yield table
    yield from rest(len(rows) - most, "row")


def _code(code: str, most: int) -> Iterable[RenderableType]:
    yield from heading("The generated kernel", "before and now")
    lines = code.splitlines()
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in lines[:most]:
        yield Text(names.printable(line), style=styles.get(line[:1], "dim"))
    yield from rest(len(lines) - most, "line")


def _gates(found: Difference, most: int) -> Iterable[RenderableType]:
    yield from heading("Gates")
    yield from gate_lines(found.gates[:most])
