"""The bytes of a trace by offset, whether they lie in a file or come out of a decompressor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from kinetoscope.trace.decoding.spans import FileSpan, Span


class FileSupply:
    """A plain file: spans are offsets, and who decodes them reads them."""

    span = 16 << 20  # bytes that make a good span here

    def __init__(self, path: Path, moved: Callable[[int], None] | None = None) -> None:
        self._moved = moved
        self._path = str(path)
        self._file = path.open("rb")
        self._size = os.fstat(self._file.fileno()).st_size

    def reaches(self, offset: int) -> bool:
        """Whether there are bytes at and after ``offset``."""
        return offset < self._size

    def window(self, start: int, length: int) -> bytes:
        """Up to ``length`` bytes at ``start``; fewer where they end."""
        self._file.seek(start)
        return self._file.read(length)

    def take(self, start: int, end: int) -> Span:
        """Bytes ``start`` to ``end`` to be decoded. What lies before them is gone: reading goes forwards."""
        if self._moved is not None:
            self._moved(start)
        return FileSpan(self._path, start, end)

    def end(self) -> int:
        """The offset after the last byte."""
        return self._size

    def close(self) -> None:
        self._file.close()


class StreamSupply:
    """Blocks that come one after the other; what was taken is let go."""

    span = 4 << 20

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._kept = bytearray()
        self._start = 0  # offset of the first byte kept
        self._ended = False

    def reaches(self, offset: int) -> bool:
        while not self._ended and self._start + len(self._kept) <= offset:
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            else:
                self._kept += block
        return self._start + len(self._kept) > offset

    def window(self, start: int, length: int) -> bytes:
        self.reaches(start + length - 1)
        with memoryview(self._kept) as kept:
            return bytes(kept[start - self._start : start - self._start + length])

    def take(self, start: int, end: int) -> Span:
        span = self.window(start, end - start)
        del self._kept[: end - self._start]
        self._start = end
        return span

    def end(self) -> int:
        while not self._ended:
            self.reaches(self._start + len(self._kept))
        return self._start + len(self._kept)

    def close(self) -> None:
        self._kept.clear()


Supply = FileSupply | StreamSupply
