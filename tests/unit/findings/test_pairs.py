"""The programs that promises are held against, without running any of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from kinetoscope.findings.registry import rules

GPU = Path(__file__).parents[2] / "gpu"


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
