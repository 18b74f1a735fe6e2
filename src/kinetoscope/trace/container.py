"""What kind of file this is, and its bytes unpacked."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from kinetoscope.errors import InputError
from kinetoscope.trace.supply import FileSupply, StreamSupply

_BLOCK = 1 << 20


def open_supply(path: Path, progress: Callable[[int, int], None] | None = None) -> FileSupply | StreamSupply:
    try:
        with path.open("rb") as file:
            magic = file.read(16)
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror or error}", where=str(path)) from error
    if magic[:2] == b"\x1f\x8b":
        return StreamSupply(_gunzip(path))
    return FileSupply(path)


def _gunzip(path: Path) -> Iterator[bytes]:
    decoder = zlib.decompressobj(31)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            while block:
                data = decoder.decompress(block)
                if data:
                    yield data
                if not decoder.eof:
                    break
                block = decoder.unused_data
                decoder = zlib.decompressobj(31)
