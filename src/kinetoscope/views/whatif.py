"""What a step consists of, and what it would take if something changed: what ``kinetoscope whatif`` shows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import PathRow, Replay, WhatIf
from kinetoscope.render import names
from kinetoscope.render.json import indented
from kinetoscope.render.table import Name, columns, heading, rest


def render_json(listing: WhatIf | None) -> str:
    """One document; null where nothing was recorded that could be replayed."""
    return indented(listing)


def print_what_if(listing: WhatIf | None, console: Console, limit: int) -> None:
    """The step before and after, how well the replay knows it, each change alone, and the critical path."""
    if listing is None:
        console.print(Text("Nothing was recorded that could be replayed.", style="yellow"))
        return
    replay, unit = listing.replay, listing.unit
    line = Text(f"{unit}  ", style="bold")
    line.append(numbers.time(replay.step_us))
    if listing.changes:
        line.append(f" → {numbers.time(listing.after_us)}", style="bold green")
        share = listing.saving_us / replay.step_us if replay.step_us else 0.0
        line.append(f"  saves {numbers.time(listing.saving_us)}, {numbers.percent(share)}")
    line.append(f"  ({_trust(replay)})", style="dim")
    console.print(line, soft_wrap=True)
    _print_changes(listing, console)
    path = listing.after if listing.changes else replay.critical_path
    title = "Critical after the change" if listing.changes else "Critical path"
    _print_path(path, console, f"{title}", f"sums to the {unit}", limit)


def _trust(replay: Replay) -> str:
    words = f"{numbers.time(replay.recorded_us)} as recorded, replayed {_off(replay.error)}"
    if replay.pace != 1:
        words += f"; as it runs, host time is {numbers.percent(replay.pace)} of the recorded"
    if replay.unexplained >= 0.005:
        words += f"; {numbers.percent(replay.unexplained)} are delays without a known cause"
    return words


def _off(error: float) -> str:
    if abs(error) < 0.0005:
        return "to the letter"
    return f"{numbers.percent(abs(error))} too {'long' if error > 0 else 'short'}"


def _print_changes(listing: WhatIf, console: Console) -> None:
    if not listing.changes:
        return
    table = columns("left*", "right", "right")
    for change in listing.changes:
        alone = f"{numbers.time(change.saving_us)} alone"
        table.add_row(
            Name(names.plain(change.text)), Text(numbers.count(change.events, "event")), Text(alone)
        )
    console.print(table)


def _print_path(path: Sequence[PathRow], console: Console, title: str, basis: str, limit: int) -> None:
    for line in heading(title, basis):
        console.print(line)
    whole = sum(part.us for part in path)
    shown = path[:limit] if limit else path
    table = columns("right", "right", "left*", "right")
    for part in shown:
        table.add_row(
            Text(numbers.time(part.us)),
            Text(numbers.percent(part.us / whole if whole else 0.0)),
            Name(names.plain(part.text)),
            Text(f"{part.count:,}" if part.count else "", style="dim"),
        )
    console.print(table)
    for line in rest(len(path) - len(shown), "part"):
        console.print(line)
