"""Device time by kernel, category, op, graph, step or stream: what ``kinetoscope kernels`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import KernelListing, ListingRow
from kinetoscope.render import names, palette
from kinetoscope.render.json import indented
from kinetoscope.render.table import Name, rest
from kinetoscope.views.listing import grid, titled


def render_json(shown: KernelListing) -> str:
    """One document; the rows stand under the plural of what they are summed by: ``kernels``, ``ops``, …"""
    document = {
        "by": shown.by,
        "category": shown.category,
        "device_time_us": shown.device_time_us,
        "categories" if shown.by == "category" else f"{shown.by}s": shown.rows,
        "share_of_device_time": shown.shares,
    }
    return indented(document)


def print_listing(shown: KernelListing, console: Console, limit: int) -> None:
    """The listing as a table of at most ``limit`` rows (0: all), and the categories' shares at the end."""
    rows = shown.rows[:limit] if limit else shown.rows
    what = f"{names.plain(shown.category)} device time" if shown.category else "device time"
    time = sum(row.device_time_us for row in shown.rows)
    of_all = f", {numbers.percent(time / shown.device_time_us)} of all" if shown.category else ""
    console.print(
        titled(
            f"{what.capitalize()} by {shown.by}",
            f"{numbers.time(time)}{of_all}; share of all device time; times of one launch",
        )
    )
    table = grid(
        (shown.by, "left*", [Name(names.plain(row.short_name)) for row in rows]),
        ("category", "left", map(_category, rows)) if shown.by != "category" and not shown.category else None,
        ("share", "right", [numbers.percent(row.share_of_device_time) for row in rows]),
        ("total", "right", [numbers.time(row.device_time_us) for row in rows]),
        ("launches", "right", [numbers.count(row.launches) for row in rows]),
        ("median", "right", [numbers.time(row.median_us) for row in rows]),
        ("p90", "right", [numbers.time(row.p90_us) for row in rows]),
        ("max", "right", [Text(numbers.time(row.max_us), style="dim") for row in rows]),
    )
    console.print(table)
    for line in rest(len(shown.rows) - len(rows), "row"):
        console.print(line)
    console.print()
    console.print(Text(" · ".join(_shares(shown))))


def _category(row: ListingRow) -> Text:
    return Text(names.shorten(row.category, 13), style=palette.category(row.category))


def _shares(shown: KernelListing) -> Iterator[str]:
    yield f"of {numbers.time(shown.device_time_us)} device time"
    for category, share in shown.shares.items():
        yield f"{names.plain(category)} {100 * share:.2f} %"
