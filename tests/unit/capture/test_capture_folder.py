from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from kinetoscope.errors import UsageError
from kinetoscope.recording import folder as folders
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.folder import RankReport
from kinetoscope.recording.manifest import Environment, RankRecord, StepTimings

NOW = datetime(2026, 1, 2, 3, 4, 5)


def test_folders_of_the_same_second_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names = [folders.create("my train", None, now=NOW).name for _ in range(3)]
    assert names == ["my-train-20260102-030405", "my-train-20260102-030405-2", "my-train-20260102-030405-3"]


def test_nothing_is_ever_overwritten(tmp_path: Path):
    (tmp_path / "kept").write_text("something of the user's")
    with pytest.raises(UsageError, match="not empty"):
        folders.create("train", tmp_path)
    assert folders.create("train", tmp_path / "new") == tmp_path / "new"


def test_a_name_cannot_leave_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert folders.create("../../etc/x", None, now=NOW).parent == tmp_path / "recordings"


def test_a_rank_is_claimed_once(tmp_path: Path):
    assert [folders.claim(tmp_path, 0), folders.claim(tmp_path, 0), folders.claim(tmp_path, 1)] == [
        True,
        False,
        True,
    ]


def report(rank: int, exit: str) -> RankReport:
    steps = StepTimings(found_by="optimizer", unprofiled_s=(1.0,), profiled_s=(1.5,))
    return RankReport(
        record=RankRecord(rank=rank, exit=exit, steps=steps), environment=Environment(torch="2.13.0")
    )


@pytest.mark.parametrize(
    ("own", "command", "status", "expected"),
    [
        ("ok", "ok", 0, "ok"),
        ("ok", "sys.exit: 3", 3, "sys.exit: 3"),
        ("running", "sys.exit: 3", 3, "os._exit: 3"),
        ("running", "signal: SIGKILL", -9, "signal: SIGKILL"),
        ("os._exit: 0", "ok", 0, "os._exit: 0"),
        ("exception: ValueError", "sys.exit: 1", 1, "exception: ValueError"),
    ],
)
def test_how_a_program_ended(tmp_path: Path, own: str, command: str, status: int, expected: str):
    folders.begin(tmp_path, ("python", "x.py"), {})
    folders.claim(tmp_path, 0)
    folders.write_rank(tmp_path, report(0, own))
    folders.finish(tmp_path, exit=command, status=status, alone=True)
    manifest = manifests.read(tmp_path)
    assert manifest.ranks[0].exit == manifest.exit == expected
    assert manifest.status == status
    assert manifest.ranks[0].steps.profiled_s == (1.5,)
    assert manifest.environment.torch == "2.13.0"


def test_the_time_of_a_step_is_the_mean_and_unknown_without_any():
    steps = StepTimings(profiled_s=(1.0, 1.0, 4.0))
    assert steps.profiled_step_s == 2.0
    assert StepTimings().profiled_step_s is None


def test_ranks_are_merged_in_their_order(tmp_path: Path):
    folders.begin(tmp_path, ("torchrun",), {})
    for rank in (10, 2, 0):
        folders.claim(tmp_path, rank)
        folders.write_rank(tmp_path, report(rank, "ok"))
    manifest = folders.finish(tmp_path, exit="ok", status=0, alone=False)
    assert [rank.rank for rank in manifest.ranks] == [0, 2, 10]
