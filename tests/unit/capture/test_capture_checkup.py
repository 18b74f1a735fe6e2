"""`kinetoscope doctor` answers where there is nothing to see."""

from __future__ import annotations

import json
import sys

import pytest

from kinetoscope import cli
from kinetoscope.capture import checkup


def test_without_torch_it_says_what_still_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["torch"]["state"] == "missing"
    assert "pip install torch" in checks["torch"]["hint"]
    assert checks["polars"]["state"] == "ok"
    assert "kineto" not in checks
    assert checks["disk"]["state"] == "ok"


def test_variables_that_falsify_timings_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("TORCH_LOGS", "")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    notes = [check for check in checkup.checkup() if check.name == "variable"]
    assert [note.hint for note in notes] == ["unset CUDA_LAUNCH_BLOCKING", "unset TORCH_LOGS"]


def test_everything_missing_comes_with_what_mends_it(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    assert all(check.hint for check in checkup.checkup() if check.state == "missing")


def test_the_text_has_a_line_a_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "torch", None)
    cli.main(["doctor"])
    out = capsys.readouterr().out
    assert out.startswith("ok       python")
    assert "hint: pip install torch" in out


def test_a_torch_without_bytecode_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Seen in a container: each start took nine seconds."""
    import torch

    assert not list(checkup._bytecode(torch))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(torch.__spec__, "cached", str(tmp_path / "none.pyc"))
    (check,) = checkup._bytecode(torch)
    assert check.state == "note"
    assert check.hint is not None
    assert check.hint.startswith("python -m compileall -q ")
    assert check.hint.endswith("unset PYTHONDONTWRITEBYTECODE")
