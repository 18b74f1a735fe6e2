"""Results as SARIF 2.1.0, which code hosts show at the lines that they are about.

Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from msgspec import Struct

from kinetoscope.render import names
from kinetoscope.render.json import indented

LEVELS = {"high": "error", "medium": "warning", "low": "note", "info": "none"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class SarifResult(Struct, frozen=True):
    """Something to say about a file, or about one line of it."""

    rule: str
    severity: str
    text: str
    file: str
    line: int | None
    properties: Mapping[str, object]


def render(version: str, results: Sequence[SarifResult]) -> str:
    rules = list(dict.fromkeys(result.rule for result in results))
    driver = {"name": "kinetoscope", "version": version, "rules": [{"id": rule} for rule in rules]}
    found = [_result(result, rules) for result in results]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": found}
    return f"{indented({'$schema': SCHEMA, 'version': '2.1.0', 'runs': [run]})}\n"


def _result(result: SarifResult, rules: list[str]) -> dict[str, object]:
    place: dict[str, object] = {"artifactLocation": {"uri": _uri(result.file)}}
    if result.line is not None:
        place["region"] = {"startLine": result.line}
    return {
        "ruleId": result.rule,
        "ruleIndex": rules.index(result.rule),
        "level": LEVELS.get(result.severity, "note"),
        "message": {"text": names.plain(result.text)},
        "locations": [{"physicalLocation": place}],
        "properties": dict(result.properties),
    }


def _uri(path: str) -> str:
    """The path relative to the working folder where it is below it, as code hosts want it."""
    home = os.getcwd().rstrip("/") + "/"
    return quote(names.plain(path).removeprefix(home))
