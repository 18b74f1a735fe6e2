"""Checkouts of earlier versions: none is left behind, and none that is in use is taken away."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from kinetoscope.bench.versions.worktree import OWNER, checked_out
from kinetoscope.errors import UsageError


def git(*words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "repository"
    home.mkdir()
    monkeypatch.chdir(home)
    (home / "x.py").write_text("1\n")
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "one")
    return home


def checkouts() -> int:
    return len(git("worktree", "list").splitlines()) - 1


@pytest.mark.parametrize("reference", ["", "git:", "  ", "git: "])
def test_an_empty_reference_is_no_version(reference: str, repository: Path) -> None:
    with pytest.raises(UsageError, match="no version"), checked_out(reference):
        pass


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_leaves_no_checkout(name: str, repository: Path) -> None:
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended, checked_out("git:main"):
            signal.raise_signal(number)
        assert ended.value.code == 128 + number
        assert checkouts() == 0
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_a_killed_comparison_left_goes_with_the_next(repository: Path, tmp_path: Path) -> None:
    homes = [tmp_path / f"kinetoscope-base-{name}" for name in ("dead", "alive")]
    ended = subprocess.Popen(["true"])
    ended.wait()
    for home, owner in zip(homes, (ended.pid, os.getpid()), strict=True):
        home.mkdir()
        (home / OWNER).write_text(str(owner))
        git("worktree", "add", "-q", "--detach", str(home / "tree"), "main")
    with checked_out("git:main"):
        assert checkouts() == 2
    assert [home.exists() for home in homes] == [False, True]


def test_what_git_does_not_track_can_be_linked(repository: Path) -> None:
    (repository / "data").mkdir()
    (repository / "data" / "x.bin").write_text("kept")
    with checked_out("git:main", ["data"]) as base:
        assert (base.folder / "data" / "x.bin").read_text() == "kept"
    assert (repository / "data" / "x.bin").read_text() == "kept", "the link went, not what it leads to"
    for path in ("x.py", "missing"):
        with pytest.raises(UsageError), checked_out("git:main", [path]):
            pass
    assert checkouts() == 0
