"""Where results may be written: over nothing that is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinetoscope import cli
from kinetoscope.recording import manifest as manifests
from kinetoscope.render import destination

TRACE = Path(__file__).parents[2] / "fixtures" / "h200_breaks" / "breaks.json.gz"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    folder = tmp_path / "recording"
    (folder / "trace").mkdir(parents=True)
    (folder / "trace" / "rank0.json.gz").write_bytes(TRACE.read_bytes())
    ranks = [{"rank": 0, "trace": "trace/rank0.json.gz"}]
    manifest = {"schema": manifests.SCHEMA, "exit": "ok", "status": 0, "ranks": ranks}
    (folder / manifests.FILE).write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "export REC --to perfetto -o REC/trace/rank0.json.gz",
        "export REC --to speedscope -o REC/manifest.json",
        "export REC/trace -o REC/trace/rank0.json.gz --to perfetto",
        "report REC -o REC/manifest.json",
        "check REC --against REC/manifest.json --update",
        "diff REC REC -o REC/manifest.json",
        "diff REC REC/trace/rank0.json.gz -o REC/manifest.json",
        "report REC --engine local -o REC/manifest.json",
        "report REC -o LINK.json",
        "report REC -o HARD.json",
    ],
)
def test_files_inside_an_input_are_not_overwritten(words: str, recording: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(recording / manifests.FILE)
    os.link(recording / manifests.FILE, tmp_path / "hard.json")
    before = {path: path.read_bytes() for path in recording.rglob("*") if path.is_file()}
    words = words.replace("LINK", str(tmp_path / "link")).replace("HARD", str(tmp_path / "hard"))
    assert cli.main(words.replace("REC", str(recording)).split()) == 2
    assert {path: path.read_bytes() for path in recording.rglob("*") if path.is_file()} == before
    assert (tmp_path / "link.json").is_symlink()


def test_a_report_in_a_recording_may_be_written_again(recording: Path) -> None:
    for _ in range(2):
        assert cli.main(["report", str(recording), "-o", str(recording / "report.html")]) == 0
    assert cli.main(["report", str(recording), "-o", str(recording / "report.json")]) == 0


def test_tables_replace_none_of_an_input(recording: Path) -> None:
    (recording / "host_events.parquet").write_bytes(b"mine")
    assert cli.main(["export", str(recording), "--to", "parquet", "-o", str(recording)]) == 2
    assert (recording / "host_events.parquet").read_bytes() == b"mine"


def test_a_full_disk_leaves_no_half_of_an_export(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: small tables fit, large ones do not.

    No byte code is written: a part of it would be read by every later run.
    """
    command = (
        f"ulimit -f 8; exec {sys.executable} -B -m kinetoscope export {TRACE} --to parquet -o {tmp_path}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot write the tables" in done.stderr
    assert "fault" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_in_an_input_is_no_input(tmp_path: Path) -> None:
    assert destination.check(tmp_path / "new.json", [str(tmp_path)]) == tmp_path / "new.json"
