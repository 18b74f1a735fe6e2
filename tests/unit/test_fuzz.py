"""A few attacks by chance, always the same, and those that once succeeded; ``python -m fuzz`` makes more."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuzz
from kinetoscope import cli


@pytest.mark.parametrize(
    "one", [*map(fuzz.drawn, range(8)), *fuzz.corpus()], ids=lambda one: f"{one.attack} {one.seed}"
)
def test_an_attack_is_held(one: fuzz.Try, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cli.DEBUG, "1")
    assert fuzz.attempt(one, tmp_path) == ""


def test_a_fault_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(words: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "main", fails)
    assert fuzz.attempt(fuzz.drawn(0), tmp_path).startswith("fault: ZeroDivisionError")
