"""The programs that promises are held against: without running any, that they and the rules belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetoscope.findings.registry import rules

GPU = Path(__file__).parents[2] / "gpu"


@pytest.mark.parametrize("module", ["wrong_programs", "held_out", "held_out_own"])
def test_a_fix_is_looked_for_by_its_program_and_is_the_advice_of_rules_that_exist(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(GPU))
    source = (GPU / f"{module}.py").read_text()
    programs = source.split("\ndef ")
    fixes: dict[str, dict[str, tuple[str, ...]]] = __import__(module).FIXES
    for name, mended in fixes.items():
        (program,) = [text for text in programs if text.startswith(f"{name}(fixes: set[str])")]
        for fix, advised in mended.items():
            assert f'"{fix}" in fixes' in program or "precision(fixes)" in program or "adamw(" in program, fix
            assert set(advised) <= set(rules()), fix
