"""Files that stand still: a pipe would be waited for, and a device never ends."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST = 256 << 20  # bytes of a document that is read whole


def opened(path: Path) -> BinaryIO:
    """A regular file, opened to be read. Raises OSError where none is there, or it is none."""
    return open(path, "rb", opener=_opener)


def content(path: Path, most: int = MOST) -> bytes:
    """All of a regular file. Raises OSError as ``opened`` does, or where it has more than ``most`` bytes."""
    with opened(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"the file is larger than {most >> 20} MiB", str(path))
    return data


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "this is a folder, pipe, socket or device, not a file", path)
    return descriptor
