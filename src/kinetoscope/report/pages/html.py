"""The report as one HTML page that needs nothing else: no request to any host, no script but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from kinetoscope import numbers
from kinetoscope.report.document import Report
from kinetoscope.report.pages import compiled_page
from kinetoscope.report.words import bars, headline, names, pace_lines, palette, phase_lines
from kinetoscope.report.words.next_commands import next_commands

ROWS = 1000  # of a table: more than a reader scrolls through; the JSON has all


def render(report: Report, inputs: Sequence[str]) -> str:
    """The report of ``inputs`` (as they were typed: the next commands name them)."""
    script = _text("report.js")
    ops = headline.host_ops(report)
    return _template().render(
        report=report,
        title=headline.title(report),
        verdict=headline.verdict(report),
        notes=headline.notes(report),
        headline=numbers.together(headline.headline(report)),
        timing=numbers.together(headline.timing(report) or ""),
        compilation=numbers.together(headline.compilation(report) or ""),
        compiled=compiled_page.compiled(report.compilation),
        window=numbers.together(headline.recorded_window(report)),
        savings=[headline.saving(report, row) if row.saving_us > 0 else "" for row in report.findings],
        measured=[headline.measured(row) for row in report.findings],
        graph_labels=headline.graph_labels(report),
        idle_causes=headline.idle_causes(report),
        device_bars=bars.device_bars(report),
        phases=phase_lines.lines(report),
        phase_heads=phase_lines.HEADS,
        pace=[(what, numbers.together(text)) for what, text in pace_lines.lines(report)],
        step_bars=bars.step_bars(report),
        commands=next_commands(report, inputs),
        device_time_us=sum(row.device_time_us for row in report.categories),
        environment=msgspec.to_builtins(report.environment),
        ops=ops,
        host_time_us=sum(row.host_self_us for row in ops),
        most=ROWS,
        uses=palette.USES,
        use_names=bars.USES,
        style=Markup(_text("report.css")),
        script=Markup(script),
        script_hash=_integrity(script),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("kinetoscope.report.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {  # jinja2 declares no type for filters but that of its own
        "time": numbers.time,
        "span": numbers.span,
        "percent": numbers.percent,
        "count": numbers.count,
        "size": numbers.size,
        "plain": names.plain,
        "shorten": names.shorten,
        "colour": palette.category,
        "printable": names.printable,
        "devices_of": bars.devices_of,
        **compiled_page.FILTERS,
    }
    environment.filters.update(filters)
    return environment.get_template("report.html")


def _text(name: str) -> str:
    return (files("kinetoscope.report.pages") / "templates" / name).read_text("utf-8")


def _integrity(script: str) -> str:
    """The hash by which the page's content security policy lets this script, and no other, run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
