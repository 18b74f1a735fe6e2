"""An earlier version of the program, beside the one at hand."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kinetoscope.errors import InputError, UsageError

GIT = "git:"


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
        """Python's search path with entries of this checkout where the other's stood: otherwise both
        versions would import the same modules."""
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
def checked_out(reference: str) -> Generator[Version]:
    """The version that ``git:REF`` or a folder names; what git checks out is removed afterwards.

    Raises:
        UsageError: there is no such folder, or no repository here.
        InputError: git does not know the reference.
    """
    here = Path.cwd().resolve()
    top = _top(here)
    if not reference.startswith(GIT):
        folder = Path(reference).resolve()
        if not folder.is_dir():
            raise UsageError(
                "there is no such folder", where=reference, mend="--base 'git:main', or a folder"
            )
        yield Version(reference, folder, _top(folder) or folder, top or here)
        return
    if top is None:
        raise UsageError(
            "this is no git repository", where=str(here), mend="--base FOLDER, of the other version"
        )
    with tempfile.TemporaryDirectory(prefix="kinetoscope-base-") as home:
        tree = Path(home).resolve() / "tree"
        commit = _git(here, "rev-parse", "--verify", "--quiet", f"{reference.removeprefix(GIT)}^{{commit}}")
        if commit is None:
            raise InputError(
                "git knows no such commit", where=reference, mend="a branch, tag or commit: git:main"
            )
        if _git(here, "worktree", "add", "--quiet", "--detach", str(tree), commit) is None:
            raise InputError("git cannot check it out", where=reference)
        try:
            yield Version(f"{reference} ({commit[:10]})", tree / here.relative_to(top), tree, top)
        finally:
            _git(here, "worktree", "remove", "--force", str(tree))


def _top(folder: Path) -> Path | None:
    found = _git(folder, "rev-parse", "--show-toplevel")
    return None if found is None else Path(found).resolve()


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None where it fails, or is not there."""
    command: Sequence[str] = ("git", "-C", str(folder), *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
