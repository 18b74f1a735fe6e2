"""Device time by kernel, category, op, graph, step or stream: what ``kinetoscope kernels`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.report.document import KernelListing
from kinetoscope.report.pages.json import indented
from kinetoscope.report.pages.table import Name, columns, heads, rest
from kinetoscope.report.words import names, palette


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
        Text.assemble(
            (f"{what.capitalize()} by {shown.by}", "bold"),
            (f"  {numbers.time(time)}{of_all}; share of all device time; times of one launch", "dim"),
        )
    )
    with_category = shown.by != "category" and shown.category is None
    table = columns("left*", *(["left"] if with_category else []), *["right"] * 6)
    heads(
        table,
        shown.by,
        *(["category"] if with_category else []),
        *("share", "total", "launches", "median", "p90", "max"),
    )
    for row in rows:
        colour = palette.category(row.category)
        category = [Text(names.shorten(row.category, 13), style=colour)] if with_category else []
        table.add_row(
            Name(names.plain(row.short_name)),
            *category,
            Text(numbers.percent(row.share_of_device_time)),
            Text(numbers.time(row.device_time_us)),
            Text(numbers.count(row.launches)),
            Text(numbers.time(row.median_us)),
            Text(numbers.time(row.p90_us)),
            Text(numbers.time(row.max_us), style="dim"),
        )
    console.print(table)
    for line in rest(len(shown.rows) - len(rows), "row"):
        console.print(line)
    console.print()
    console.print(Text(" · ".join(_shares(shown))))


def _shares(shown: KernelListing) -> Iterator[str]:
    yield f"of {numbers.time(shown.device_time_us)} device time"
    for category, share in shown.shares.items():
        yield f"{names.plain(category)} {100 * share:.2f} %"
