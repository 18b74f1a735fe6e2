"""What a device's memory held at its peak: what ``kinetoscope memory`` shows."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import GivenBackRow, GrowthRow, MemoryPeak, MemoryPeaks
from kinetoscope.render import names, palette
from kinetoscope.render.json import indented
from kinetoscope.render.table import Name, aside, columns, heading, rest
from kinetoscope.views import memory_lines

SNAPSHOT = ("Snapshot", "as torch's own viewer of memory reads it")
BAR = 60  # cells of the bar of all parts


def render_json(listing: MemoryPeaks) -> str:
    """One document: the contract's rows."""
    return indented(listing)


def print_memory(listing: MemoryPeaks, console: Console, limit: int) -> None:
    """Each device: its parts at the peak, who has them, what grows, and what fits."""
    for problem in listing.unread:
        console.print(Text(names.plain(problem), style="yellow"))
    if not listing.peaks:
        for row in listing.memory:
            console.print(Text(memory_lines.traced(row)), soft_wrap=True)
        console.print(aside("`kinetoscope run --memory` records who holds it"))
    for number, peak in enumerate(listing.peaks):
        if number:
            console.print()
        for part in _peak(peak, limit):
            console.print(part)


def _peak(peak: MemoryPeak, limit: int) -> Iterable[RenderableType]:
    title, basis = memory_lines.headline(peak)
    yield Text.assemble((title, "bold"), (f"  {basis}", "dim"))
    yield _bar(peak)
    for note in peak.notes:
        yield aside(note, "yellow", 2)
    yield from _parts(peak)
    yield from _holders(peak, limit)
    yield from _growth(peak.growth)
    yield from _given_back(peak.given_back)
    yield from _fits(peak)
    is_snapshot = peak.moment != "timeline"
    yield from heading(*SNAPSHOT if is_snapshot else ("Memory timeline", "of torch's profiler"))
    yield Name(names.plain(peak.snapshot))


def _bar(peak: MemoryPeak) -> Text:
    """All parts beside each other; one that is less than half a cell is not drawn."""
    bar = Text("  ")
    for part in peak.parts:
        bar.append("█" * round(part.share_of_reserved * BAR), style=palette.memory(part.part))
    return bar


def _parts(peak: MemoryPeak) -> Iterable[RenderableType]:
    kind = "held" if peak.moment == "timeline" else "reserved"
    yield from heading("What it was", f"sums to the {numbers.size(peak.reserved_bytes)} {kind}")
    table = columns("left", "right", "right", "right", "left*")
    for part in peak.parts:
        table.add_row(
            Text.assemble(("■ ", palette.memory(part.part)), part.part),
            Text(numbers.size(part.bytes)),
            Text(numbers.percent(part.share_of_reserved)),
            Text(numbers.count(part.allocations) if part.allocations else "", style="dim"),
            Text(memory_lines.PARTS.get(part.part, ""), style="dim"),
        )
    if peak.outside_bytes is not None:
        table.add_row(
            Text("  outside the allocator"), Text(numbers.size(peak.outside_bytes)), Text(), Text(),
            Text(memory_lines.OUTSIDE, style="dim"),
        )  # fmt: skip
    yield table


def _holders(peak: MemoryPeak, limit: int) -> Iterable[RenderableType]:
    if not peak.holders:
        return
    yield from heading("Who had it", f"sums to the {numbers.size(peak.requested_bytes)} held")
    shown = peak.holders[:limit] if limit else peak.holders
    table = columns("right", "right", "left", "left*", "left", leave=(1, 4))
    for row in shown:
        table.add_row(
            Text(numbers.size(row.bytes)),
            Text(f"{row.allocations:,} ×", style="dim"),
            Text(row.role, style=palette.memory(row.role)),
            Name(names.plain(row.owner)),
            Text(names.plain(row.line or "")),
        )
    yield table
    yield from rest(len(peak.holders) - len(shown), "owner")


def _growth(rows: list[GrowthRow]) -> Iterable[RenderableType]:
    if not rows:
        return
    yield from heading("What grows", "with every recorded step")
    table = columns("right", "left", "left*", "left*")
    for row in rows:
        table.add_row(
            Text(f"+{numbers.size(row.bytes_per_step)} a step"),
            Text(names.plain(row.line or "")),
            Name(names.plain(row.owner)),
            Text(names.plain(", ".join(row.names)), style="dim"),
        )
    yield table


def _given_back(rows: list[GivenBackRow]) -> Iterable[RenderableType]:
    if not rows:
        return
    yield from heading("What was given back to the driver", "each time waits for the device")
    table = columns("right", "right", "left", "left*", leave=(0,))
    for row in rows:
        table.add_row(
            Text(f"{row.times:,} ×"),
            Text(numbers.size(row.bytes)),
            Text(names.plain(row.line or "")),
            Text(memory_lines.given_back(row), style="dim"),
        )
    yield table


def _fits(peak: MemoryPeak) -> Iterable[RenderableType]:
    if peak.fits is not None:
        yield from heading("What fits")
        yield Text(memory_lines.fits(peak.fits, peak.failed_bytes))
        yield aside("`kinetoscope tune --fits REC -- script.py … {batch}` tries it, and what lies beside it")
