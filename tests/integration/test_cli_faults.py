"""Hostile and broken input ends in a message and a status of ours: no traceback, no hang."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command import ENVIRONMENT, SMALL, kinetoscope
from kinetoscope import cli
from kinetoscope.cli import main
from kinetoscope.errors import InputError
from kinetoscope.recording import manifest as manifests

TRACE = gzip.decompress(SMALL.read_bytes())


def recording(folder: Path, **changed: Any) -> Path:
    """A recording of one rank, with keys of its manifest changed, or of its rank's record (``rank_KEY``)."""
    (folder / "trace").mkdir(parents=True)
    (folder / "trace" / "rank0.json").write_bytes(TRACE)
    rank = {"rank": 0, "trace": "trace/rank0.json"}
    rank |= {key.removeprefix("rank_"): value for key, value in changed.items() if key.startswith("rank_")}
    manifest = {"schema": manifests.SCHEMA, "exit": "ok", "ranks": [rank]}
    manifest |= {key: value for key, value in changed.items() if not key.startswith("rank_")}
    (folder / manifests.FILE).write_text(json.dumps(manifest))
    return folder


WRONG_KINDS: list[dict[str, Any]] = [
    {"schema": "kinetoscope.recording/one"},
    {"schema": "kinetoscope.recording/"},
    {"schema": "kinetoscope.recording/²"},
    {"schema": 1},
    {"rank_rank": -1},
    {"rank_rank": 10**30},
    {"rank_rank": "0"},
    {"rank_trace": 7},
    {"rank_trace": ""},
    {"rank_trace": "trace/\0"},
    {"rank_trace": "trace"},
    {"rank_trace": "../outside.json"},
    {"rank_trace": "/etc/hostname"},
    {"rank_compile_log": "../../outside.log"},
    {"rank_clocks": "now"},
    {"rank_wall_s": "long"},
    {"ranks": [{"rank": 0, "trace": "trace/rank0.json"}] * 2},
    {"ranks": {}},
]


@pytest.mark.parametrize("changed", WRONG_KINDS, ids=str)
def test_a_manifest_of_the_wrong_kind_is_refused(
    changed: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outside.json").write_bytes(TRACE)
    assert main(["report", str(recording(tmp_path / "r", **changed))]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("kinetoscope: ")
    assert "a fault of kinetoscope" not in shown.err


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"\xff" * 10, b"", b"null", b'{"ranks":[{"rank":0,"exit":"\xff"}]}']
)
def test_a_manifest_that_is_no_json_is_refused(content: bytes, tmp_path: Path) -> None:
    (recording(tmp_path / "r") / manifests.FILE).write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        manifests.read(tmp_path / "r")


def test_a_link_out_of_the_recording_is_not_followed(tmp_path: Path) -> None:
    folder = recording(tmp_path / "r", rank_trace="trace/link.json")
    (tmp_path / "outside.json").write_bytes(TRACE)
    (folder / "trace" / "link.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(InputError, match="outside of its recording"):
        manifests.read(folder)


def test_a_recording_may_lie_behind_a_link(tmp_path: Path) -> None:
    recording(tmp_path / "r")
    (tmp_path / "link").symlink_to(tmp_path / "r")
    assert manifests.read(tmp_path / "link").ranks[0].trace == "trace/rank0.json"


def test_a_deleted_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recording(tmp_path / "r")
    (folder / "trace" / "rank0.json").unlink()
    assert main(["report", str(folder)]) == 3
    assert "rank0.json" in capsys.readouterr().err


HEADER = b'V1121 01:48:43.123456 1 torch/a.py:1] {"%s": %s, "frame_id": 0, "frame_compile_id": 0}\n'


@pytest.mark.parametrize(
    "line",
    [
        HEADER % (b"dynamo_start\xff", b'{"stack": []}'),
        HEADER % (b"artifact", b'{"name": "\xff"}'),
        HEADER % (b"artifact", b"[" * 3000 + b"]" * 3000),
        HEADER % (b"graph_dump", b'{"name": ' * 3000 + b"1" + b"}" * 3000),
    ],
    ids=["bytes in a name", "bytes in a value", "brackets", "braces"],
)
def test_a_log_with_a_record_that_is_no_json(
    line: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(HEADER % (b"dynamo_start", b'{"stack": []}') + line)
    assert main(["graphs", str(path)]) == 0
    assert "a fault of kinetoscope" not in capsys.readouterr().err


def test_standard_output_that_is_closed_or_full(tmp_path: Path) -> None:
    command = f"{sys.executable} -m kinetoscope kernels {SMALL}"
    closed = subprocess.run(
        f"{command} >&-", shell=True, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    if os.path.exists("/dev/full"):
        full = subprocess.run(
            f"{command} >/dev/full", shell=True, env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert full.returncode == 3
        assert full.stderr.startswith("kinetoscope: the system refused: No space left on device")


def test_an_unexpected_error_is_a_message_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> int:
        raise TypeError("\x1b]52;c;aGk=\x07 is no number")

    monkeypatch.setattr("kinetoscope.cli.explain.main", fails)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    assert main(["explain"]) == 3
    shown = capsys.readouterr().err
    assert "a fault of kinetoscope itself" in shown
    assert "please report it" in shown
    assert "\x1b" not in shown
    monkeypatch.setenv(cli.DEBUG, "1")
    with pytest.raises(TypeError):
        main(["explain"])


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no real-time signals here")
def test_a_program_that_a_real_time_signal_ended(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGRTMIN + 5)\n")
    done = kinetoscope("run", "--out", tmp_path / "r", script)
    assert done.returncode == -signal.SIGRTMIN - 5
    assert "SIGRTMIN+5" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_are_refused_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETOSCOPE_CACHE", raising=False)
    os.mkfifo(tmp_path / "pipe.json")
    for place in (tmp_path / "pipe.json", tmp_path, Path("/dev/zero")):
        done = kinetoscope("report", place)
        assert (done.returncode, done.stdout) == (3, "")
        assert "pipe, socket or device" in done.stderr


@pytest.mark.parametrize("packed", [True, False])
def test_standard_input_is_an_input(packed: bool, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "report", "-"],
        input=SMALL.read_bytes() if packed else TRACE,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"standard-input" in done.stdout


def test_one_bad_entry_of_a_folder_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.json").write_bytes(TRACE)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.json")
    assert main(["kernels", str(tmp_path)]) == 0
    left_out = capsys.readouterr().err
    for name in ("folder.json", "loop.json", "gone.json"):
        assert f"{name} was left out" in left_out


@pytest.mark.parametrize("content", [b"x", b"\x80\x04", b"\x80\x04]."])
def test_a_pickle_among_ranks_is_left_out(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_bytes(TRACE)
    (tmp_path / "model.pkl").write_bytes(content)
    assert main(["report", str(tmp_path)]) == 0
    assert "model.pkl was left out" in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8 elsewhere")
@pytest.mark.parametrize("words", [[], ["--engine", "local"]])
def test_a_rank_s_name_is_any_bytes(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (b"rank0.json", b"rank1\xff.json"):
        (tmp_path / os.fsdecode(name)).write_bytes(TRACE)
    assert main(["report", str(tmp_path), *words]) == 0
    assert "left out" not in "".join(capsys.readouterr())


def test_a_pattern_that_no_shell_expanded_is_expanded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_bytes(TRACE)
    assert main(["report", str(tmp_path / "rank*.json"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["sources"]) == 2


@pytest.mark.parametrize("content", [None, b"", TRACE[:200], TRACE[: len(TRACE) // 2], TRACE])
def test_a_recording_whose_run_was_killed_opens(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recording(tmp_path / "r", exit="running", ranks=[])
    (folder / "ranks").mkdir()
    (folder / "ranks" / "rank0.claim").touch()
    trace = folder / "trace" / "rank0.json"
    if content is None:
        trace.unlink()
    else:
        trace.write_bytes(content)
    assert main(["report", str(folder), "-o", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["health"]["verdict"] == "good") == (content == TRACE)
    assert report["sources"][0]["complete"] == (content == TRACE)


def test_nothing_from_a_file_reaches_the_terminal_as_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b]52;c;aGk=\x07\x9b31m"
    metrics = json.dumps({"pytorch_version": f"2.13{hostile}"})
    log = tmp_path / f"rank0{hostile}.log"
    payload = b"\t" + metrics.encode()
    log.write_bytes(
        HEADER % (b"torch_version", json.dumps({"version": f"2.13{hostile}"}).encode())
        + HEADER % (b"dynamo_start", b'{"stack": []}')
        + HEADER % (b"compilation_metrics", metrics.encode())
        + payload
    )
    trace = json.loads(TRACE)
    for event in trace["traceEvents"]:
        event["name"] = f"{event['name']}{hostile}" if event.get("cat") == "kernel" else event["name"]
    path = tmp_path / f"trace{hostile}.json"
    path.write_text(json.dumps(trace))
    commands = [
        ["graphs", str(log)],
        ["report", str(path)],
        ["kernels", str(path)],
        ["query", str(path), "SELECT name FROM device_events"],
        ["report", str(tmp_path / f"none{hostile}.json")],
    ]
    for command in commands:
        main(command)
        shown = capsys.readouterr()
        assert not {"\x1b", "\x07", "\x9b"} & set(shown.out + shown.err), command


@pytest.mark.parametrize(
    ("ends", "given", "status"),
    [
        ("raise SystemExit(7)", ["--exit-code"], 7),
        ("raise SystemExit(7)", [], 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", [], -15),
        ("pass", [], 0),
    ],
)
def test_the_status_of_a_run(ends: str, given: list[str], status: int, tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ends)
    assert kinetoscope("run", *given, "--out", tmp_path / "r", script).returncode == status
