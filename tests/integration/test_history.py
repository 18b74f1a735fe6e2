"""A folder of recordings and kept reports, told in order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kinetoscope.cli import main
from traces import host, step

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


def test_a_drift_a_commit_and_the_time_of_traces_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(8):
        begin, length = 1000.0, 1000 * 1.02**number
        events = [event for n in range(2) for event in (step(n, begin + n * length, length),)]
        began = (1_700_000_000 + 60 * number) * 10**9
        trace = {"baseTimeNanoseconds": began, "traceEvents": [*events, host("aten::mm", begin + 1, 5)]}
        (tmp_path / f"{number}.json").write_text(json.dumps(trace))
    recording = tmp_path / "recording"
    shutil.copytree(FIXTURES / "h200_proved" / "narrow", recording)
    manifest = json.loads((recording / "manifest.json").read_text())
    (recording / "manifest.json").write_text(json.dumps({**manifest, "commit": 40 * "a"}))
    written = tmp_path.parent / "history.md"
    assert main(["history", str(tmp_path), "-o", str(written)]) == 0
    text = written.read_text()
    assert "7.json: the step drifts by +2.0 % from one recording to the next" in text
    assert "2023-11-14 22:13" in text
    assert f"| {10 * 'a'} |" in text
    assert "█" in text
