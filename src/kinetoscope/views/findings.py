"""All findings with their evidence: what ``kinetoscope findings`` shows."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import After, FindingRow, FindingsListing
from kinetoscope.render import names, palette
from kinetoscope.render.json import indented
from kinetoscope.render.table import columns
from kinetoscope.views import headline

STYLES = {"high": "bold red", "medium": "yellow", "low": "blue", "info": "dim"}
INDENT = (0, 0, 0, 3)
ALIKE = 0.25  # savings that differ by less are not told apart
EVENTS = 4  # event numbers that a line of evidence shows


def render_json(listing: FindingsListing) -> str:
    """One document: the contract's rows, what cannot be read, and what a second recording shows."""
    return indented({"findings": listing.findings, "unread": listing.unread, "after": listing.after})


def print_findings(listing: FindingsListing, console: Console) -> None:
    """Every finding: title, saving and its basis, advice, code, evidence, and the command that proves it."""
    if listing.after is not None:
        console.print(Text(f"{_after(listing.after)}\n"), soft_wrap=True)
    for problem in listing.unread:
        console.print(Text(names.plain(problem), style="yellow"))
    findings = listing.findings
    if not findings:
        console.print(Text("Nothing found: no rule has anything to say about this recording.", style="green"))
        return
    counted = [(level, sum(row.severity == level for row in findings)) for level in STYLES]
    summary = Text(f"{numbers.count(len(findings), 'finding')}  ", style="bold")
    summary.append(" · ".join(f"{count} {level}" for level, count in counted if count), style="dim")
    console.print(summary)
    for number, row in enumerate(findings, 1):
        console.print()
        for part in _finding(number, row, listing.start_us, listing.unit):
            console.print(part)
    console.print()
    worst = names.plain(findings[0].rule)
    console.print(
        Text(
            f"kinetoscope explain {shlex.quote(worst)}    what the first one is, and how it was decided",
            style="dim",
        )
    )


def _after(after: After) -> str:
    together = numbers.count(len(after.gone), "finding")
    promised = f"{together} gone, which promised {numbers.time(after.predicted_us)} a step"
    return f"{promised}; measured {numbers.time(after.saving_us)}, {after.verdict} ({after.basis})"


def _finding(number: int, row: FindingRow, start_us: float, unit: str) -> Iterable[RenderableType]:
    title = Text(f"{number}  ")
    title.append(f"{names.plain(row.severity):<6} ", style=STYLES.get(row.severity, ""))
    title.append(names.plain(row.rule), style="bold")
    if row.ranks and len(row.ranks) > 1:
        title.append(f"  ranks {_ranks(row.ranks)}", style="dim")
    yield title
    yield Padding(Text(numbers.together(names.plain(row.title))), INDENT)
    table = columns("left", "left*")
    table.columns[1].overflow = "fold"
    for label, text in _lines(row, start_us, unit):
        table.add_row(Text(label, style="dim"), text)
    yield Padding(table, INDENT)


def _lines(row: FindingRow, start_us: float, unit: str) -> Iterable[tuple[str, Text]]:
    if row.saving_us > 0:
        amount = f"about {numbers.time(row.saving_us)} per {unit}, {numbers.percent(row.share_of_step)}"
        # What is only a question ("what if it were twice as fast?") is not promised in green.
        saving = Text(amount, style="" if row.severity == "info" else "green")
        if (
            not row.also
            and row.paced_by is None
            and abs(row.saving_alone_us - row.saving_us) > ALIKE * row.saving_us
        ):
            saving.append(f", {numbers.time(row.saving_alone_us)} by itself", style="not bold")
        saving.append(f"  ({names.plain(row.saving_basis)})", style="not bold dim")
        yield "saves", saving
    elif row.saving_bytes:
        freed = Text(headline.freed(row), style="green")
        yield "frees", freed.append(f"  ({names.plain(row.saving_basis)})", style="not bold dim")
    else:
        yield "saves", Text(f"– ({names.plain(row.saving_basis)})", style="dim")
    if row.paced_by is not None:
        yield "also", Text(f"{numbers.time(row.saving_alone_us)} {headline.of_its_own(row)}")
    if row.also:
        owned = f"{numbers.time(row.saving_alone_us)} by itself, mostly what {names.plain(row.also)} saves"
        yield "also", Text(owned)
    if measured := headline.measured(row):
        text = Text(
            measured.removeprefix("measured").lstrip(": "), style=palette.verdict(row.measured_verdict)
        )
        text.append(f"  ({names.plain(row.measured_basis or '')})", style="not bold dim")
        yield "measured", text
    advice = Text(names.plain(row.advice))
    if row.snippet:
        advice.append(f"\n{names.printable(row.snippet)}", style="cyan")
    yield "do", advice
    if row.source:
        yield "where", Text(names.plain(row.source))
    for i, seen in enumerate(row.evidence):
        line = Text(names.plain(seen.text))
        events = ", ".join(map(str, seen.events[:EVENTS])) + ("…" if len(seen.events) > EVENTS else "")
        at = numbers.time(max(seen.start_us - start_us, 0.0))
        line.append(f"  at {at}" + (f", events {events}" if events else ""), style="dim")
        yield "" if i else "see", line
    if row.proof and not row.is_measured:
        yield "prove", Text(names.plain(row.proof), style="cyan")


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown + ("…" if len(ranks) > 8 else "")
