"""Every command that is printed or documented can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kinetoscope.cli import VERBS, parse
from kinetoscope.views.overview import next_commands
from report_sample import host_only, report

ROOT = Path(__file__).parents[2]
TEXTS = [
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "src").rglob("*.txt"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
]
# A command stands in backticks, alone on an indented line, or is what fixes an error.
COMMAND = re.compile(r"(?:`|^ {2,}|hint=f?[\"'])kinetoscope ([a-z]+)(?=[ `\"'\n])", re.MULTILINE)


def test_no_text_promises_a_verb_that_is_not_there() -> None:
    named = {(path.name, verb) for path in TEXTS for verb in COMMAND.findall(path.read_text("utf-8"))}
    assert {verb for _, verb in named} >= {"report", "kernels", "findings", "graphs", "run"}
    assert {(path, verb) for path, verb in named if verb not in VERBS} == set()


@pytest.mark.parametrize("inputs", [["trace.json"], ["a b.json", "$(c).json"]])
@pytest.mark.parametrize("document", [report(), host_only()], ids=["gpu", "host"])
def test_the_next_commands_parse(document, inputs) -> None:
    for line, _ in next_commands(document, inputs):
        program, verb, *words = shlex.split(line)
        assert program == "kinetoscope"
        arguments = parse(verb, words)
        assert not hasattr(arguments, "inputs") or set(arguments.inputs) <= set(inputs)
