from __future__ import annotations

import errno
import os
import platform
import re
import resource
from datetime import datetime
from pathlib import Path

import pytest

from kinetoscope.capture.options import Options
from kinetoscope.capture.process.launch import RunOutcome, summarize
from kinetoscope.errors import UsageError
from kinetoscope.recording import folder as folders
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording import rendezvous
from kinetoscope.recording.folder import RankReport
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord, StepTimings
from kinetoscope.recording.rendezvous import agree_on_folder
from kinetoscope.sources.paths import find

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


def test_a_recording_that_ended_and_holds_nothing_makes_room(tmp_path: Path):
    out = tmp_path / "rec"
    (folders.create("train.py", out) / "trace").mkdir()
    (out / "trace" / "rank0.json").write_text("{}")
    empty = RankRecord(rank=0, trace="trace/rank0.json")
    manifests.write(out, Manifest(ranks=(empty,), exit="running"))
    with pytest.raises(UsageError, match="not empty"):
        folders.create("train.py", out)
    manifests.write(out, Manifest(ranks=(empty,), exit="exception: FileNotFoundError"))
    (out / "notes.txt").write_text("the user's own")
    with pytest.raises(UsageError, match="not empty"):
        folders.create("train.py", out)
    (out / "notes.txt").unlink()
    assert list(folders.create("train.py", out).iterdir()) == []
    (out / "trace").mkdir()
    (out / "trace" / "rank0.json").write_text('{"traceEvents": [{"cat": "cpu_op"}]}')
    manifests.write(out, Manifest(ranks=(empty,), exit="exit 0"))
    with pytest.raises(UsageError, match="not empty"):
        folders.create("train.py", out)


def test_a_name_cannot_leave_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert folders.create("../../etc/x", None, now=NOW).parent == tmp_path / "recordings"


def test_hosts_that_share_a_disk_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ranks 0 and 1 run on one, 2 and 3 on the other; one agreement, and one report of all."""
    made: dict[str, Path] = {}
    for name, ranks in (("node-7.rack", (0, 1)), ("node 8", (2, 3))):
        monkeypatch.setattr(platform, "node", lambda name=name: name)
        made[name], first = agree_on_folder("train", tmp_path / "run", None, folders.host())
        assert first
        folders.begin(made[name], ("torchrun",), Options())
        for rank in ranks:
            assert folders.claim(made[name], rank)
            trace = made[name] / "trace" / f"rank{rank}.json"
            trace.parent.mkdir(exist_ok=True)
            trace.write_text("{}")
            record = RankRecord(rank=rank, host=name, exit="ok", trace=f"trace/rank{rank}.json")
            folders.write_rank(made[name], RankReport(record=record, environment=Environment()))
        folders.finish(made[name], exit="ok", status=0, alone=False)
    assert [folder.relative_to(tmp_path).as_posix() for folder in made.values()] == [
        "run/node-7.rack",
        "run/node-8",
    ]
    assert len({folders.agreements(folder) for folder in made.values()}) == 1
    found = [(one.rank, one.host, Path(one.url).parts[-3:]) for one in find([tmp_path / "run"]).traces]
    assert found == [
        (rank, host, (made[host].name, "trace", f"rank{rank}.json"))
        for rank, host in enumerate(("node-7.rack", "node-7.rack", "node 8", "node 8"))
    ]
    with pytest.raises(UsageError):
        folders.create("train", tmp_path / "run", host="node-8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(UsageError):
        folders.create("train", tmp_path / "mine", host="node-8")


def test_without_a_folder_of_their_own_hosts_are_told_apart_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    names = [folders.create("train", None, now=NOW, host=host).name for host in ("node-7", "node-8")]
    assert names == ["train-20260102-030405-node-7", "train-20260102-030405-node-8"]


def test_hosts_of_a_job_that_has_a_name_share_a_folder_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Twice each: what was recorded is never overwritten, and the second time they agree again."""
    monkeypatch.chdir(tmp_path)
    made: list[Path] = []
    for host in ("node-7", "node-8", "node-7", "node-8"):
        out = folders.of_job("train", "job/42", host)
        made.append(agree_on_folder("train", out, None, host)[0])
    paths = [folder.relative_to(tmp_path / "recordings").as_posix() for folder in made]
    assert paths == [f"train-job-42{n}/{host}" for n in ("", "-2") for host in ("node-7", "node-8")]
    assert folders.agreements(made[0]) == folders.agreements(made[1]) != folders.agreements(made[2])
    ranks = (RankRecord(rank=0, exit="ok"),)
    summarize(RunOutcome(made[1], Manifest(ranks=ranks, exit="ok"), 0, True, "node-8"), report=False)
    assert "hosts together, once they have ended: kinetoscope report recordings/train-job-42\n" in (
        capfd.readouterr().err
    )
    own = folders.create("train", None, host="node-8")
    summarize(RunOutcome(own, Manifest(ranks=ranks, exit="ok"), 0, True, "node-8"), report=False)
    assert "with one --out on a disk that all share" in capfd.readouterr().err


def test_ranks_of_two_hosts_meet_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each rank runs kinetoscope itself. What a run left that never ended is nobody's rendezvous place."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "n7"),
                        ("MASTER_PORT", "29500")):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    folder, first = agree_on_folder("train", None, 0)
    monkeypatch.setattr(os, "getppid", lambda: 2)
    assert first
    assert agree_on_folder("train", None, 2) == (folder, False)
    monkeypatch.setattr(rendezvous, "PATIENCE_S", 0.0)
    monkeypatch.setattr(rendezvous, "STALE_S", -1.0)
    monkeypatch.setattr(platform, "node", lambda: "node-8")
    alone, first = agree_on_folder("train", None, 3)
    assert first
    assert re.fullmatch(r"train-node-8-rank3-\d{8}-\d{6}", alone.name)


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


def test_a_run_that_was_killed_opens_with_what_lies_there(tmp_path: Path) -> None:
    folders.begin(tmp_path, ("python", "x.py"), {})
    for rank in (0, 1, 2, 3):
        folders.claim(tmp_path, rank)
    folders.write_rank(tmp_path, report(0, "running"))
    (tmp_path / "ranks" / "rank2.json").write_bytes(b'{"record":')
    for name in ("trace/rank0.json", "trace/rank1.json", "compile/rank1.log", "trace/rank3.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"" if "rank3" in name else b"x")
    manifest = folders.opened(tmp_path)
    assert [(rank.rank, rank.trace, rank.compile_log) for rank in manifest.ranks] == [
        (0, "trace/rank0.json", None),
        (1, "trace/rank1.json", "compile/rank1.log"),
        (2, None, None),
        (3, None, None),
    ]
    assert manifest.exit == "running"
    assert "never finished" in manifest.notes[-1]


def test_a_full_disk_at_the_end_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.begin(tmp_path, ("python", "x.py"), {})
    folders.claim(tmp_path, 0)
    folders.write_rank(tmp_path, report(0, "ok"))
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", no_space)
        manifest = folders.finish(tmp_path, exit="ok", status=0, alone=True)
    assert (manifest.exit, len(manifest.ranks)) == ("ok", 1)
    assert "No space left" in manifest.notes[-1]
    assert [rank.rank for rank in folders.opened(tmp_path).ranks] == [0]


def test_room_is_kept_for_what_says_how_the_program_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.begin(tmp_path, ("python", "x.py"), {})
    folders.claim(tmp_path, 0)
    assert (tmp_path / folders.RESERVE).stat().st_size == folders.RESERVED_BYTES
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        return no_space(path, content) if (tmp_path / folders.RESERVE).exists() else write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    folders.write_rank(tmp_path, report(0, "ok"))
    manifest = folders.finish(tmp_path, exit="ok", status=0, alone=True)
    assert manifest == manifests.read(tmp_path)
    assert not (tmp_path / folders.RESERVE).exists()


def test_a_recording_that_is_gone_is_a_note(tmp_path: Path) -> None:
    manifest = folders.finish(tmp_path / "gone", exit="sys.exit: 3", status=3, alone=True)
    assert (manifest.exit, manifest.status) == ("sys.exit: 3", 3)
    assert "the recording is lost" in manifest.notes[0]


@pytest.mark.parametrize(
    ("left", "found"),
    [
        (["rank0.part.json.tmp"], "rank0.part.json.tmp"),
        (["rank0.part.json.tmp", "rank0.json"], "rank0.json"),
        (["rank0.part.json", "rank0.program.json"], "rank0.program.json"),
    ],
)
def test_a_trace_half_written_is_what_a_kill_left(left: list[str], found: str, tmp_path: Path) -> None:
    folders.begin(tmp_path, ("python", "x.py"), {})
    folders.claim(tmp_path, 0)
    (tmp_path / "trace").mkdir()
    for name in left:
        (tmp_path / "trace" / name).write_bytes(b"x")
    assert folders.opened(tmp_path).ranks[0].trace == f"trace/{found}"


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "write_bytes", no_space)
    with pytest.raises(OSError, match="No space left"):
        manifests.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def no_space(path: Path, content: bytes) -> int:
    with path.open("wb") as file:
        file.write(content[:1])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_recording_that_cannot_be_begun_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(UsageError, match="cannot begin the recording") as refused:
            folders.begin(folder, ("python", "x.py"), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "--out" in str(refused.value)
    assert not folder.exists()
