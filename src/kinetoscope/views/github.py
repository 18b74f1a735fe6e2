"""A comparison in a workflow of GitHub: the job's summary, and annotations at lines.

Source: docs.github.com, "Workflow commands for GitHub Actions" (annotations, ``GITHUB_STEP_SUMMARY``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from kinetoscope.document.difference import Difference
from kinetoscope.render import markdown, names
from kinetoscope.views import difference

SUMMARY = "GITHUB_STEP_SUMMARY"
MOST = 10  # annotations that GitHub shows of a step


def announce(found: Difference) -> None:
    """Append to the job's summary, where there is one, and print annotations."""
    if path := os.environ.get(SUMMARY):
        with Path(path).open("a", encoding="utf-8") as summary:
            summary.write(markdown.render(difference.blocks(found, "file")))
    for line in list(commands(found))[:MOST]:
        print(line, file=sys.stdout)


def commands(found: Difference) -> Iterable[str]:
    """An error for each gate that failed, a warning for each finding that is new."""
    for gate in found.gates:
        if gate.failed:
            words = f"{gate.words}. {gate.culprit}" if gate.culprit else gate.words
            yield _command("error", f"kinetoscope: {gate.gate}", words, gate.source)
    for row in found.findings_come:
        if row.source:
            yield _command("warning", f"kinetoscope: {row.rule}", row.title, row.source)


def _command(level: str, title: str, message: str, source: str | None) -> str:
    properties = [f"title={_property(title)}"]
    if source is not None:
        file, _, line = names.from_here(source).rpartition(":")
        file = _from_the_top(file)
        place = (
            [f"file={_property(file)}", f"line={line}"] if line.isdigit() else [f"file={_property(source)}"]
        )
        properties = [*place, *properties]
    return f"::{level} {','.join(properties)}::{_data(message)}"


def _from_the_top(file: str) -> str:
    """A file as GitHub has it: from the repository's top, where the job may be in a folder below it."""
    top = os.environ.get("GITHUB_WORKSPACE")
    return os.path.relpath(file, top) if top and os.path.exists(file) else file


def _data(text: str) -> str:
    return names.plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
