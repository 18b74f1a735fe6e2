"""A folder of recordings and kept reports, told in order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kinetoscope.cli import main

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_recordings_and_reports_are_one_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(FIXTURES / "h200_proved" / "narrow", tmp_path / "b-recording")
    assert main(["report", str(tmp_path / "b-recording"), "-o", str(tmp_path / "a-report.json")]) == 0
    (tmp_path / "notes.json").write_text("[]")
    assert main(["history", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    report, recording = found["rows"]
    assert (report["name"], recording["name"]) == ("a-report.json", "b-recording")
    assert report["step_us"] == pytest.approx(recording["step_us"])
    assert report["findings"] == recording["findings"]
    assert report["counts"]["launches"] == recording["counts"]["launches"]
    assert found["unread"][0].startswith("notes.json was left out")
    assert main(["history", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert "b-recording" in table
    assert "█" in table
