"""However a file is damaged, the work it makes is in proportion to its length."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kinetoscope.errors import NotATraceError
from kinetoscope.trace.decoding import frame, salvage
from kinetoscope.trace.read import read
from traces import host

EVENTS = json.dumps([host(f"aten::mm{i}", 10 * i, 4) for i in range(4000)]).encode()
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a brace too many in every event": lambda data: data.replace(b'"dur":', b'"dur":{'),
    "a control character in every event": lambda data: data.replace(b'"pid"', b"\0pid"),
    "a quote too many in every event": lambda data: data.replace(b'"ts"', b'""ts"'),
    "a backslash in every event": lambda data: data.replace(b'"cat"', b'\\cat"'),
    "cut, then braces": lambda data: data[:-100] + b"}" * 300_000,
    "cut, then brackets": lambda data: data[:-100] + b'}],"' * 100_000,
    "cut, then events that begin": lambda data: data[:-100] + b'},{"ph":' * 50_000,
    "a whole trace, then braces": lambda data: data + b"}" * 300_000,
}


class Counting:
    """A json decoder that counts the characters it is given: what it raises costs as many."""

    def __init__(self, decoder: json.JSONDecoder) -> None:
        self._decoder, self.characters = decoder, 0

    def raw_decode(self, text: str, at: int = 0) -> tuple[object, int]:
        self.characters += len(text)
        return self._decoder.raw_decode(text, at)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    decoder = Counting(json.JSONDecoder(strict=False))
    monkeypatch.setattr(frame, "_JSON", decoder)
    return decoder


@pytest.mark.parametrize("name", DAMAGES)
def test_the_effort_of_reading_damaged_files_is_linear(name: str, counting: Counting, tmp_path: Path) -> None:
    data = DAMAGES[name](b'{"traceEvents": ' + EVENTS + b"}")
    path = tmp_path / "t.json"
    path.write_bytes(data)
    with suppress(NotATraceError):
        read(path)
    assert counting.characters < 200 * len(data)  # a KiB for every 8 bytes at worst; squared: 100,000


def test_repair_ends_where_nothing_can_be_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bytes] = []

    def repaired(piece: bytes, *_: object) -> None:
        tried.append(piece)

    monkeypatch.setattr(salvage, "_repaired", repaired)
    found = salvage.salvage(b'{"ph":{}},' * 50_000, salvage.Event, last=True)
    assert 0 < len(tried) < 2000
    assert found.damages["bad-event"] == len(found.events) > 40_000
