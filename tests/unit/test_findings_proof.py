"""The commands that prove a finding are ones that can be typed."""

from __future__ import annotations

import pytest

from kinetoscope.analysis.profile import Profile
from kinetoscope.findings.scene import Scene
from kinetoscope.recording.manifest import Manifest
from traces import kernel, trace


@pytest.mark.parametrize(
    ("command", "proof"),
    [
        (("/usr/bin/python3", "train.py", "--name", "a b"), "kinetoscope tune -- train.py --name 'a b'"),
        (("python", "-m", "package.train"), "kinetoscope tune -m package.train"),
        (("/venv/bin/torchrun", "--nproc-per-node", "2", "train.py"), None),
        ((), None),
    ],
)
def test_tune_runs_the_program_not_its_interpreter(command: tuple[str, ...], proof: str | None) -> None:
    recorded = trace(kernel("k", 10, 5))
    scene = Scene(Profile((recorded,), Manifest(command=command)), recorded)
    assert scene.tune() == proof
