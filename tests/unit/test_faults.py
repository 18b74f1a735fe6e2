"""One attack of every class, and those that once succeeded; ``python -m faults`` makes more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import faults

CORPUS = (
    ("trace: zeroed", 4),  # zeros inside of a name were taken for one long name
    ("trace: spliced", 2),  # steps that last nothing have no median to be measured by
    ("recording of a run that was killed", 5),  # a compile log without its trace was called good
)


@pytest.mark.parametrize(
    ("name", "seed"), [*((attack.name, 0) for attack in faults.ATTACKS), *CORPUS], ids=str
)
def test_an_attack_fails(name: str, seed: int, tmp_path: Path) -> None:
    attack = next(attack for attack in faults.ATTACKS if attack.name == name)
    result, _, _ = faults.attempt(attack, seed, tmp_path)
    assert result in ("read", "refused")
