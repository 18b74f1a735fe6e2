"""A change reviewed end to end in a scratch repository: git is real, the recordings are made here.

By the script itself where that is asked for (``-m slow``: two processes import torch); else by this one
before, and `kinetoscope run` finds them made.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kinetoscope
from command import ENVIRONMENT, ROOT
from kinetoscope.cli import main

PROGRAM = """\
import torch
import work

model, x = torch.nn.Linear(16, 16), torch.randn(4, 16)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(12):
    optimizer.zero_grad()
    work.extra(model(x)).sum().backward()
    optimizer.step()
"""
BEFORE = "def extra(y):\n    return y\n"
AFTER = "def extra(y):\n    return y.sin().cos()\n"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose change is not committed yet."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    home = tmp_path_factory.mktemp("scratch")
    (home / "train.py").write_text(PROGRAM)
    (home / "work.py").write_text(BEFORE)
    for words in (
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        ("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "before"),
    ):
        subprocess.run(["git", *words], cwd=home, check=True, capture_output=True)
    (home / "work.py").write_text(AFTER)
    return home


MADE = """\
#!/bin/bash
# {python}, but what `kinetoscope run --no-report --out DIR` would record is made already.
[ "$3" = run ] || exec "{python}" "$@"
grep -q sin work.py && side=head || side=base
mkdir -p "$(dirname "$6")" && cp -r "{home}/$side" "$6"
"""


@pytest.fixture
def python(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The interpreter that the script is given: the real one, or one that has recorded before."""
    if request.param == "real":
        return sys.executable
    import torch

    y = torch.ones(4, 16)
    for side, extra in (("base", lambda: y.tan()), ("head", lambda: y.tan().sin().cos())):
        with kinetoscope.profile(out=tmp_path / side, whole=True, one_pass=True):
            extra()
    made = tmp_path / "python"
    made.write_text(MADE.format(python=sys.executable, home=tmp_path))
    made.chmod(0o755)
    return str(made)


def action_step() -> tuple[dict[str, str], str]:
    """The environment and the script of the action's one step, as its file has them."""
    text = (ROOT / "action.yml").read_text()
    step = text[text.index("    - id: review") : text.index("    # A step of its own")]
    variables = dict(re.findall(r"^        ([A-Z_]+): \$\{\{ (.+) \}\}", step, re.MULTILINE))
    return variables, step[step.index("run: |") + len("run: |") :]


def test_the_token_is_given_to_the_comment_alone() -> None:
    recording, comment = (ROOT / "action.yml").read_text().split("# A step of its own")
    assert "GH_TOKEN" not in recording
    assert "GH_TOKEN" in comment
    assert "PROGRAM" not in comment
    assert "gh " not in (ROOT / "scripts" / "review.sh").read_text()


@pytest.mark.parametrize("python", ["made", pytest.param("real", marks=pytest.mark.slow)], indirect=True)
def test_the_action_records_compares_and_gates(
    repository: Path, python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variables, script = action_step()
    inputs = {
        "inputs.base": "main",
        "inputs.program": "train.py",
        "inputs.fail-on": "ops > 0\nlaunches > 0",
        "inputs.repeats": "1",
        "inputs.options": "--one-pass --no-provenance",
        "inputs.python": python,
        "runner.temp": str(tmp_path),
    }
    given = {name: inputs.get(value.strip(), "") for name, value in variables.items()}
    assert {"BASE", "PROGRAM", "FAIL_ON", "OUT", "PYTHON", "REPEATS", "OPTIONS"} <= set(variables)
    given |= {
        "OUT": str(tmp_path / "review"),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_SERVER_URL": "https://example.org",
        "GITHUB_REPOSITORY": "a/b",
        "GITHUB_RUN_ID": "7",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=repository,
        env=ENVIRONMENT | given,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "ops > 0 failed" in done.stderr
    assert "launches > 0 failed" not in done.stderr
    assert "::error" in done.stdout
    assert (tmp_path / "output").read_text() == f"folder={tmp_path / 'review'}\n"
    comment = (tmp_path / "review" / "difference.md").read_text()
    summary, link = comment.split("\n[Both steps drawn", 1)
    assert (tmp_path / "summary.md").read_text() == summary
    assert "https://example.org/a/b/actions/runs/7#artifacts" in link
    assert len(comment) < 65_536, "a comment on a pull request may be no longer"
    assert "**FAILED** ops" in comment
    assert "<!doctype html>" in (tmp_path / "review" / "difference.html").read_text()
    sarif = json.loads((tmp_path / "review" / "findings.sarif").read_text())
    assert sarif["version"] == "2.1.0"
    trees = subprocess.run(
        ["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert len(trees.stdout.splitlines()) == 1, "the base's worktree is gone"

    def said(*words: object, status: int = 0) -> str:
        assert main([str(word) for word in words]) == status
        return capsys.readouterr().out

    _check_the_recordings(tmp_path / "review", said)


def _check_the_recordings(review: Path, said: Callable[..., str]) -> None:
    """What else may be asked of the two recordings: a diff with its cause, a baseline, a history."""
    base, head = review / "base" / "1", review / "head" / "1"
    found = json.loads(said("diff", base, head, "--json"))
    assert found["schema"] == "kinetoscope.diff/1"
    assert {"aten::sin", "aten::cos"} <= {change["name"] for change in found["changes"]}
    total = sum(change["delta_us"] for change in found["changes"])
    assert total == pytest.approx(found["step"]["delta_us"], abs=1e-6 * found["step"]["base_us"])
    baseline = review / "baseline.json"
    said("check", base, "--against", baseline, "--update")
    said("check", base, "--against", baseline, "--fail-on", "ops > 0")
    failed = said("check", head, "--against", baseline, "--fail-on", "ops > 0", "--json", status=1)
    assert json.loads(failed)["failed"] == ["ops > 0"]
    os.rename(head, review / "base" / "2")
    rows = json.loads(said("history", review / "base", "--json"))["rows"]
    assert [row["name"] for row in rows] == ["1", "2"]
