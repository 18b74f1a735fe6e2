"""The commit that the working folder has checked out, read from git's own files: no process is started."""

from __future__ import annotations

from pathlib import Path

LONGEST = 4096  # bytes of a file that names one thing


def commit() -> str | None:
    """The commit that is checked out around the working folder; what was changed since is not in it. None
    where there is none.

    Source: gitrepository-layout(5): HEAD names a commit or a branch; a worktree's ``.git`` is a file.
    """
    try:
        folder = Path.cwd()
        top = next((path for path in (folder, *folder.parents) if (path / ".git").exists()), None)
        return None if top is None else _head(_own(top / ".git"))
    except (OSError, ValueError):
        return None


def _own(git: Path) -> Path:
    return git if git.is_dir() else git.parent / _text(git).removeprefix("gitdir:").strip()


def _head(git: Path) -> str | None:
    head = _text(git / "HEAD")
    if not head.startswith("ref:"):
        return head
    branch = head.removeprefix("ref:").strip()
    common = git / _text(git / "commondir") if (git / "commondir").is_file() else git
    if (common / branch).is_file():
        return _text(common / branch)
    with (common / "packed-refs").open(encoding="utf-8") as packed:
        return next((line.split()[0] for line in packed if line.split()[1:] == [branch]), None)


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(LONGEST).strip()
