"""The files that were read, the machine that recorded them, and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kinetoscope.document import Report
from kinetoscope.render.blocks import Block, Heading, Items, Labelled, Line, Text, field, line, table


def listing(report: Report) -> Iterable[Block]:
    """The files, the notes on the recording's health, and the environment."""
    yield Heading("Files")
    yield table(
        report.sources,
        field("file", "name", "path"),
        field("rank", "count", "rank"),
        field("size", "bytes", "bytes"),
        field("events", "count", "events"),
        field(
            "notes",
            "words",
            lambda row: (
                "whole" if row.complete else "incomplete",
                *(Text(f" {note}", "dim") for note in row.notes),
            ),
        ),
    )
    if report.health.notes:
        yield Heading("Health", report.health.verdict)
        yield Items(tuple(f"{note.code}: {note.text}" for note in report.health.notes))
    known: dict[str, Any] = msgspec.to_builtins(report.environment)
    yield Heading("Environment")
    yield Labelled(
        tuple(
            (Text(name.replace("_", " ")), tuple(Line((words,)) for words in _written(value)))
            for name, value in known.items()
        )
    )
    about = "Busy is the union of device intervals over all streams of a device, inside the recorded steps"
    yield line(f"kinetoscope {report.kinetoscope}. {about}; device time is their plain sum.", style="dim")


def _written(value: Any) -> list[str]:
    match value:
        case list():
            return [" · ".join(line.replace("=", " ", 1) for line in _written(one)) for one in value]
        case dict():
            return [f"{key}={'.'.join(_written(one))}" for key, one in value.items()]
        case _:
            return [str(value)]
