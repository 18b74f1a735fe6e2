"""Signals reach a program under `kinetoscope run` as they would without: once, and as its shell set them."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="as Linux sends them")

KINETOSCOPE = (sys.executable, "-m", "kinetoscope", "run", "--no-report")
# Counts what arrives, and leaves on SIGUSR2 in the order that a checkpoint takes.
COUNTS = """
import signal, sys, time
seen = []
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGRTMIN", "SIGCONT"):
    signal.signal(getattr(signal, name), lambda number, frame: seen.append(signal.Signals(number).name))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(21))
print("ready", flush=True)
try:
    while True:
        time.sleep(0.05)
finally:
    time.sleep(0.2)
    print(*seen, flush=True)
"""
WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(30)\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    (tmp_path / "counts.py").write_text(COUNTS)
    (tmp_path / "waits.py").write_text(WAITS)
    return tmp_path


def _as_a_terminal_has_it() -> None:
    """The suite itself may be run by `nohup`."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def begin(*words: str, **options: object) -> subprocess.Popen[str]:
    """Start a command in a group of its own; it has said that it is ready."""
    started = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=_as_a_terminal_has_it,
        **options,
    )  # type: ignore[call-overload]
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def settle() -> None:
    """Let what was sent be taken: signals that are sent sooner are one."""
    time.sleep(0.3)


@pytest.mark.parametrize("to_group", [True, False], ids=["to the group", "to run alone"])
def test_a_signal_arrives_once(place: Path, to_group: bool):
    run = begin(*KINETOSCOPE, "counts.py")
    send = os.killpg if to_group else os.kill
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGTERM", "SIGRTMIN")
    for name in names:
        send(run.pid, getattr(signal, name))
        settle()
    send(run.pid, signal.SIGUSR2)
    out, _ = run.communicate(timeout=20)
    assert (out.split(), run.returncode) == (list(names), 21)


def test_a_signal_sent_to_each_process_arrives_once(place: Path):
    """As systemd and Slurm end a job."""
    run = begin(*KINETOSCOPE, "counts.py")
    for number in (signal.SIGTERM, signal.SIGUSR2):
        for process in [run.pid, *children(run.pid)]:
            os.kill(process, number)
        settle()
    out, _ = run.communicate(timeout=20)
    assert (out, run.returncode) == ("SIGTERM\n", 21)


def children(process: int) -> list[int]:
    return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


def program(run: int) -> int:
    """The process of the program: of the children of `run` the one with a command line of its own."""
    lines = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children(run)}
    return next(child for child, line in lines.items() if b"kinetoscope\0run" not in line)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGALRM", "SIGRTMIN", "SIGKILL", "SIGINT"])
def test_run_dies_of_what_the_program_died_of(place: Path, name: str):
    number = getattr(signal, name)
    run = begin(*KINETOSCOPE, "waits.py")
    os.kill(program(run.pid), number)
    _, err = run.communicate(timeout=20)
    assert run.returncode == -number
    assert (f"was ended by {name}" in err) == (name != "SIGINT")
    assert "nothing was recorded" in err  # said after the program's end


def test_timeout_leaves_the_time_for_a_checkpoint(place: Path):
    source = COUNTS.replace("SIGUSR2", "SIGTERM").replace('("SIGINT", "SIGTERM",', '("SIGINT",')
    (place / "leaves.py").write_text(source)
    for seconds in ("1.5", "10", "40"):  # a busy machine may not have begun the program by then
        command = ["timeout", seconds, *KINETOSCOPE, "leaves.py"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if "ready" in done.stdout:
            break
    assert done.stdout.splitlines()[-1] in ("", "SIGCONT")  # it came to its last line
    assert done.returncode == 124


@pytest.mark.parametrize("command", ["nohup {} && echo went on", "trap '' HUP INT; {} && echo went on"])
def test_what_the_shell_ignores_stays_ignored(place: Path, command: str):
    (place / "ends.py").write_text(WAITS.replace("30", "0.5"))
    words = command.format(" ".join((*KINETOSCOPE, "ends.py")))
    run = begin("/bin/sh", "-c", words)
    os.killpg(run.pid, signal.SIGHUP)
    if "INT" in command:
        os.killpg(run.pid, signal.SIGINT)
    out, _ = run.communicate(timeout=20)
    if "INT" in command:
        assert out == "went on\n"
    else:  # the shell itself, which ignores nothing, is gone
        assert "signal" not in (next((place / "recordings").iterdir()) / "manifest.json").read_text()


def test_a_handler_of_the_program_s_wins_over_what_is_ignored(place: Path):
    run = begin("/bin/sh", "-c", "trap '' HUP; exec " + " ".join((*KINETOSCOPE, "counts.py")))
    os.kill(run.pid, signal.SIGHUP)
    settle()
    os.killpg(run.pid, signal.SIGUSR2)
    assert run.communicate(timeout=20)[0] == "SIGHUP\n"


@pytest.fixture
def terminal(place: Path) -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


class Terminal:
    """A terminal at which a shell with job control runs."""

    def __init__(self) -> None:
        self.shell, self.fd = pty.fork()
        if self.shell == 0:
            os.execvp("bash", ["bash", "--norc", "-i"])
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, text: str) -> str:
        """What is shown from now on, up to this text."""
        deadline = time.monotonic() + 30
        os.set_blocking(self.fd, False)
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            try:
                self.shown += os.read(self.fd, 4096).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)
        before, _, self.shown = self.shown.partition(text)
        return before

    def close(self) -> None:
        os.close(self.fd)
        os.kill(self.shell, signal.SIGKILL)
        os.waitpid(self.shell, 0)


@pytest.mark.parametrize("redirected", ["", " < /dev/null", " | cat"])
def test_ctrl_c_at_a_terminal_arrives_once(terminal: Terminal, redirected: str):
    words = " ".join((*KINETOSCOPE, "counts.py"))
    terminal.type(f"{words}{redirected}\r")
    terminal.until("ready\r\n")
    for _ in range(2):
        terminal.type("\x03")
        settle()
    terminal.type("\x1a")  # Ctrl-Z stops the program and gives the shell back
    terminal.until("Stopped")
    terminal.type("kill -USR2 %1; fg\r")
    shown = terminal.until("nothing was recorded")
    if not redirected.startswith(" |"):
        assert "SIGINT SIGINT" in shown
        terminal.type("echo status $?\r")
        terminal.until("status 21")
