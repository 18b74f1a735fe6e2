"""A few tries of each class of attack, the same ones each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attack.__main__ import CLASSES
from attack.trial import Trial, attempted
from broad import broad

SEEDS = {
    "cut traces": (1, 2),
    "snapshots": (1, 2, 5),
    "baselines": (1, 2),
    "SQL": (1, 3),
    "outputs over inputs": (1, 2),
}
# Tries what it is asked to, each in a fork: most of a short command is what it imports.
ATTACKS = """
import json, pathlib, sys
from attack.__main__ import one
for line in sys.stdin:
    name, seed, folder = json.loads(line)
    print(json.dumps(one(name, seed, pathlib.Path(folder)).wrong), flush=True)
"""


@pytest.fixture(scope="module")
def attack() -> Iterator[Callable[[str, int, Path], str]]:
    """What is wrong after a try of a class."""
    process = subprocess.Popen(
        [sys.executable, "-c", ATTACKS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def tried(name: str, seed: int, folder: Path) -> str:
        print(json.dumps([name, seed, str(folder)]), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    yield tried
    process.stdin.close()
    process.wait()


@pytest.mark.parametrize(
    ("name", "seed"),
    broad(
        [(name, seed) for name in CLASSES for seed in SEEDS.get(name, (1,))], {(name, 1) for name in CLASSES}
    ),
)
def test_a_command_withstands_an_attack(
    name: str, seed: int, attack: Callable[[str, int, Path], str], tmp_path: Path
) -> None:
    assert attack(name, seed, tmp_path) == ""


def test_what_a_command_does_wrong_under_attack_is_noticed(tmp_path: Path) -> None:
    """A command that fails, and one that changes what it was given."""
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    assert attempted(Trial(["report", "{IN}"], trace, (0,), fresh=True)).wrong.startswith("status 3")
    assert attempted(Trial(["report", "{IN}"], trace, (3,), fresh=True)).wrong == ""
    changing = Trial(["--version"], trace, (0,), prepare=lambda: trace.write_text("[]"), fresh=True)
    assert attempted(changing).wrong == "input changed"
