"""Many recordings: a line each, drawn one above the other, changes marked."""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope import numbers
from kinetoscope.comparison.history import History, HistoryRow
from kinetoscope.render.blocks import Block, Text, field, line, table

BAR = 16
COMMIT = 10  # characters of a commit
EIGHTHS = " ▏▎▍▌▋▊▉█"


def listing(found: History) -> Iterable[Block]:
    """The table with its plot, and a line for each change."""
    longest = max((row.step_us or 0.0 for row in found.rows), default=0.0)
    yield table(
        found.rows,
        field("recording", "name", "name"),
        field("program", "name", "program") if len({row.program for row in found.rows}) > 1 else None,
        field("step", "time", "step_us"),
        field("change", "text", lambda row: Text(_change(row), _style(row))),
        field("launches", "number", _launches),
        field("findings", "count", lambda row: len(row.findings)),
        field("busy", "time", "busy_us"),
        field("recorded", "text", lambda row: row.created[:16].replace("T", " ")),
        field("commit", "text", lambda row: (row.commit or "")[:COMMIT])
        if any(row.commit for row in found.rows)
        else None,
        field("", "text", lambda row: Text(_bar(row.step_us, longest), _style(row))),
    )
    yield from (line(remark, style="dim") for remark in _remarks(found))


def _launches(row: HistoryRow) -> str | None:
    launches = row.counts.get("launches")
    return None if launches is None else numbers.quantity(launches)


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
        changed = ((name, row.counts.get(name) or 0.0) for name in row.counts_changed)
        said = [
            *(f"new: {rule}" for rule in row.new_findings),
            *(f"{name} is now {numbers.quantity(value)}" for name, value in changed),
        ]
        if row.lost:
            yield f"{row.name} is incomplete, and compared with nothing: {'; '.join(row.lost)}"
        if row.drift is not None:
            change = numbers.change(row.drift)
            yield f"{row.name}: the step drifts by {change} from one recording to the next, up to this one"
        if said:
            yield f"{row.name}: {', '.join(said)}"
    yield from found.unread
