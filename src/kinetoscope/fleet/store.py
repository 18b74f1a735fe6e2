"""Parts as bytes and files: tens of kilobytes a rank, enough to report without the traces."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec
import polars as pl
from msgspec.structs import replace

from kinetoscope import __version__
from kinetoscope.analysis.collectives.recorded import REPEATED
from kinetoscope.analysis.ranks.parts import (
    COMPUTED,
    KERNEL_TIMES,
    OVERLAPPED,
    PARTED,
    STEPS,
    RankFacts,
    RankPart,
    renumbered,
)
from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file
from kinetoscope.recording.manifest import write_whole
from kinetoscope.sources.paths import PART, TraceFile, file_system, is_remote
from kinetoscope.trace.schema import DType

FORMAT = 8
LIKE_A_URL = re.compile(r"^([a-z][a-z0-9+.-]+:)/*")  # a letter and a colon are a drive
LARGEST = 1 << 30  # bytes of a part, and of its tables unpacked
_UNUSED_S = 30 * 86400  # after which a part in the user's cache goes
_TABLES = {
    "collectives": PARTED,
    "kernels": KERNEL_TIMES,
    "steps": STEPS,
    "overlapped": OVERLAPPED,
    "computed": COMPUTED,
}
_EMPTY = {name: pl.DataFrame(schema=columns) for name, columns in _TABLES.items()}
_SCHEMAS = {name: table.schema for name, table in _EMPTY.items()}


_RATIO = 1000  # times that a table may unpack to: deflate's most is 1032, of zeros alone
_UNREADABLE = (
    msgspec.MsgspecError, pl.exceptions.PolarsError, pl.exceptions.PanicException,
    zlib.error, KeyError, OSError, ValueError, OverflowError, MemoryError,
)  # fmt: skip


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    facts: RankFacts
    tables: dict[str, bytes]


def encode(part: RankPart) -> bytes:
    tables = {name: _packed(getattr(part, name)) for name in _TABLES}
    return msgspec.msgpack.encode(_Stored(facts=part.facts, tables=tables))


def decode(data: bytes, where: str) -> RankPart:
    """A part from its bytes. Raises InputError where the bytes are no part, or one of another version."""
    other_version = InputError("the part is of another version", where=where, hint="map its trace again")
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
        if stored.format != FORMAT:
            raise other_version
        tables = {name: _table(stored.tables[name], columns) for name, columns in _TABLES.items()}
    except _UNREADABLE as error:
        raise InputError(
            "it is not a part, or half of one", where=where, hint="map its trace again"
        ) from error
    if any(tables[name].schema != columns for name, columns in _SCHEMAS.items()):
        raise other_version
    return RankPart(stored.facts, **tables)


class Spool:
    """Packed parts on disk, in a file without a name: among tables that come and go they would leave holes in
    memory, of twice their size, which no other table fits into."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def laid_by(self, part: PackedPart) -> PackedPart:
        """The part without its bytes, read again when unpacked; itself where there is no room."""
        try:
            if self._file is None:
                # Unbuffered: what does not fit must not be tried again at the next reading.
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it goes with this
            begins = self._file.seek(0, os.SEEK_END)
            written = self._file.write(part.packed)
        except OSError:
            return part
        length = len(part.packed)
        return replace(part, packed=b"", spooled=(self, begins, length)) if written == length else part

    def read(self, begins: int, length: int) -> bytes:
        assert self._file is not None
        self._file.seek(begins)
        return self._file.read(length)


class PackedPart(RankPart, frozen=True, eq=False):
    """A part of which all tables but ``steps`` are packed as yet, in a fifth of their memory or on disk."""

    overlapped: pl.DataFrame = msgspec.field(default_factory=lambda: _EMPTY["overlapped"])
    computed: pl.DataFrame = msgspec.field(default_factory=lambda: _EMPTY["computed"])
    packed: bytes = b""
    spooled: tuple[Spool, int, int] | None = None

    def unpacked(self) -> RankPart:
        """The whole part, with the facts that this one has."""
        spool, *where = self.spooled or (None,)
        whole = decode(spool.read(*where) if spool is not None else self.packed, self.facts.path)
        whole = whole if whole.facts.rank == self.facts.rank else renumbered(whole, self.facts.rank)
        return replace(whole, facts=self.facts)


def packed(data: bytes, where: str) -> PackedPart:
    """A part to be unpacked later. Raises InputError for bytes that are none of this version."""
    whole = decode(data, where)
    return PackedPart(whole.facts, _EMPTY["collectives"], _EMPTY["kernels"], whole.steps, packed=data)


def _table(data: bytes, columns: Mapping[str, DType]) -> pl.DataFrame:
    table = pl.read_ipc_stream(io.BytesIO(_unpacked(data)))
    return table.cast({name: dtype for name, dtype in columns.items() if dtype == REPEATED})


def _unpacked(data: bytes) -> bytes:
    """Raises ValueError where the data unpacks to more than a part has."""
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(data, min(LARGEST, _RATIO * len(data)))
    if not unpacker.eof:
        raise ValueError("it is cut, or unpacks to more than any part would")
    return unpacked


def _packed(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    # The file format takes ten times as long, either way. The oldest layout has its strings in the order of
    # the rows: the newer one's bytes differ by the threads that wrote them, codes by what was read before.
    table.cast({REPEATED: pl.String}).write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    return zlib.compress(buffer.getvalue(), 1)  # a quarter of the time of 6, and a tenth larger


class Store:
    """Parts in a folder or a bucket, by the trace they are of and this version of what makes them. Raises
    InputError where the folder cannot be made, or the bucket cannot be reached, and MissingDependencyError
    where a bucket needs a library that is not installed."""

    def __init__(self, place: Path | str) -> None:
        self._place = str(place)
        self._is_remote = is_remote(self._place)
        if self._is_remote:
            with file_system(self._place):
                return
        if (typed := LIKE_A_URL.match(self._place)) is not None:
            raise InputError(
                "this is no folder, and a bucket's address has two slashes",
                where=self._place,
                hint=f"--parts {typed[1]}//{self._place[typed.end() :]}",
            )
        try:
            Path(place).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"parts cannot be kept there: {error.strerror or error}", where=self._place
            ) from error

    def path(self, trace: TraceFile) -> str:
        key = f"{trace.url} {trace.rank} {trace.mark} {__version__} {FORMAT}"
        digest = hashlib.blake2b(os.fsencode(key), digest_size=10).hexdigest()
        rank = "" if trace.rank is None else f"rank{trace.rank}-"
        return f"{self._place.rstrip('/')}/{rank}{digest}{PART}"

    def recall(self, trace: TraceFile) -> bytes | None:
        """The bytes of the part of this very file, if it was kept; they may be no part any more."""
        path = self.path(trace)
        try:
            found = content(path)
            if not self._is_remote:
                os.utime(path)
        except (OSError, InputError):
            return None
        return found

    def keep(self, trace: TraceFile, data: bytes) -> None:
        """Write a part, all of it or nothing."""
        if not self._is_remote:
            write_whole(Path(self.path(trace)), data)
            return
        with file_system(self.path(trace)) as (system, path):
            system.pipe_file(path, data)

    def forget_unused(self) -> None:
        """Remove parts that were not used for a month, from a folder."""
        for path in Path(self._place).glob(f"*{PART}"):
            if path.stat().st_mtime < time.time() - _UNUSED_S:
                path.unlink(missing_ok=True)


def content(url: str) -> bytes:
    """The bytes of a part, wherever it is. Raises InputError where it cannot be read."""
    if is_remote(url):
        with file_system(url) as (system, path):
            return system.cat_file(path)
    try:
        return plain_file.content(Path(url), LARGEST)
    except OSError as error:
        raise InputError(f"it cannot be read: {error.strerror or error}", where=url) from error
