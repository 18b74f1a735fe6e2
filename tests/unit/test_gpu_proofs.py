"""The proofs that a GPU is needed for, without running any of them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from kinetoscope.findings.registry import rules

GPU = Path(__file__).parents[1] / "gpu"
# Runs each script of a folder as far as its main(): what it imports is there.
IMPORTS = """
import pathlib, runpy, sys
for path in pathlib.Path(sys.argv[1]).glob("*.py"):
    runpy.run_path(str(path))
"""


def test_every_proof_imports_what_there_is() -> None:
    pytest.importorskip("torch")
    paths = os.pathsep.join([str(GPU), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, str(GPU)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["wrong_programs", "held_out", "held_out_own"])
def test_fixes_are_those_of_programs_and_the_advice_of_rules_that_exist(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(GPU))
    programs = import_module(module)
    assert all(callable(getattr(programs, name)) for name in programs.FIXES)
    advised = {rule for fixes in programs.FIXES.values() for named in fixes.values() for rule in named}
    assert advised
    assert advised <= set(rules())
