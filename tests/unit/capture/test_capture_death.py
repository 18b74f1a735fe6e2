"""A process that dies while the recorder is at work: what is written down of it, and who says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetoscope import cli
from kinetoscope.capture.process.launch import RunOutcome, summarize
from kinetoscope.capture.process.recording import _is_of_accelerator  # pyright: ignore[reportPrivateUsage]
from kinetoscope.recording import folder as folders
from kinetoscope.recording.folder import RankReport
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord
from page_data import page_data

SEGFAULT = "signal: SIGSEGV", -11


def died(
    folder: Path, phase: str | None, exit: str, status: int, *, own: str = "running", alone: bool = True
) -> Manifest:
    """The manifest of a process that was in this phase when the command ended."""
    folders.begin(folder, ("python", "x.py"), {})
    folders.claim(folder, 0)
    folders.write_rank(
        folder, RankReport(record=RankRecord(rank=0, exit=own), environment=Environment(torch="2.13.0"))
    )
    if phase is not None:
        folders.mark_phase(folder, 0, phase)
    return folders.finish(folder, exit=exit, status=status, alone=alone)


@pytest.mark.parametrize(
    ("phase", "exit", "status", "own", "alone", "expected"),
    [
        ("record", *SEGFAULT, "running", True, "record"),
        ("record", "signal: SIGABRT", -6, "running", True, "record"),
        ("watching", *SEGFAULT, "running", True, None),
        ("done", *SEGFAULT, "running", True, None),
        ("", *SEGFAULT, "running", True, None),
        (None, *SEGFAULT, "running", True, None),
        ("record", "signal: SIGKILL", -9, "running", True, None),  # somebody ended it
        ("record", "sys.exit: 1", 1, "exception: ValueError", True, None),
        ("record", "sys.exit: 1", 1, "running", True, None),  # os._exit
        ("record", "sys.exit: 1", 1, "running", False, "record"),  # a launcher's process
        ("record", "ok", 0, "running", False, None),
    ],
)
def test_the_phase_in_which_a_fault_ended_a_process_is_kept(
    phase: str | None, exit: str, status: int, own: str, alone: bool, expected: str | None, tmp_path: Path
):
    manifest = died(tmp_path, phase, exit, status, own=own, alone=alone)
    assert manifest.ranks[0].phase == expected


def test_a_phase_that_cannot_be_written_is_nobody_s_failure(tmp_path: Path):
    folders.mark_phase(tmp_path / "gone", 0, "record")
    assert folders.last_phase(tmp_path / "gone", 0) is None


def test_the_latest_phase_counts(tmp_path: Path):
    folders.claim(tmp_path, 0)
    for phase in ("record", "time"):
        folders.mark_phase(tmp_path, 0, phase)
    assert folders.last_phase(tmp_path, 0) == "time"


def test_summary_and_reports_say_so_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    manifest = died(folders.create("x", tmp_path / "r"), "record", *SEGFAULT)
    folder = tmp_path / "r"
    summarize(RunOutcome(folder, manifest, -11, True), report=False)
    first = capfd.readouterr().err.splitlines()[0]
    for part in ("died (signal: SIGSEGV) while it was being recorded", "record", "kinetoscope run --careful"):
        assert part in first
    assert cli.main(["report", str(folder)]) == 0
    assert "while it was being recorded" in " ".join(capfd.readouterr().out.split())
    for suffix in ("md", "txt", "json", "html"):
        assert cli.main(["report", str(folder), "-o", str(tmp_path / f"report.{suffix}")]) == 0
        text = (tmp_path / f"report.{suffix}").read_text()
        if suffix == "html":
            assert page_data(text).report["health"]["notes"][0]["code"] == "died-while-recording"
            continue
        assert "died (signal: SIGSEGV) while it was being recorded" in " ".join(text.split())
    notes = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("- ")]
    assert "while it was being recorded" in notes[0]


class AcceleratorError(RuntimeError):
    """As torch's, by its name."""


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("CUDA error"), False),
    ],
)
def test_what_the_accelerator_failed_of(failure: BaseException, expected: bool):
    assert _is_of_accelerator(failure) == expected
