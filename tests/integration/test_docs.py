"""What the documents show in Python runs: every block that is fenced as such, those of a page in order."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import ENVIRONMENT, RECORDING, ROOT
from programs import QUICK_ENDS

FIXTURES = ROOT / "tests" / "fixtures"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if BLOCK.search(page.read_text())
]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with what the documents name."""
    shutil.copy(RECORDING, tmp_path / "trace.json.gz")
    for name in ("before", "after"):
        shutil.copytree(FIXTURES / "h200_proved" / "narrow", tmp_path / "recordings" / name)
    (tmp_path / "trace_folder").mkdir()
    for name in ("breaks.log.gz", "breaks.json.gz"):
        shutil.copy(FIXTURES / "h200_breaks" / name, tmp_path / "trace_folder")
    return tmp_path


def script(page: str) -> str:
    """The page's blocks, each line where it stands in the page, so that a traceback names it."""
    lines = [""] * page.count("\n")
    for block in BLOCK.finditer(page):
        first = page[: block.start(1)].count("\n")
        lines[first : first + block[1].count("\n")] = block[1].splitlines()
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path, inputs: Path) -> None:
    code = script(page.read_text())
    if "import torch" in code and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    (inputs / f"{page.stem}.py").write_text(code)
    done = subprocess.run(
        [sys.executable, f"{page.stem}.py"],
        cwd=inputs,
        env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join((ENVIRONMENT["PYTHONPATH"], str(QUICK_ENDS)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
