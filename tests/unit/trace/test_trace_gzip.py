"""Every library that unpacks gzip gives the same bytes as Python's own, from whole and from damaged files."""

from __future__ import annotations

import gzip
import random
import sys
from functools import cache
from pathlib import Path

import pytest

from kinetoscope.trace.container import open_supply

LIBRARIES = ["isal", "zlib_ng"]
WORDS = random.Random(7).choices(["aten::mm", '{"ph": "X"}', "ts", "\n", "0.125"], k=400_000)
PLAIN = ('{"traceEvents": [' + " ".join(WORDS)).encode()
FILES = ["whole", "stored", "two members", "zeros", "junk", "truncated", "corrupt", "wrong checksum"]


@cache
def files() -> dict[str, bytes]:
    """Made where a library is here: to pack them takes more than a second."""
    packed = gzip.compress(PLAIN, 6)
    middle = len(packed) // 2
    return {
        "whole": packed,
        "stored": gzip.compress(PLAIN, 0),
        "two members": gzip.compress(PLAIN[:70_000]) + gzip.compress(PLAIN[70_000:]),
        "zeros": packed + b"\0" * 512,  # after it, as is the junk
        "junk": packed + b"junk",
        "truncated": packed[: len(packed) * 2 // 3],
        "corrupt": packed[:middle] + b"\xff" * 64 + packed[middle + 64 :],
        "wrong checksum": packed[:-8] + bytes(8),
    }


def unpacked(path: Path, monkeypatch: pytest.MonkeyPatch, library: str | None) -> bytes:
    with monkeypatch.context() as patch:
        for other in LIBRARIES:
            if other != library:
                patch.setitem(sys.modules, other, None)
        supply = open_supply(path)
        return supply.window(0, supply.end())


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_same_bytes_as_pythons_own(
    library: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(files()[file])
    expected = unpacked(path, monkeypatch, None)
    assert unpacked(path, monkeypatch, library) == expected
    if file not in ("truncated", "corrupt", "wrong checksum"):
        assert expected == PLAIN
    else:
        assert len(expected) > len(PLAIN) // 3
        assert PLAIN.startswith(expected[: len(PLAIN) // 3])
