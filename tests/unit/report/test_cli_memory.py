"""``kinetoscope memory``: of a snapshot, of a recording, and of what has none."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

import traces
from command import ROOT
from kinetoscope.cli import main
from kinetoscope.document import Fits
from kinetoscope.document.collect.memory import peaks
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.manifest import Manifest, RankRecord
from kinetoscope.recording.memory import DeviceMemory, Held, HeldTensor
from kinetoscope.sources.run import load
from kinetoscope.views import memory
from report_sample import host_only
from snapshots import MAIN, MIB, OF_LAYER, Allocator, Training, dump, frames


def recording(folder: Path) -> Path:
    """A recording of a training loop that leaks, with what the program says, and of an allocation that
    failed in it."""
    training = Training(leaks=700_000)
    memory = folder / "recording" / "memory"
    memory.mkdir(parents=True)
    dump(memory / "rank0.pickle", training.allocator)
    counts = training.allocator.counts()
    device = DeviceMemory(
        device=0,
        requested_bytes=counts["requested"],
        reserved_bytes=counts["reserved"],
        free_bytes=1 << 30,
        retries=2,
        peak_requested_bytes=1 << 29,
        total_bytes=2 << 30,
    )
    held = Held(
        boundaries_ns=tuple(training.boundaries),
        tensors=tuple(HeldTensor(**one) for one in training.tensors),  # type: ignore[arg-type]
        devices=(device,),
    )
    (memory / "rank0.json").write_bytes(msgspec.json.encode(held))
    training.allocator.fail(5 << 30, frames(*OF_LAYER))
    dump(memory / "rank0.oom.pickle", training.allocator)
    failed = msgspec.structs.replace(held, failed_bytes=5 << 30)
    (memory / "rank0.oom.json").write_bytes(msgspec.json.encode(failed))
    record = RankRecord(
        rank=0,
        memory="memory/rank0.pickle",
        memory_held="memory/rank0.json",
        oom="memory/rank0.oom.pickle",
        oom_held="memory/rank0.oom.json",
    )
    manifests.write(folder / "recording", Manifest(ranks=(record,), exit="ok"))
    return folder / "recording"


def test_a_recording_s_peak_is_split_and_every_byte_has_an_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["memory", str(recording(tmp_path)), "--json"]) == 0
    steps, failure = json.loads(capsys.readouterr().out)["peaks"]
    reserved = Training(leaks=700_000).allocator.counts()["reserved"]
    for peak in (steps, failure):
        assert sum(part["bytes"] for part in peak["parts"]) == peak["reserved_bytes"]
        assert sum(row["bytes"] for row in peak["holders"]) == peak["requested_bytes"]
        assert all(len(sample["bytes"]) == len(peak["roles"]) for sample in peak["over_time"])
        assert peak["outside_bytes"] == (1 << 30) - reserved
        assert peak["stacks"][0] == []
        assert {block["stack"] for block in peak["blocks"]} == set(range(len(peak["stacks"]))) | {0}
        assert peak["traced_us"] is None
        assert "2 allocations had room only once" in peak["notes"][0]
    assert "has allocated more, 537 MB" in steps["notes"][1]
    assert len(failure["notes"]) == 1
    assert (steps["moment"], steps["failed_bytes"]) == ("recorded steps", None)
    assert (failure["moment"], failure["failed_bytes"]) == ("out of memory", 5 << 30)
    assert failure["failed_stack"][0] == OF_LAYER[0].rpartition(":")[0] + " forward"
    assert (steps["failed_by"], steps["failed_stack"]) == (None, [])
    assert steps["growth"][0]["bytes_per_step"] == 700_000
    assert steps["fits"]["low"] <= steps["fits"]["high"]


def test_the_page_names_parts_owners_growth_and_what_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = str(recording(tmp_path))
    assert main(["memory", folder, "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    for words in ("activation", "model.py:33", "+700 kB per step", "times the recorded batch", "owners more"):
        assert words in shown
    assert "which requested 5.37 GB more in linear at model.py:33" in " ".join(shown.split())
    assert main(["findings", folder]) == 0
    assert "700 kB more are kept with every step" in capsys.readouterr().out


def test_a_snapshot_that_is_damaged_is_said_so_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = recording(tmp_path)
    (folder / "memory/rank0.oom.pickle").write_bytes(b"\x80\x04cos\nsystem\n.")
    assert main(["memory", str(folder), "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert len(listing["peaks"]) == 1
    assert "more than plain data" in listing["unread"][0]


def test_what_was_given_back_to_the_driver_is_shown_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    allocator = Allocator(room=40 * MIB)
    for size in (20, 30, 40):
        allocator.free(allocator.alloc(size * MIB, frames("/home/u/train.py:60:loss", *MAIN)))
    path = dump(tmp_path / "x.pickle", allocator)
    assert main(["memory", str(path), "--json"]) == 0
    (peak,) = json.loads(capsys.readouterr().out)["peaks"]
    assert peak["given_back"] == [
        {"cause": "room", "line": "train.py:60", "times": 2, "steps": 0, "segments": 2, "bytes": 50 * MIB,
         "again_bytes": 70 * MIB}
    ]  # fmt: skip
    assert main(["memory", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 × 52.4 MB train.py:60 for room that an allocation needed; 73.4 MB taken again" in shown


def test_what_holds_no_memory_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [traces.step(1, 0, 100)]}))
    assert main(["memory", str(path)]) == 3
    assert "no device memory was recorded" in capsys.readouterr().err


def test_a_report_begins_with_the_memory_that_ran_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(recording(tmp_path))]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "It ran out of memory: 5.37 GB could not be had in linear at model.py:33 where" in printed
    assert printed.index("kinetoscope memory ") < printed.index("-o report.html")


@pytest.mark.parametrize(
    ("reserved", "outside", "words"),
    [
        (70 << 30, 1 << 30, ""),
        (20 << 30, 1 << 30, " The device has 85.9 GB: the program is limited to a part of it."),
        (50 << 30, 29 << 30, " Of the device 31.1 GB are allocated outside of the program's allocator."),
    ],
)
def test_why_there_was_no_more_is_said_where_it_is_not_the_program(
    reserved: int, outside: int, words: str, tmp_path: Path
):
    (peak, *_) = peaks(load(recording(tmp_path))).peaks
    peak = msgspec.structs.replace(
        peak,
        failed_bytes=10 << 30,
        reserved_bytes=reserved,
        outside_bytes=outside,
        total_bytes=80 << 30,
    )
    report = msgspec.structs.replace(host_only(), memory_peaks=[peak])
    assert memory.ran_out(report).endswith(f"B.{words}")


def test_how_much_fits_is_said_in_two_digits():
    room = Fits(low=30984.6, high=39553.1, fixed_bytes=1, scaling_bytes=1, room_bytes=1)
    assert memory.fits(room).startswith("more than 100 times the recorded batch")
    room = msgspec.structs.replace(room, low=4.51, high=4.9)
    assert memory.fits(room).startswith("4.5 to 4.9 times")
    assert memory.fits(msgspec.structs.replace(room, high=4.52)).startswith("4.5 times")


def test_a_failed_allocation_is_answered_on_the_first_screen(capsys: pytest.CaptureFixture[str]):
    assert main(["memory", str(ROOT / "tests" / "fixtures" / "h200_memory" / "full-failed.pickle.gz")]) == 0
    page = capsys.readouterr().out
    heads = ["when the allocation failed", "What would free it", "What fits", "What it was", "Who had it"]
    places = [page.index(head) for head in heads]
    assert places == sorted(places)
    assert page.count("What fits") == 1
    assert page[: places[-1]].count("\n") <= 36


def test_what_would_free_memory_stands_first(capsys: pytest.CaptureFixture[str]):
    snapshot = str(ROOT / "tests" / "fixtures" / "h200_memory" / "leak.pickle.gz")
    assert main(["memory", snapshot]) == 0
    page = capsys.readouterr().out
    assert page.index("What would free it") < page.index("What it was")
    assert "memory.py:88" in page.split("What it was")[0]
    assert main(["memory", snapshot, "--json"]) == 0
    (frees,) = json.loads(capsys.readouterr().out)["frees"]
    assert frees["rule"] == "float32-logits"
    bar = next(line for line in page.splitlines() if "▒" in line)
    assert len(set(bar.strip())) > 2, "parts are told apart without colours"


def test_a_report_of_a_bare_snapshot_begins_with_its_memory(capsys: pytest.CaptureFixture[str]):
    home = ROOT / "tests" / "fixtures" / "h200_memory"
    first: list[str] = []
    for name in ("train", "full-failed"):
        assert main(["report", str(home / f"{name}.pickle.gz")]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "The recording" not in printed
        first.append(printed)
    assert "GPU 0: 3.15 GB allocated of 3.46 GB reserved" in first[0]
    assert "largest part: activation, 1.72 GB (524 MB at memory.py:89, 524 MB at memory.py:88)" in first[0]
    assert "It ran out of memory: 2.62 GB could not be had in autograd where 11.6 GB" in first[1]
    assert "The device had 131 GB free: the program is limited to a part of it." in first[1]


def test_how_to_record_with_stacks_is_said_where_there_are_none(tmp_path: Path):
    allocator = Allocator()
    allocator.alloc(MIB)
    (peak,) = peaks(load(dump(tmp_path / "x.pickle", allocator))).peaks
    assert any("_record_memory_history(stacks='python')" in note for note in peak.notes)


def test_neighbours_in_the_bar_of_all_parts_differ_without_colours(capsys: pytest.CaptureFixture[str]):
    for path in sorted((ROOT / "tests" / "fixtures" / "h200_memory").glob("*.pickle.gz")):
        assert main(["memory", str(path)]) == 0
        page = capsys.readouterr().out.splitlines()
        bar = next(line.strip() for line in page if set(line.strip()) <= set("█▒▓░") and line.strip())
        listed = [line[0] for line in page if line[:1] in "█▒▓░" and line[1:2] == " "]
        assert [glyph for glyph, _ in groupby(bar)] == listed


def test_a_report_of_a_snapshot_is_of_memory_and_takes_it_for_no_flight_recorder_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    allocator = Allocator(room=40 * MIB)
    allocator.alloc(20 * MIB, frames("/home/u/train.py:60:loss", *MAIN))
    path = dump(tmp_path / "x.pickle", allocator)
    assert path.read_bytes()[:64].count(b"segments")  # as torch's own begin
    assert main(["report", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["memory_peaks"]) == 1
