"""The commands of the tutorials print what their pages show."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import tutorials

LONG = ("install", "ci-notices")  # several recordings of compiled programs


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page.stem in LONG)) for page in tutorials.PAGES],
    ids=lambda page: page.stem,
)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path) -> None:
    tutorials.furnish(tmp_path)
    for command in tutorials.commands(page.read_text("utf-8")):
        if command.live and importlib.util.find_spec("torch") is None:
            continue
        lines = tutorials.printed(command, tmp_path)
        if command.live:
            assert not list(tutorials.missing(command, lines)), lines
        else:
            shown = "\n".join(command.shown).strip("\n").splitlines()
            assert lines == shown, "run: PYTHONPATH=src:tests/support python -m tutorials"
