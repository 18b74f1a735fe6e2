"""The bytes of a trace by offset: which kind of file it is, read in place or unpacked."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, Protocol

from kinetoscope.errors import InputError, MissingDependencyError, NotATraceError, TooLargeError
from kinetoscope.trace.recognise import COMPRESSED, SQLITE, refuse_content, refuse_name

if TYPE_CHECKING:
    from kinetoscope.trace.decoding.spans import Span


class FileSupply:
    """A plain file: spans are offsets, and who decodes them reads them."""

    span = 16 << 20  # bytes that make a good span here

    def __init__(self, path: Path, moved: Callable[[int], None] | None = None) -> None:
        self._moved = moved
        self._path = str(path)
        self._file = path.open("rb")
        self._size = os.fstat(self._file.fileno()).st_size

    def reaches(self, offset: int) -> bool:
        return offset < self._size

    def window(self, start: int, length: int) -> bytes:
        """Up to ``length`` bytes at ``start``; fewer where they end."""
        self._file.seek(start)
        return self._file.read(length)

    def take(self, start: int, end: int) -> Span:
        """Bytes ``start`` to ``end`` to be decoded. What lies before them is gone: reading goes forwards."""
        if self._moved is not None:
            self._moved(start)
        from kinetoscope.trace.decoding.spans import FileSpan  # not loaded where tables are kept

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
Moved = Callable[[int], None]


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


_BLOCK = 1 << 20
_UNPACKED_BLOCK = 4 << 20
_SMALL_STEP = 64
LIMIT_VARIABLE = "KINETOSCOPE_MAX_UNPACKED"
LARGEST = 64 << 30  # bytes a compressed trace may unpack to
SUSPECT = 64 << 20  # bytes from which the ratio is looked at
_RATIO = 100  # Kineto's traces pack 10 to 40 times; a bomb packs 1000 times
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def open_supply(path: Path, moved: Moved | None = None) -> Supply:
    """The bytes of a plain, gzip or zstd file; ``moved`` is called with how far into the file on disk reading
    has got, in bytes. Raises InputError where it is not there, or a kind of file that is no Kineto trace, and
    what ``unpacked`` raises."""
    refuse_no_file(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4096)
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror or error}", where=str(path)) from error
    if not magic:
        raise NotATraceError(
            "the file is empty", where=str(path), hint="was the profiler stopped before it was exported?"
        )
    if (blocks := unpacked(path, magic, moved)) is None:
        refuse_name(path, magic)
        refuse_content(path, magic)
        return FileSupply(path, moved)
    supply = StreamSupply(blocks)
    refuse_content(path, supply.window(0, 4096))
    return supply


def unpacked(path: Path, start: bytes, moved: Moved | None = None) -> Iterator[bytes] | None:
    """Unpack a file that begins with ``start``: its blocks, or None where it is not packed. Raises InputError
    where it is packed with something else than gzip or zstd, MissingDependencyError where nothing here
    unpacks zstd, and TooLargeError, while reading, when it unpacks past the limit."""
    packed = next((name for name, magic in COMPRESSED.items() if start.startswith(magic)), None)
    if packed is None:
        return None
    unpack = {"gzip": _gunzip, "zstd": _unzstd}.get(packed)
    if unpack is None:
        raise InputError(f"the file is packed with {packed}", where=str(path), hint="unpack it first")
    return _limited(path, unpack, moved)


def is_database(path: Path) -> bool:
    """Whether it is an SQLite database, packed or not, as its first bytes say."""
    try:
        if not path.is_file():  # opening a pipe would wait
            return False
        with path.open("rb") as file:
            start = file.read(len(SQLITE))
        if start.startswith(tuple(COMPRESSED.values())):
            start = next(unpacked(path, start) or iter(()), b"")
        return start.startswith(SQLITE)
    except (OSError, InputError):
        return False


def refuse_no_file(path: Path) -> None:
    """Raises InputError for a folder, a pipe, a socket or a device, which cannot be read from any place (it
    may wait for ever), and NotATraceError for a folder with a report of another tool."""
    if path.is_dir():
        with suppress(OSError):
            for inside in sorted(path.iterdir()):
                refuse_name(inside, b"")
        raise InputError(
            "there is no trace, recording or compile log in this folder",
            where=str(path),
            hint="a trace's name ends in .json, .json.gz or .json.zst",
        )
    if path.exists() and not path.is_file():
        raise InputError(
            "this is a pipe, socket or device, not a file",
            where=str(path),
            hint="let kinetoscope read it as standard input: kinetoscope report - < IT",
        )


def unpacked_limit() -> int:
    """Bytes a compressed file may unpack to: KINETOSCOPE_MAX_UNPACKED (a number, or ``200G``) or 64 GiB."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip().upper().removesuffix("B")
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    return int(number) * unit if number.isdecimal() else LARGEST


def _limited(
    path: Path, unpack: Callable[[BinaryIO], Iterator[bytes]], moved: Moved | None
) -> Iterator[bytes]:
    limit, raised, total = unpacked_limit(), LIMIT_VARIABLE in os.environ, 0
    with path.open("rb") as file:
        for block in unpack(file):
            total += len(block)
            read = file.tell()
            if moved is not None:
                moved(read)
            if total > limit or (not raised and total > SUSPECT and total > _RATIO * read):
                raise TooLargeError(
                    f"the file unpacks to more than {total >> 20} MiB from {read >> 10} KiB: "
                    f"stopped at {'the limit' if total > limit else f'{total // read} times its size'}",
                    where=str(path),
                    hint=f"if it is a real trace, set {LIMIT_VARIABLE}={max(2 * total, LARGEST) >> 30}G",
                )
            yield block


def _gunzip(file: BinaryIO) -> Iterator[bytes]:
    """Unpack every member. A file that stops short or is corrupt just ends: its JSON is then truncated."""
    decompressobj = _fast_zlib().decompressobj
    decoder = decompressobj(31)
    pending, given = b"", 0
    while pending or (pending := file.read(_BLOCK)):
        try:
            data = decoder.decompress(pending, _UNPACKED_BLOCK)
        except MemoryError:
            raise
        except Exception:  # zlib.error, isal's and zlib-ng's have no common base
            yield from _gunzip_to_the_corruption(file, given)
            return
        if data:
            given += len(data)
            yield data
        pending = decoder.unconsumed_tail
        if decoder.eof:
            pending = decoder.unused_data.lstrip(b"\0")
            decoder = decompressobj(31)


def _gunzip_to_the_corruption(file: BinaryIO, given: int) -> Iterator[bytes]:
    """The bytes between those given and the first that cannot be unpacked: read again, in small steps."""
    file.seek(0)
    decoder, seen = zlib.decompressobj(31), 0
    while piece := file.read(_SMALL_STEP):
        try:
            data = decoder.decompress(piece)
        except zlib.error:
            return
        if seen + len(data) > given:
            yield data[max(0, given - seen) :]
        seen += len(data)
        if decoder.eof:
            file.seek(-len(decoder.unused_data), os.SEEK_CUR)
            decoder = zlib.decompressobj(31)


def _fast_zlib() -> ModuleType:
    """isal or zlib-ng where installed (`pip install kinetoscope[fast]`), else the standard library's."""
    for name in ("isal.isal_zlib", "zlib_ng.zlib_ng"):
        with suppress(ImportError):
            return import_module(name)
    return zlib


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    reader, errors = _zstd_reader(file)
    with suppress(*errors):
        while data := reader.read(_UNPACKED_BLOCK):
            yield data


def _zstd_reader(file: BinaryIO) -> tuple[Readable, tuple[type[Exception], ...]]:
    try:
        from compression import zstd  # Python 3.14

        return zstd.ZstdFile(file), (zstd.ZstdError, EOFError)
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError(
            "the file is packed with zstd, and nothing installed here unpacks it",
            where=str(getattr(file, "name", "")),
            hint="pip install zstandard",
        ) from None
    return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True), (zstandard.ZstdError,)
