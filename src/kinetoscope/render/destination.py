"""Where a result is written: refused before the work starts, not after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kinetoscope.errors import UsageError
from kinetoscope.recording.manifest import write_whole


def check(path: Path, inputs: Sequence[str]) -> Path:
    """``path``, if a file may be written there.

    Raises:
        UsageError: its folder is missing, it is a folder itself, or it is one of the inputs.
    """
    where = f"-o {path}"
    if not path.parent.is_dir():
        raise UsageError(
            "the folder to write into does not exist", where=where, mend=f"mkdir -p {path.parent}"
        )
    if path.is_dir():
        raise UsageError("a folder stands there", where=where, mend="name a file")
    if path.exists() and any(Path(item).exists() and path.samefile(item) for item in inputs):
        raise UsageError("that would overwrite the input", where=where, mend="write to another name")
    return path


def make_folder(path: Path) -> None:
    """Make the folder, if it is not there.

    Raises:
        UsageError: the folder that it belongs into is missing, or a file stands there.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(
            "the folder to write into does not exist", where=f"-o {path}", mend=f"mkdir -p {path.parent}"
        )
    if path.exists() and not path.is_dir():
        raise UsageError("a file stands there", where=f"-o {path}", mend="name a folder")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror or error}", where=f"-o {path}") from error


def write(path: Path, content: bytes) -> None:
    """Write the file beside itself and rename it: an interruption leaves what was there before.

    Raises:
        UsageError: the system does not let us.
    """
    try:
        if path.exists() and not path.is_file():  # a device or a pipe
            path.write_bytes(content)
        else:
            write_whole(path.resolve(), content)
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror or error}", where=f"-o {path}") from error
