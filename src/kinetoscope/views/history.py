"""What ``kinetoscope history`` shows: a line a recording, drawn beside each other, changes marked."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document.history import History, HistoryRow
from kinetoscope.render import names
from kinetoscope.render.json import indented
from kinetoscope.render.table import Name
from kinetoscope.views.listing import grid

BAR = 24
EIGHTHS = " ▏▎▍▌▋▊▉█"


def render_json(found: History) -> str:
    """One document."""
    return indented(found)


def print_history(found: History, console: Console) -> None:
    """The table with its plot, and a line for each change."""
    longest = max((row.step_us or 0.0 for row in found.rows), default=0.0)
    rows = found.rows
    console.print(
        grid(
            ("recording", "left*", [Name(names.plain(row.name)) for row in rows]),
            ("recorded", "left", [row.created[:16].replace("T", " ") for row in rows]),
            ("step", "right", [_time(row.step_us) for row in rows]),
            ("", "left", [Text(_bar(row.step_us, longest), style=_style(row)) for row in rows]),
            ("change", "left", [Text(_change(row), style=_style(row)) for row in rows]),
            ("busy", "right", [_time(row.busy_us) for row in rows]),
            ("launches", "right", [_count(row) for row in rows]),
            ("findings", "right", [f"{len(row.findings)}" for row in rows]),
        )
    )
    for line in _remarks(found):
        console.print(Text(names.plain(line), style="dim"), soft_wrap=True)


def _time(us: float | None) -> str:
    return "–" if us is None else numbers.time(us)


def _count(row: HistoryRow) -> str:
    launches = row.counts.get("launches")
    return "–" if launches is None else numbers.quantity(launches)


def _bar(us: float | None, longest: float) -> str:
    eighths = round(8 * BAR * (us or 0.0) / longest) if longest else 0
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _change(row: HistoryRow) -> str:
    if row.change is None:
        return "incomplete" if row.lost else ""
    bounds = ""
    if row.change_low is not None and row.change_high is not None:
        bounds = f" ({100 * row.change_low:+.1f} to {100 * row.change_high:+.1f})"
    return f"{100 * row.change:+.1f} %{bounds}"


def _style(row: HistoryRow) -> str:
    if row.lost:
        return "yellow"
    return "" if row.change is None else "red" if row.change > 0 else "green"


def _remarks(found: History) -> Iterable[str]:
    for row in found.rows:
        said = [
            *(f"new: {rule}" for rule in row.new_findings),
            *(
                f"{name} is now {numbers.quantity(row.counts.get(name) or 0.0)}"
                for name in row.counts_changed
            ),
        ]
        if row.lost:
            yield f"{row.name} is incomplete, and compared with nothing: {'; '.join(row.lost)}"
        if said:
            yield f"{row.name}: {', '.join(said)}"
    yield from found.unread
