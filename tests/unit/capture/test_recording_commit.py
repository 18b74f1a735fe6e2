"""The commit that a recording was made of, as git's own files have it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinetoscope.recording.repository import commit


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_is_what_git_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top, tree = tmp_path / "top", tmp_path / "tree"
    (top / "part").mkdir(parents=True)
    monkeypatch.chdir(top / "part")
    git(top, "init", "-q", "-b", "main")
    assert commit() is None, "nothing was committed"
    for _ in range(2):
        git(top, "commit", "-q", "--allow-empty", "-m", "one")
    head = git(top, "rev-parse", "HEAD")
    assert commit() == head
    git(top, "pack-refs", "--all")
    assert commit() == head
    git(top, "worktree", "add", "-q", "--detach", str(tree), "HEAD~1")
    monkeypatch.chdir(tree)
    assert commit() == git(tree, "rev-parse", "HEAD") != head


def test_a_working_folder_that_is_gone_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert commit() is None
