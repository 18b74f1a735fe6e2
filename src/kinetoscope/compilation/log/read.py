"""Read torch's structured compile log (what ``TORCH_TRACE`` writes).

A record is one header line, ``V1121 01:48:43.1 PID file:line] {json}``, and an optional payload: the lines
that follow it, each behind a tab; ``has_payload`` is the payload's md5. Checked on PyTorch 2.5 to 2.15.

Reading finds the records and checks every payload's md5 without copying the log into Python objects: a
payload is an offset and a length until it is read. Whatever cannot be read as it stands is counted,
never fatal.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, TypeVar

import msgspec

from kinetoscope.errors import InputError, TooLargeError
from kinetoscope.recording import plain_file
from kinetoscope.recording.manifest import UNREADABLE

Decoded = TypeVar("Decoded")

# A gzip file may unpack to anything: no compile log that anybody recorded comes near this, or packs so well.
MAX_UNPACKED_BYTES = 8 << 30
_RATIO, _SUSPECT = 100, 64 << 20  # the ratio is looked at from so many bytes on
_BLOCK = 4 << 20
_RESIDENT = 64 << 20  # bytes of a log that stay in memory while its records are found

# A literal newline first: the search then runs at memory speed.
RECORD_START = re.compile(rb"\n(?=[VDIWEC]\d{4} )")
FIRST_RECORD = re.compile(rb"[VDIWEC]\d{4} ")
KIND = re.compile(rb'\] \{"([^"]+)"')
CONTEXT = {"frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "has_payload", "rank", "stack"}


class ArtifactName(msgspec.Struct, frozen=True):
    name: str = ""


class HeaderContext(msgspec.Struct, frozen=True):
    """The keys that any header may have, whatever its record is."""

    frame_id: int | None = None
    frame_compile_id: int | None = None
    attempt: int | None = None
    compiled_autograd_id: int | None = None
    has_payload: str | None = None
    rank: int | None = None
    artifact: ArtifactName | None = None


_context = msgspec.json.Decoder(HeaderContext)


class LogRecord(msgspec.Struct, frozen=True):
    """One record; ``start`` and ``end`` frame its payload in the log, still behind tabs.

    ``kind`` is the header's first key; artifacts carry their name in ``artifact``. ``compile_id`` is how
    torch writes it: ``0/1``, ``!2/0/1`` under compiled autograd; None outside a compilation.
    """

    kind: str
    artifact: str
    compile_id: str | None
    attempt: int
    rank: int | None
    header: bytes
    start: int
    end: int


class Log(msgspec.Struct, frozen=True, eq=False):
    """One file of records, in the order they were written."""

    path: str
    data: bytes | mmap.mmap
    records: tuple[LogRecord, ...]
    damages: Mapping[str, int] = msgspec.field(default_factory=lambda: MappingProxyType({}))

    def payload(self, record: LogRecord) -> bytes:
        """The record's payload as torch gave it to the log."""
        return _untab(self.data[record.start : record.end])

    def text(self, record: LogRecord) -> str:
        return self.payload(record).decode("utf-8", "replace")

    def json(self, record: LogRecord, decoder: msgspec.json.Decoder[Decoded]) -> Decoded | None:
        """The payload decoded, or None where it is not the JSON that ``decoder`` expects."""
        try:
            return decoder.decode(self.payload(record))
        except UNREADABLE:
            return None


class LogText(msgspec.Struct, frozen=True):
    """A text that stays in its log until it is read."""

    log: Log
    record: LogRecord

    def read(self) -> str:
        return self.log.text(self.record)


def text_of(name: str, text: str) -> LogText:
    """A text that stands in no log, in the form of those that do."""
    data = b"\t" + text.encode().replace(b"\n", b"\n\t")
    record = LogRecord("artifact", name, None, 0, None, b"{}", 0, len(data))
    return LogText(Log(name, data, (record,)), record)


def read(path: Path) -> Log:
    """Read one log, plain or gzipped, whole or cut anywhere. Raises InputError where the file cannot be
    opened, TooLargeError where it unpacks past ``MAX_UNPACKED_BYTES``."""
    damages: Counter[str] = Counter()
    data = contents(path, damages)
    return Log(str(path), data, tuple(_records(data, damages)), MappingProxyType(dict(damages)))


def contents(path: Path, damages: Counter[str]) -> bytes | mmap.mmap:
    """A file of text, plain or gzipped, as far as it can be read. Raises what ``read`` does."""
    try:
        with plain_file.opened(path) as file:
            if file.read(2) == b"\x1f\x8b":
                file.seek(0)
                return _gunzip(path, file, damages)
            if not file.seek(0, 2):
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror or error}", where=str(path)) from error


def _gunzip(path: Path, packed: BinaryIO, damages: Counter[str]) -> bytes | mmap.mmap:
    """The log unpacked into a file without a name: its pages need not stay in memory."""
    with tempfile.TemporaryFile(prefix="kinetoscope-") as whole:
        for block in _unpacked(packed, damages):
            whole.write(block)
            size = whole.tell()
            if size > MAX_UNPACKED_BYTES or size > max(_SUSPECT, _RATIO * packed.tell()):
                raise TooLargeError(
                    f"the file unpacks to more than {size >> 20} MiB from {packed.tell() >> 10} KiB",
                    where=str(path),
                    hint="if it is a real one, unpack it first: gunzip",
                )
        whole.flush()
        return mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ) if whole.tell() else b""


def _unpacked(packed: BinaryIO, damages: Counter[str]) -> Iterator[bytes]:
    """The blocks of a gzip file, of one member or several; it ends where it is cut or corrupt."""
    member = zlib.decompressobj(wbits=31)
    pending, begun = b"", False
    while pending or (pending := packed.read(_BLOCK)):
        begun = True
        try:
            yield member.decompress(pending, _BLOCK)
        except zlib.error:
            damages["cut"] += 1
            return
        pending = member.unconsumed_tail
        if member.eof:
            pending = member.unused_data
            member, begun = zlib.decompressobj(wbits=31), False
    if begun:
        damages["cut"] += 1


def _records(data: bytes | mmap.mmap, damages: Counter[str]) -> Iterator[LogRecord]:
    size, let_go = len(data), 0
    for begin, following in pairwise(chain(_starts(data, damages), [size + 1])):
        if begin - let_go > _RESIDENT and isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            let_go = begin - begin % mmap.PAGESIZE
            data.madvise(mmap.MADV_DONTNEED, 0, let_go)  # read again from the file where it is needed
        end = following - 1
        stop = data.find(b"\n", begin, end)
        line = data[begin : end if stop < 0 else stop]
        kind = KIND.search(line)
        if kind is None:
            damages["foreign-line"] += 1
            continue
        header = line[kind.start() + 2 :]
        try:
            context = _context.decode(header)
            name = kind[1].decode()
            if name in CONTEXT:
                name = next(key for key in msgspec.json.decode(header) if key not in CONTEXT)
        except (*UNREADABLE, StopIteration):
            damages["cut" if end == size else "bad-json"] += 1
            continue
        start = end if stop < 0 else stop + 1
        last = end - 1 if end == size and end > start and data[end - 1 : end] == b"\n" else end
        if context.has_payload is not None:
            _check(data, start, last, context.has_payload, last_record=end == size, damages=damages)
        elif start < last:
            damages["foreign-line"] += data[start:last].count(b"\n") + 1
        yield LogRecord(
            name,
            context.artifact.name if context.artifact else "",
            _compile_id(context),
            context.attempt or 0,
            context.rank,
            header,
            start,
            last,
        )


def _starts(data: bytes | mmap.mmap, damages: Counter[str]) -> Iterator[int]:
    """Where records begin; lines before the first are counted."""
    found = chain(
        [0] if FIRST_RECORD.match(data) else [], (match.end() for match in RECORD_START.finditer(data))
    )
    first = next(found, None)
    if foreign := data[: len(data) if first is None else first].count(b"\n"):
        damages["foreign-line"] += foreign
    return iter(()) if first is None else chain([first], found)


def _check(
    data: bytes | mmap.mmap, start: int, end: int, md5: str, *, last_record: bool, damages: Counter[str]
) -> None:
    tabbed = data[start:end]
    if hashlib.md5(tabbed[1:].replace(b"\n\t", b"\n"), usedforsecurity=False).hexdigest() == md5:
        return
    # Whatever else writes to the same file lands between the payload's lines, without their tab.
    foreign = [line for line in tabbed.split(b"\n") if not line.startswith(b"\t")]
    if foreign and hashlib.md5(_untab(tabbed), usedforsecurity=False).hexdigest() == md5:
        damages["foreign-line"] += len(foreign)
    else:
        damages["cut" if last_record else "checksum"] += 1


def _untab(tabbed: bytes) -> bytes:
    if tabbed.count(b"\n") == tabbed.count(b"\n\t"):
        return tabbed[1:].replace(b"\n\t", b"\n")
    return b"\n".join(line[1:] for line in tabbed.split(b"\n") if line.startswith(b"\t"))


def _compile_id(context: HeaderContext) -> str | None:
    own = None if context.frame_id is None else f"{context.frame_id}/{context.frame_compile_id or 0}"
    if context.compiled_autograd_id is None:
        return own
    return f"!{context.compiled_autograd_id}" + (f"/{own}" if own else "")
