"""Findings as SARIF 2.1.0, which code hosts show at the lines that they are about.

Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import quote

from kinetoscope.document import FindingRow, Report
from kinetoscope.render import names
from kinetoscope.render.json import indented
from kinetoscope.views import headline

LEVELS = {"high": "error", "medium": "warning", "low": "note", "info": "none"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: Report, inputs: Sequence[str]) -> str:
    """One run of one tool: a result a finding; those without a line stand at the recording itself."""
    rules = list(dict.fromkeys(row.rule for row in report.findings))
    driver = {
        "name": "kinetoscope",
        "version": report.kinetoscope,
        "rules": [{"id": rule} for rule in rules],
    }
    results = [_result(report, row, rules, inputs) for row in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return f"{indented({'$schema': SCHEMA, 'version': '2.1.0', 'runs': [run]})}\n"


def _result(report: Report, row: FindingRow, rules: list[str], inputs: Sequence[str]) -> dict[str, object]:
    saving = headline.saving(report, row)
    text = f"{row.title}{f' ({saving})' if saving else ''}. {row.advice}"
    return {
        "ruleId": row.rule,
        "ruleIndex": rules.index(row.rule),
        "level": LEVELS.get(row.severity, "note"),
        "message": {"text": names.plain(text)},
        "locations": [{"physicalLocation": _place(row.source, inputs)}],
        "properties": {"saving_us": row.saving_us, "share_of_step": row.share_of_step},
    }


def _place(source: str | None, inputs: Sequence[str]) -> dict[str, object]:
    file, _, line = (source or "").rpartition(":")
    if not line.isdigit():
        return {"artifactLocation": {"uri": _uri(source or (inputs[0] if inputs else "recording"))}}
    return {"artifactLocation": {"uri": _uri(file)}, "region": {"startLine": max(1, int(line))}}


def _uri(path: str) -> str:
    """Of the repository where it is below the working folder, as hosts want it."""
    home = os.getcwd().rstrip("/") + "/"
    return quote(names.plain(path).removeprefix(home))
