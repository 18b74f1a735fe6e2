"""Files in which nothing is a trace: every verb says so, with status 3 and no traceback."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from command import kinetoscope, refused

VERBS = [
    ("report",),
    ("kernels",),
    ("query",),
    ("export",),
]
UNUSABLE = {
    "empty.json": b"",
    "blank.json": b"  \n",
    "not-json.json": b"Name    Self CPU    CUDA time\naten::mm   3   4\n",
    "not-a-trace.json": b'{"model": "llama", "layers": 8}',
    "number.json": b"42",
    "empty-object.json": b"{}",
    "binary.json": bytes(range(256)) * 64,
    "elf": b"\x7fELF" + bytes(4000),
    "not-gzip.json.gz": b"this is not gzip",
    "empty.json.gz": gzip.compress(b""),
    "text.json.gz": gzip.compress(b"hello"),
    "cut.json.gz": gzip.compress(b"hello" * 1000)[:20],
}


def words(verb: tuple[str, ...], path: Path, tmp_path: Path) -> list[object]:
    extra = {"query": ["SELECT 1"], "export": ["--to", "perfetto", "-o", tmp_path / "out.json"]}
    return [*verb, path, *extra.get(verb[0], [])]


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_file_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(UNUSABLE[name])
    refused(kinetoscope("report", path), 3, str(path))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_every_verb_refuses_it_alike(tmp_path, verb):
    missing = tmp_path / "missing.json"
    refused(kinetoscope(*words(verb, missing, tmp_path)), 3, str(missing))
    nothing = tmp_path / "nothing.json"
    nothing.write_bytes(b'{"a": 1}')
    refused(kinetoscope(*words(verb, nothing, tmp_path)), 3, str(nothing))
    assert not (tmp_path / "out.json").exists()
