"""A file of the recording that grows while the program runs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class Stream:
    """Appends to ``path``, which it makes anew at the first write, and never fails the program that calls it.

    Unbuffered: a kill loses nothing, and a fork writes nothing a second time. A program may close our
    descriptor and get its number for a file of its own, so that each write looks whose it is (0.6 µs).
    """

    def __init__(self, path: Path) -> None:
        self.path, self.pid = path, os.getpid()
        self.descriptor: int | None = None
        self.identity: tuple[int, int] | None = None
        # why it ends before the program did: the disk is full, or gone. Nothing follows it
        self.failure: str | None = None

    def write(self, content: str | bytes) -> None:
        if self.failure is not None or os.getpid() != self.pid:
            return
        data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
        try:
            descriptor = self._opened()
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            self.failure = f"{self.path.name} is incomplete: {error.strerror or error}"

    def close(self) -> None:
        if self.descriptor is not None and self._is_ours(self.descriptor):
            with suppress(OSError):
                os.close(self.descriptor)
        self.descriptor = None

    def _opened(self) -> int:
        if self.descriptor is not None and self._is_ours(self.descriptor):
            return self.descriptor
        if self.identity is None:
            self.path.parent.mkdir(exist_ok=True)
        new = os.O_TRUNC | os.O_CREAT if self.identity is None else 0
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | new, 0o666)
        self.identity = _identity(self.descriptor)
        return self.descriptor

    def _is_ours(self, descriptor: int) -> bool:
        try:
            return _identity(descriptor) == self.identity
        except OSError:
            return False


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
