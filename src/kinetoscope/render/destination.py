"""Where a result is written: refused before the work starts, not after."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kinetoscope.errors import UsageError
from kinetoscope.recording.manifest import write_whole

# Formats that nothing of kinetoscope reads: of a folder that is read, such a file is no input.
NEVER_READ = {".html", ".md", ".sarif", ".pftrace"}


def check(path: Path, inputs: Sequence[str], option: str = "-o") -> Path:
    """``path``, if a file may be written there; ``option`` named it. Raises UsageError where its folder is
    missing, it is a folder itself, or it is one of the inputs or lies in one."""
    where = f"{option} {path}"
    if not path.parent.is_dir():
        raise UsageError(
            "the folder to write into does not exist", where=where, hint=f"mkdir -p {path.parent}"
        )
    if path.is_dir():
        raise UsageError("a folder stands there", where=where, hint="name a file")
    if path.exists() and any(_holds(Path(item), path) for item in inputs):
        raise UsageError("that would overwrite the input", where=where, hint="write to another name")
    return path


def _holds(item: Path, path: Path) -> bool:
    """Whether a file that is there is an input, or lies in one, by whichever of its names."""
    if not item.exists():
        return False
    if not item.is_dir():
        return path.samefile(item)
    if path.suffix.lower() in NEVER_READ and not path.is_symlink():
        return False
    if path.resolve().is_relative_to(item.resolve()):
        return True
    own = path.stat()
    if own.st_nlink == 1:
        return False
    files = (entry for folder, _, names in os.walk(item) for entry in (Path(folder, name) for name in names))
    return any(file.exists() and file.samefile(path) for file in files)


def make_folder(path: Path) -> None:
    """Make the folder, if it is not there. Raises UsageError where it cannot be made."""
    if not path.absolute().parent.is_dir():
        raise UsageError(
            "the folder to write into does not exist", where=f"-o {path}", hint=f"mkdir -p {path.parent}"
        )
    if path.exists() and not path.is_dir():
        raise UsageError("a file stands there", where=f"-o {path}", hint="name a folder")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror or error}", where=f"-o {path}") from error


def write(path: Path, content: bytes) -> None:
    """Write the file under another name and rename it, so that none is left in part. Raises UsageError."""
    try:
        if path.exists() and not path.is_file():  # a device or a pipe
            path.write_bytes(content)
        else:
            write_whole(path.resolve(), content)
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror or error}", where=f"-o {path}") from error
