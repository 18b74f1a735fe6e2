"""Every library that unpacks gzip gives the same bytes as Python's own, from whole and from damaged files."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import pytest

from kinetoscope.trace.container import open_supply

LIBRARIES = ["isal", "zlib_ng"]
WORDS = random.Random(7).choices(["aten::mm", '{"ph": "X"}', "ts", "\n", "0.125"], k=400_000)
PLAIN = ('{"traceEvents": [' + " ".join(WORDS)).encode()
PACKED = gzip.compress(PLAIN, 6)
FILES = {
    "whole": PACKED,
    "stored": gzip.compress(PLAIN, 0),
    "two members": gzip.compress(PLAIN[:70_000]) + gzip.compress(PLAIN[70_000:]),
    "zeros after it": PACKED + b"\0" * 512,
    "junk after it": PACKED + b"junk",
    "truncated": PACKED[: len(PACKED) * 2 // 3],
    "corrupt": PACKED[: len(PACKED) // 2] + b"\xff" * 64 + PACKED[len(PACKED) // 2 + 64 :],
    "wrong checksum": PACKED[:-8] + bytes(8),
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
    path.write_bytes(FILES[file])
    expected = unpacked(path, monkeypatch, None)
    assert unpacked(path, monkeypatch, library) == expected
    if file not in ("truncated", "corrupt", "wrong checksum"):
        assert expected == PLAIN
    else:
        assert len(expected) > len(PLAIN) // 3
        assert PLAIN.startswith(expected[: len(PLAIN) // 3])
