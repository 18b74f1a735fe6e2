"""A server under `run --on-request` answers as it does plainly, and `record` has its steps recorded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broad import broad

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "tests" / "support" / "live_server.py"
KINETOSCOPE = [sys.executable, "-m", "kinetoscope"]
KINDS = ("threads", "asyncio", "spawn", "fork")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="--on-request needs Linux")


@dataclass
class Live:
    """A server that runs, and a client that keeps it busy."""

    process: subprocess.Popen[str]
    port: int
    pid: int
    folder: Path
    answers: list[str] = field(default_factory=list)
    idle: threading.Event = field(default_factory=threading.Event)

    def client(self) -> None:
        """Send numbers until the server is to be idle."""
        with self.connection() as connection, connection.makefile("rw") as file:
            while not self.idle.is_set():
                self.answers.append(asked(file, len(self.answers)))

    def connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def record(self, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*KINETOSCOPE, "record", *words], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == status, done.stderr
        return done

    def close(self) -> tuple[str, str]:
        """End it as a client does; what it printed."""
        self.idle.set()
        with self.connection() as connection:
            connection.sendall(b"\n")
            return self.process.communicate(timeout=60)


def asked(file, number: int) -> str:
    file.write(f"{number % 50}\n")
    file.flush()
    return file.readline().strip()


@contextlib.contextmanager
def server(tmp_path: Path, kind: str, *options: str, recorded: bool = True) -> Generator[Live]:
    plain = [sys.executable, str(SERVER), kind]
    folder = tmp_path / "live"
    command = [*KINETOSCOPE, "run", "--on-request", "-o", str(folder), *options, "--", *plain]
    process = subprocess.Popen(
        command if recorded else plain, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port, pid = map(int, process.stdout.readline().split())
        live = Live(process, port, pid, folder)
        with live.connection() as connection, connection.makefile("rw") as file:
            asked(file, 0)  # the worker has started, too
        yield live
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


@contextlib.contextmanager
def busy(live: Live) -> Generator[None]:
    thread = threading.Thread(target=live.client)
    thread.start()
    try:
        yield
    finally:
        live.idle.set()
        thread.join(timeout=60)


def steps_in(folder: Path) -> list[str]:
    (record,) = json.loads((folder / "manifest.json").read_text())["ranks"]
    events = json.loads((folder / record["trace"]).read_text())["traceEvents"]
    return [e["name"] for e in events if str(e.get("name")).startswith("ProfilerStep#")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a server answers plainly: its kind makes no difference to its model."""
    with server(tmp_path_factory.mktemp("plain"), "threads", recorded=False) as live:
        with live.connection() as connection, connection.makefile("rw") as file:
            answers = [asked(file, number) for number in range(50)]
        assert live.close() == ("served\n", "")
    return answers


@pytest.mark.parametrize("kind", broad(KINDS, ("threads", "spawn")))
def test_two_requests_are_two_recordings_and_answers_stay(
    tmp_path: Path, kind: str, expected: list[str]
) -> None:
    with server(tmp_path, kind) as live:
        with busy(live):
            said = [live.record(str(live.pid), "--steps", "20") for _ in range(2)]
        out, err = live.close()
    print(*(one.stderr.splitlines()[-2] for one in said), sep="\n")
    assert [Path(one.stdout.strip()).name for one in said] == ["001", "002"]
    for number in ("001", "002"):
        assert len(steps_in(live.folder / number)) == 20
    assert live.answers == (expected * (len(live.answers) // 50 + 1))[: len(live.answers)]
    assert out == "served\n"
    assert [line for line in err.splitlines() if not line.startswith("kinetoscope: ")] == []


def test_a_recording_opens_as_any_other(tmp_path: Path) -> None:
    with server(tmp_path, "threads") as live:
        with busy(live):
            live.record(str(live.folder), "--steps", "20")
        live.close()
    reported = subprocess.run(
        [*KINETOSCOPE, "steps", str(live.folder / "001"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    (record,) = json.loads((live.folder / "001" / "manifest.json").read_text())["ranks"]
    assert json.loads(reported.stdout)
    assert record["pid"] == live.pid
    assert record["steps"]["step_name"] == "Model"
    assert [level["name"] for level in record["steps"]["levels"]] == ["one call of Model"]
    assert len(record["steps"]["recorded"]["step_s"]) == 20
    assert record["steps"]["before"]["step_s"]
    assert record["steps"]["after"]["step_s"]


def test_a_second_request_meanwhile_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with server(tmp_path, "threads") as live:
        first = subprocess.Popen(
            [*KINETOSCOPE, "record", str(live.pid), "--steps", "5"], stderr=subprocess.PIPE, text=True
        )
        assert first.stderr is not None
        assert "waiting for the server's steps" in first.stderr.readline()
        second = live.record(str(live.pid), status=3)
        with busy(live):
            first.communicate(timeout=60)
        live.close()
    assert "it is being recorded already" in second.stderr
    assert "try again when that is over" in second.stderr
    assert first.returncode == 0
    assert len(steps_in(live.folder / "001")) == 5


def test_a_server_without_requests_has_no_steps(tmp_path: Path) -> None:
    with server(tmp_path, "threads") as live:
        done = live.record(str(live.pid), "--seconds", "1", status=3)
        with busy(live):  # it was not harmed
            live.record(str(live.pid), "--steps", "3")
        live.close()
    assert "no steps were seen in 1 s" in done.stderr
    assert sorted(path.name for path in live.folder.iterdir()) == ["001"]


def long_request(pid: int) -> subprocess.Popen[str]:
    """A request of more steps than there will be, which are being recorded."""
    words = [*KINETOSCOPE, "record", str(pid), "--steps", "100000"]
    asking = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert asking.stderr is not None
    while "recording 100000 steps" not in asking.stderr.readline():
        assert asking.poll() is None
    return asking


@pytest.mark.parametrize("how", broad((signal.SIGTERM, signal.SIGINT, None), (signal.SIGTERM,)))
def test_a_server_that_ends_meanwhile_keeps_what_was_recorded(
    tmp_path: Path, how: signal.Signals | None
) -> None:
    with server(tmp_path, "threads") as live:
        with busy(live):
            asking = long_request(live.pid)
            time.sleep(0.5)
            live.idle.set()
            if how is not None:
                os.kill(live.pid, how)
        live.close() if how is None else live.process.communicate(timeout=60)
        said = asking.communicate(timeout=60)[1]
    assert asking.returncode == 0, said
    assert steps_in(live.folder / "001")
    assert "the program ended" in (live.folder / "001" / "manifest.json").read_text()


def test_ctrl_c_of_the_request_ends_the_recording_and_keeps_it(tmp_path: Path) -> None:
    with server(tmp_path, "threads") as live:
        with busy(live):
            asking = long_request(live.pid)
            time.sleep(0.3)
            asking.send_signal(signal.SIGINT)
            asking.communicate(timeout=60)
            live.record(str(live.pid), "--steps", "3")
        live.close()
    assert asking.returncode == 0
    assert 0 < len(steps_in(live.folder / "001")) < 100000
    assert len(steps_in(live.folder / "002")) == 3


def test_the_buffer_is_bounded(tmp_path: Path) -> None:
    with server(tmp_path, "threads", "--budget", "6") as live:
        with busy(live):
            done = live.record(str(live.pid), "--steps", "100000")
        live.close()
    assert "memory grew by" in done.stderr
    assert "`run --budget` allows for more" in (live.folder / "001" / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["999999999"], "there is no such process"),
        (["/nowhere"], "there is no such folder"),
    ],
)
def test_what_cannot_be_recorded_is_refused_with_a_hint(words: list[str], what: str) -> None:
    done = subprocess.run([*KINETOSCOPE, "record", *words], capture_output=True, text=True, check=False)
    assert done.returncode in (2, 3)
    assert what in done.stderr
    assert "hint:" in done.stderr


def test_a_process_that_was_not_started_so_is_refused_with_what_to_do() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        words = [*KINETOSCOPE, "record", str(other.pid)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        other.communicate(b"\n")
    assert done.returncode == 3
    assert "kinetoscope run --on-request" in done.stderr
    assert "kinetoscope.listen()" in done.stderr
