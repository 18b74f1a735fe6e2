"""CONTRIBUTING.md is the map: what it names is there, every room is on it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from command import ROOT

SOURCE = ROOT / "src" / "kinetoscope"
MAP = (ROOT / "CONTRIBUTING.md").read_text()
FOLDERS = [
    path.relative_to(SOURCE).as_posix()
    for path in sorted(SOURCE.rglob("*"))
    if path.is_dir() and path.name != "__pycache__"
]
# What somebody comes to add, in words of the map's table → where the map sends them.
ERRANDS = {
    "a category of kernels": "analysis/kernels/taxonomy.py",
    "a private name of torch": "capture/torch_private.py",
    "an analysis": "analysis/",
    "a statistic": "statistics/",
    "a rule": "findings/rules/",
    "a renderer": "render/",
    "a row or column of the document": "document/",
    "a verb": "cli/",
    "a view": "views/",
    "a device": "hardware/table.py",
    "a column or table of a trace": "trace/schema.py",
    "a fact of the compile log": "compilation/log/records.py",
    "a sign of where steps begin": "capture/steps/sources.py",
    "a phase of recording": "capture/recorder/phases.py",
    "a setting to tune": "bench/tune/settings.py",
}


def test_every_path_that_it_names_is_there() -> None:
    named = re.findall(r"`([\w./-]+(?:/|\.py|\.md))`", MAP)
    assert len(named) > len(FOLDERS)
    assert not [path for path in named if not (ROOT / path).exists() and not (SOURCE / path).exists()]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))], ids=lambda page: page.stem
)
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`([a-z0-9_]+/[a-z0-9_/]+\.py)\b", page.read_text())
    assert not [path for path in named if not (ROOT / path).exists() and not (SOURCE / path).exists()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_room_is_on_it_in_its_own_words(folder: str) -> None:
    room = SOURCE / folder / "__init__.py"
    if not room.exists():
        assert f"`{folder}/`" in MAP
        return
    words = ast.get_docstring(ast.parse(room.read_text()))
    assert words
    assert f"| `{folder}/` | {words.splitlines()[0]} |" in MAP


@pytest.mark.parametrize(("errand", "place"), ERRANDS.items())
def test_each_errand_names_its_place(errand: str, place: str) -> None:
    (row,) = [row for row in MAP.splitlines() if row.startswith(f"| {errand}")]
    assert f"`{place}`" in row.split("|")[2]


def test_no_room_is_empty() -> None:
    assert not [folder for folder in FOLDERS if not [*(SOURCE / folder).glob("*.*")]]
