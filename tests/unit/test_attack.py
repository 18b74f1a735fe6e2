"""A few tries of each class of attack, the same ones each time."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from attack.__main__ import CLASSES
from attack.trial import Trial, attempted

SEEDS = {
    "cut traces": (1, 2),
    "snapshots": (1, 2, 5),
    "baselines": (1, 2),
    "SQL": (1, 3),
    "outputs over inputs": (1, 2),
}


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name in CLASSES for seed in SEEDS.get(name, (1,))]
)
def test_a_try_holds(name: str, seed: int, tmp_path: Path) -> None:
    trial = CLASSES[name](random.Random(f"{name} {seed}"), tmp_path)
    assert attempted(replace(trial, fresh=True)).wrong == ""


def test_what_is_wrong_is_noticed(tmp_path: Path) -> None:
    """A command that fails, and one that changes what it was given."""
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    assert attempted(Trial(["report", "{IN}"], trace, (0,), fresh=True)).wrong.startswith("status 3")
    assert attempted(Trial(["report", "{IN}"], trace, (3,), fresh=True)).wrong == ""
    changing = Trial(["--version"], trace, (0,), prepare=lambda: trace.write_text("[]"), fresh=True)
    assert attempted(changing).wrong == "input changed"
