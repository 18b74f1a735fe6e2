"""An earlier version of the program, next to the one at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kinetoscope import signals
from kinetoscope.errors import InputError, UsageError

GIT = "git:"
HOME, OWNER = "kinetoscope-base-", "owner"  # folders of checkouts, and the file with their process in them


@dataclass(frozen=True)
class Version:
    """A folder in which a version of the program runs.

    ``root`` is the top of its checkout; what the environment says of the other's checkout is said of this
    one where ``instead_of`` names it.
    """

    label: str
    folder: Path
    root: Path
    instead_of: Path | None = None

    def environment(self) -> dict[str, str]:
        """Python's search path with this checkout where the other stood, so that versions differ."""
        entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        return {"PYTHONPATH": os.pathsep.join(str(self._here(Path(entry))) for entry in entries if entry)}

    def _here(self, entry: Path) -> Path:
        if self.instead_of is None or not entry.is_absolute():
            return entry
        resolved = entry.resolve()
        inside = resolved.is_relative_to(self.instead_of)
        return self.root / resolved.relative_to(self.instead_of) if inside else entry


def at_hand() -> Version:
    """The working tree as it is, changes that are not committed included."""
    here = Path.cwd().resolve()
    return Version("working tree", here, _top(here) or here)


@contextmanager
def checked_out(reference: str, links: Sequence[str] = ()) -> Generator[Version]:
    """The version that ``git:REF`` or a folder names; what git checks out is removed afterwards. It
    has ``links`` to paths, as seen from here, that git does not track. Raises UsageError where there is no
    such folder, no repository here, or nothing to link, InputError where git does not know the reference."""
    here = Path.cwd().resolve()
    top = _top(here)
    if not reference.removeprefix(GIT).strip():
        raise UsageError(
            "no version is named: it is empty",
            where=f"--base {reference!r}",
            hint="--base 'git:main', or a folder",
        )
    if not reference.startswith(GIT):
        folder = Path(reference).resolve()
        if not folder.is_dir():
            raise UsageError(
                "there is no such folder", where=reference, hint="--base 'git:main', or a folder"
            )
        yield Version(reference, folder, _top(folder) or folder, top or here)
        return
    if top is None:
        raise UsageError(
            "this is no git repository", where=str(here), hint="--base FOLDER, of the other version"
        )
    _forget_abandoned(here)
    with signals.as_exceptions(), tempfile.TemporaryDirectory(prefix=HOME) as home:
        (Path(home) / OWNER).write_text(str(os.getpid()))
        tree = Path(home).resolve() / "tree"
        commit = _git(here, "rev-parse", "--verify", "--quiet", f"{reference.removeprefix(GIT)}^{{commit}}")
        if commit is None:
            raise InputError(
                "git knows no such commit", where=reference, hint="a branch, tag or commit: git:main"
            )
        if _git(here, "worktree", "add", "--quiet", "--detach", str(tree), commit) is None:
            raise InputError("git cannot check it out", where=reference)
        try:
            for path in links:
                _link(here / path, tree / here.relative_to(top) / path)
            yield Version(f"{reference} ({commit[:10]})", tree / here.relative_to(top), tree, top)
        finally:
            _git(here, "worktree", "remove", "--force", str(tree))


def _link(path: Path, place: Path) -> None:
    """Link a path of the working tree to its place in the checkout. Raises UsageError where there is no such
    path, or the checkout has its own."""
    if not path.exists() or place.exists():
        what = "the base has its own" if path.exists() else "there is nothing to link"
        raise UsageError(what, where=f"--link {path.name}", hint="a file or folder that git does not track")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(path.resolve())


def _forget_abandoned(here: Path) -> None:
    """Remove checkouts of earlier comparisons that were killed, of this repository alone."""
    listed = (_git(here, "worktree", "list", "--porcelain") or "").splitlines()
    for tree in [Path(line.removeprefix("worktree ")) for line in listed if line.startswith("worktree ")]:
        home = tree.parent
        if tree.name == "tree" and home.name.startswith(HOME) and not _is_owned(home):
            _git(here, "worktree", "remove", "--force", "--force", str(tree))
            shutil.rmtree(home, ignore_errors=True)
            _git(here, "worktree", "prune")


def _is_owned(home: Path) -> bool:
    """Whether the process that made a checkout still runs."""
    try:
        os.kill(int((home / OWNER).read_text()), 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _top(folder: Path) -> Path | None:
    top = _git(folder, "rev-parse", "--show-toplevel")
    return None if top is None else Path(top).resolve()


def _git(folder: Path, *words: str) -> str | None:
    """The output of git; None where it fails, or is not there."""
    command: Sequence[str] = ("git", "-C", str(folder), *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
