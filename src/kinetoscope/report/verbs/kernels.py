"""Device time by kernel, category, op, graph, step or stream: what ``kinetoscope kernels`` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.analysis.kernels.names import short_names
from kinetoscope.analysis.origins import sums as analysis
from kinetoscope.analysis.run import Run
from kinetoscope.report.document.report import ListingRow
from kinetoscope.report.pages.table import Name, columns, heads, rest
from kinetoscope.report.words import names, palette


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """``rows`` by device time; ``shares`` is every category's part of all device time, filtered or not."""

    by: str
    category: str | None
    device_time_us: float
    rows: list[ListingRow]
    shares: dict[str, float]


def listing(run: Run, by: str, category: str | None) -> Listing:
    """Device time of ``category`` (None: of all) summed ``by`` a key of ``analysis.kernels.BY``.

    Raises:
        UsageError: there is no such key or category.
    """
    rows = analysis.kernels(run, by, category)
    named = [str(name) for name in rows[by]]
    shorts = short_names(named) if by == "kernel" else named
    shares = analysis.kernels(run, "category")
    return Listing(
        by=by,
        category=category,
        device_time_us=int(shares["device_time_ns"].sum()) / 1000,
        rows=[
            _row(row[by], short, row) for row, short in zip(rows.iter_rows(named=True), shorts, strict=True)
        ],
        shares={
            row["category"]: row["share_of_device_time"]
            for row in shares.select("category", "share_of_device_time").iter_rows(named=True)
        },
    )


def render_json(shown: Listing) -> str:
    """One document; the rows stand under the plural of what they are summed by: ``kernels``, ``ops``, …"""
    document: dict[str, Any] = {
        "by": shown.by,
        "category": shown.category,
        "device_time_us": shown.device_time_us,
        _plural(shown.by): shown.rows,
        "share_of_device_time": shown.shares,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def print_listing(shown: Listing, console: Console, limit: int) -> None:
    """The listing as a table, at most ``limit`` rows of it (0: all), and the categories' shares as a last line."""
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


def _shares(shown: Listing) -> Iterator[str]:
    yield f"of {numbers.time(shown.device_time_us)} device time"
    for category, share in shown.shares.items():
        yield f"{names.plain(category)} {100 * share:.2f} %"


def _row(name: object, short: str, row: dict[str, Any]) -> ListingRow:
    return ListingRow(
        name=str(name),
        short_name=short,
        category=row["category"],
        launches=row["launches"],
        device_time_us=row["device_time_ns"] / 1000,
        share_of_device_time=row["share_of_device_time"],
        mean_us=row["mean_ns"] / 1000,
        median_us=row["median_ns"] / 1000,
        min_us=row["min_ns"] / 1000,
        max_us=row["max_ns"] / 1000,
        p90_us=row["p90_ns"] / 1000,
    )


def _plural(by: str) -> str:
    return "categories" if by == "category" else f"{by}s"
