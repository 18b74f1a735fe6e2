"""Snapshots that are small and ask for much: refused, or read in proportion to their bytes."""

from __future__ import annotations

import contextlib
import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from command import ROOT, kinetoscope, refused
from kinetoscope import cli
from kinetoscope.errors import InputError
from kinetoscope.snapshot.read import read
from kinetoscope.sources.run import load
from snapshots import frames

FIXTURES = ROOT / "tests" / "fixtures"
BLOCK: dict[str, Any] = {"address": 0, "size": 512, "requested_size": 5, "state": "active_allocated"}
SEGMENT: dict[str, Any] = {"device": 0, "address": 0, "total_size": 512, "stream": 0, "blocks": [BLOCK]}

ENTRY: dict[str, Any] = {"action": "alloc", "addr": 0, "size": 5, "stream": 0, "time_us": 1, "frames": []}


def written(folder: Path, *segments: dict[str, Any], **more: object) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": list(segments), "device_traces": [[]], **more}))
    return path


@pytest.mark.parametrize("name", ["total_size", "device", "address"])
@pytest.mark.parametrize("value", [-1, None, 1.5, 1 << 70, "x", True])
def test_a_segment_is_of_numbers_that_there_are(name: str, value: object, tmp_path: Path) -> None:
    path = written(tmp_path, {**SEGMENT, name: value})
    with pytest.raises(InputError):
        read(path)
    assert cli.main(["memory", str(path)]) == 3


@pytest.mark.parametrize("name", ["addr", "size", "stream", "time_us", "frames", "pool_id"])
@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 10**30])
def test_an_entry_is_of_numbers_that_there_are(name: str, value: int, tmp_path: Path) -> None:
    path = written(tmp_path, SEGMENT, device_traces=[[{**ENTRY, name: value}]])
    with pytest.raises(InputError):
        read(path)
    assert cli.main(["memory", str(path)]) == 3


def test_one_object_repeated_for_every_segment_is_refused(tmp_path: Path) -> None:
    assert len(read(written(tmp_path, SEGMENT)).segments) == 1
    with pytest.raises(InputError):
        read(written(tmp_path, *[SEGMENT] * 1000))
    with pytest.raises(InputError):
        read(written(tmp_path, {**SEGMENT, "blocks": [BLOCK] * 1000}))


def test_a_long_stack_is_compared_once(tmp_path: Path) -> None:
    """By identity: 2,000 blocks that share a list of 2,000 frames are four million comparisons else."""
    shared = frames(*(f"f{number}.py:{number + 1}:g" for number in range(2000)))
    blocks = [{**BLOCK, "frames": shared} for _ in range(2000)]
    found = read(written(tmp_path, {**SEGMENT, "total_size": 512 * 2000, "blocks": blocks}))
    assert len(found.stacks) == 2
    assert set(found.blocks["stack"]) == {1}


def test_one_input_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "cut.pickle"
    path.write_bytes(b"\x80\x04")
    assert cli.main(["memory", str(path)]) == 3


@pytest.mark.parametrize("name", ["snapshot.pickle.gz", "timeline.json.gz"])
def test_a_damaged_gzip_is_an_input_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(pickle.dumps({"segments": [SEGMENT] * 99, "device_traces": [[]]})))
    for at in range(11, len(packed), 3):
        changed = packed.copy()
        changed[at] ^= 0xFF
        (tmp_path / name).write_bytes(changed)
        with contextlib.suppress(InputError):
            load(tmp_path / name)


def test_where_nothing_but_an_unreadable_snapshot_was_named_no_report_is_made(tmp_path: Path) -> None:
    path = tmp_path / "cut.pickle.gz"
    path.write_bytes((FIXTURES / "h200_memory" / "full-failed.pickle.gz").read_bytes()[:20_000])
    for verb in ("report", "findings"):
        refused(kinetoscope(verb, path), 3, "cannot read the snapshot", str(path))


def test_next_to_a_trace_an_unreadable_snapshot_is_named(tmp_path: Path) -> None:
    trace = FIXTURES / "h200" / "mm_4096_warm_compile.json.gz"
    path = tmp_path / "cut.pickle.gz"
    path.write_bytes((FIXTURES / "h200_memory" / "full-failed.pickle.gz").read_bytes()[:20_000])
    done = kinetoscope("report", trace, path)
    assert done.returncode == 0
    assert "cut.pickle.gz was left out" in " ".join(done.stdout.split())
