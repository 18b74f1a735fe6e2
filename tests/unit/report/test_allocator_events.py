"""All that an allocator did, as the page gets it, against the pickles read by Python and played by hand."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from command import ROOT
from kinetoscope.document.collect import memory
from kinetoscope.document.page import AllocatorEvents
from kinetoscope.document.timeline import PackedColumn
from kinetoscope.sources.run import load

FIXTURES = sorted((ROOT / "tests" / "fixtures" / "h200_memory").glob("*.pickle.gz"))
TAKES, GIVES = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


def numbers(column: PackedColumn) -> list[int]:
    found, sum_so_far = list[int](), 0
    for row in range(column.length):
        stored = sum(column.data[plane * column.length + row] << 8 * plane for plane in range(column.planes))
        if column.deltas:
            sum_so_far += -((stored + 1) // 2) if stored % 2 else stored // 2
        found.append(sum_so_far if column.deltas else stored)
    return found


def columns(history: AllocatorEvents) -> dict[str, list[int]]:
    return {column.name.split()[-1]: numbers(column) for column in history.columns}


def opened(path: Path) -> dict[str, Any]:
    return pickle.loads(gzip.decompress(path.read_bytes()))


def backwards(snapshot: dict[str, Any], device: int, events: int) -> tuple[dict[int, int], dict[int, int]]:
    """What was given out (address: requested bytes) and had of the driver before the last so many events."""
    segments = [one for one in snapshot["segments"] if one["device"] == device]
    had = {one["address"]: one["total_size"] for one in segments}
    given = {
        block["address"]: block["requested_size"]
        for one in segments
        for block in one["blocks"]
        if block["state"] != "inactive"
    }
    for entry in reversed(snapshot["device_traces"][device][-events:]):
        address, size = entry.get("addr", 0), entry["size"]
        match entry["action"]:
            case "alloc":
                del given[address]
            case "free_completed":
                given[address] = size
            case action if action in TAKES:
                del had[address]
            case action if action in GIVES:
                had[address] = size
    return given, had


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_every_event_is_there_as_torch_wrote_it(path: Path) -> None:
    (history,) = memory.allocator_histories(load(path))
    snapshot, found = opened(path), columns(history)
    (entries,) = (trace for trace in snapshot["device_traces"] if trace)
    began = min(entry["time_us"] for entry in entries)
    assert len(found["action"]) == len(entries)
    assert history.left_out == 0
    for place, entry in enumerate(entries):
        assert history.actions[found["action"][place]] == entry["action"]
        assert found["address"][place] == entry.get("addr", entry.get("device_free"))
        assert found["bytes"][place] == entry["size"]
        assert history.streams[found["stream"][place]] == str(entry["stream"])
        assert found["time"][place] == entry["time_us"] - began
        lines = [history.frames[frame] for frame in history.stacks[found["stack"][place]]]
        if lines:
            (innermost, *_) = (
                f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in entry["frames"]
            )
            assert lines[0] == innermost
    given, had = backwards(snapshot, snapshot["device_traces"].index(entries), len(entries))
    assert {address: size for address, size, _ in history.blocks} == given
    assert {address: size for address, size, _ in history.segments} == had
    said = {
        name: value for name, value in snapshot["allocator_settings"].items() if not isinstance(value, dict)
    }
    assert history.settings == {name: str(value) for name, value in said.items()}


def test_of_a_long_history_the_last_events_are_there_and_what_was_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = FIXTURES[[path.stem for path in FIXTURES].index("full-failed.pickle")]
    monkeypatch.setattr(memory, "EVENTS", 700)
    (history,) = memory.allocator_histories(load(path))
    snapshot = opened(path)
    (device,) = (place for place, trace in enumerate(snapshot["device_traces"]) if trace)
    assert len(columns(history)["action"]) == 700
    assert history.left_out == len(snapshot["device_traces"][device]) - 700
    given, had = backwards(snapshot, device, 700)
    assert {address: size for address, size, _ in history.blocks} == given
    assert {address: size for address, size, _ in history.segments} == had


def test_segments_that_grow_by_pages_are_known_before_their_history(tmp_path: Path) -> None:
    """Of 64 MiB that were mapped before, the middle went, and 16 more came after the end."""
    base, mib = 1 << 40, 1 << 20

    def event(action: str, address: int, size: int, time_us: int) -> dict[str, Any]:
        frames = [{"name": "step", "filename": "/a/train.py", "line": 7}]
        return {
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us,
            "frames": frames,
        }  # fmt: skip

    def segment(address: int, size: int) -> dict[str, Any]:
        block = {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
        return {
            "device": 0, "address": address, "total_size": size, "allocated_size": 0, "active_size": 0,
            "requested_size": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
            "is_expandable": True, "frames": [], "blocks": [block],
        }  # fmt: skip

    snapshot = {
        "segments": [segment(base, 20 * mib), segment(base + 40 * mib, 40 * mib)],
        "device_traces": [
            [
                event("segment_unmap", base + 20 * mib, 20 * mib, 10),
                event("segment_map", base + 64 * mib, 16 * mib, 20),
            ]
        ],
        "allocator_settings": {"expandable_segments": True},
    }
    path = tmp_path / "grown.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    (history,) = memory.allocator_histories(load(path))
    pages = {
        page
        for address, size, _ in history.segments
        for page in range((address - base) // mib, (address - base + size) // mib)
    }
    assert pages == set(range(64))
    assert sum(size for _, size, _ in history.segments) == 64 * mib
