"""The package keeps its own promises: a sorted public API, light imports, one direction."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.cli import VERBS

SOURCE = Path(kinetoscope.__file__).parent
HEAVY = {"polars", "rich", "jinja2", "msgspec", "torch", "numpy"}


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


def test_the_public_api_is_sorted_and_there() -> None:
    assert kinetoscope.__all__ == sorted(kinetoscope.__all__)
    for name in kinetoscope.__all__:
        assert getattr(kinetoscope, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kinetoscope.nothing


def test_importing_the_package_and_its_command_line_is_light() -> None:
    assert not modules_after("import kinetoscope, kinetoscope.cli") & HEAVY


def test_every_verb_has_its_file_and_every_file_its_verb() -> None:
    files = {path.stem for path in (SOURCE / "cli").glob("*.py") if not path.stem.startswith("_")}
    assert files == set(VERBS)


def test_everything_has_a_name() -> None:
    homeless = {"utils", "helpers", "common", "misc"}
    assert not [p for p in SOURCE.rglob("*") if p.stem in homeless]


def test_reading_recordings_loads_no_torch() -> None:
    assert not modules_after("import kinetoscope.document.collect.report, kinetoscope.views.overview") & {
        "torch",
        "numpy",
    }


def test_the_questions_name_every_verb_but_none_that_is_not_there() -> None:
    pages = ("README.md", "docs/reference/questions.md")
    text = "".join((SOURCE.parent.parent / page).read_text() for page in pages)
    assert set(re.findall(r"kinetoscope ([a-z]+)[ `]", text)) == set(VERBS)
