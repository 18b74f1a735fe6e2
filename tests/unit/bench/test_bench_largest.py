"""The largest batch that fits: foreseen by a recording, tried with programs that run out of memory."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.bench.tune import largest, program
from kinetoscope.bench.tune.largest import Foreseen
from kinetoscope.bench.tune.trial import TrialRequest, TrialResult
from kinetoscope.cli import main
from kinetoscope.errors import ProgramError
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.manifest import Manifest, RankRecord

HELD = Path(__file__).resolve().parents[2] / "fixtures" / "h200_memory"
COUNTED = json.loads((HELD / "counted.json").read_text())
FORESEEN = Foreseen(recording="rec", batch=8, low=36, high=39, fixed_bytes=1000, scaling_bytes=800)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 300))
def test_the_search_ends_beside_the_truth_wherever_it_was_foreseen(truth: int, low: int, width: int) -> None:
    fits, too_large = largest.search(lambda batch: batch <= truth, low, low + width, most=100)
    assert (fits or 0) <= truth < (too_large or 0)
    assert (too_large or 0) - (fits or 0) <= max(1, (fits or 0) // largest.CLOSE)


def test_a_batch_that_was_foreseen_is_confirmed_by_the_next_one_and_what_lies_between() -> None:
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= 38

    assert largest.search(fits, 36, 39) == (38, 39)
    assert tried == [36, 40, 38, 39]
    tried.clear()
    assert largest.search(fits, 38, 38) == (38, 39)
    assert tried == [38, 39]
    tried.clear()
    assert largest.search(fits, 80, 81) == (38, 39)
    assert tried[:4] == [80, 78, 74, 66]
    assert largest.search(lambda batch: False, 3, 3) == (None, 1)
    assert largest.search(lambda batch: True, 3, 3, most=4) == (10, None)


@pytest.mark.parametrize(
    ("words", "batch"),
    [
        (["train.py", "--batch", "{batch}", "--fast"], 8),
        (["./train.py", "--batch", "{batch}", "--fast"], 8),
        (["train.py", "--batch", "{batch}"], None),  # of another length
        (["train.py", "--batch", "{batch}", "--slow"], None),
        (["other.py", "--batch", "{batch}", "--fast"], None),
        (["train.py", "{batch}", "8", "--fast"], None),  # no number stands there
    ],
)
def test_the_recorded_batch_is_read_off_its_command(words: list[str], batch: int | None) -> None:
    command = ("/usr/bin/python", "/home/me/train.py", "--batch", "8", "--fast")
    assert largest.recorded_batch(command, words) == batch
    assert largest.recorded_batch((), words) is None


def test_batches_are_read_off_a_part_of_a_word() -> None:
    assert largest.recorded_batch(("python", "-m", "it", "data.batch=16"), ["it", "data.batch={batch}"]) == 16


def launch_until(most: int, error: str = "OutOfMemoryError: CUDA out of memory.") -> program.RunTrial:
    def launch(order: TrialRequest, words: Sequence[str], extra: Mapping[str, str]) -> TrialResult:
        batch = int(words[1])
        assert order.setting.as_written
        assert order.setting.samples == batch
        if batch > most:
            return TrialResult(error=error, device="GPU")
        return TrialResult(device="GPU", peak_memory_bytes=1000 + 101 * batch, retries=int(batch == most))

    return launch


def test_what_was_foreseen_stands_beside_what_was_found() -> None:
    pytest.importorskip("torch")
    found = largest.largest_batch(FORESEEN, ["train.py", "{batch}"], launch=launch_until(38))
    assert (found.largest, found.too_large) == (38, 39)
    first = found.tries[0]
    assert (first.batch, first.fits, first.foreseen_bytes, first.peak_bytes) == (36, True, 4600, 4636)
    assert [one.batch for one in found.tries if one.retries] == [38]
    assert found.tries[1].peak_bytes is None


def test_a_failure_for_another_reason_is_no_want_of_memory() -> None:
    pytest.importorskip("torch")
    with pytest.raises(ProgramError, match="batch 40, and not for lack of memory: ValueError: odd"):
        largest.largest_batch(FORESEEN, ["train.py", "{batch}"], launch=launch_until(38, "ValueError: odd"))


def recording(folder: Path) -> Path:
    """The H200's training at batch 8, whose peak at 4 and 16 was foreseen to 0.1 %."""
    memory = folder / "recording" / "memory"
    memory.mkdir(parents=True)
    for name in ("pickle", "json"):
        (memory / f"rank0.{name}").write_bytes(gzip.decompress((HELD / f"train.{name}.gz").read_bytes()))
    record = RankRecord(rank=0, memory="memory/rank0.pickle", memory_held="memory/rank0.json")
    command = ("python", "/there/train.py", "--batch", "8")
    manifests.write(folder / "recording", Manifest(ranks=(record,), exit="ok", command=command))
    return folder / "recording"


def test_a_recording_foresees_the_batch_and_its_program_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    script, folder = tmp_path / "train.py", recording(tmp_path)
    script.touch()
    at_4, at_16 = (COUNTED["most"][f"train {batch}"]["requested"] for batch in (4, 16))
    device = json.loads((folder / "memory" / "rank0.json").read_text())["devices"][0]
    truth = int(4 + (device["total_bytes"] - at_4) / (at_16 - at_4) * 12)  # were every byte the program's

    def call(command: Sequence[str], *_: object) -> int:
        order = msgspec.json.decode(Path(command[3]).read_bytes(), type=TrialRequest)
        batch = int(command[-1])
        error = None if batch <= truth else "OutOfMemoryError: CUDA out of memory."
        found = TrialResult(peak_memory_bytes=batch, device="H200", error=error)
        Path(order.result).write_bytes(msgspec.json.encode(found))
        return 0

    monkeypatch.setattr(program, "_call", call)
    words = ["--fits", str(folder), "--out", str(folder), "--", str(script), "--batch", "{batch}"]
    assert main(["tune", *words]) == 0
    (kept,) = (folder / "bench").glob("largest-*.json")
    found = msgspec.json.decode(kept.read_bytes(), type=largest.LargestBatch)
    assert found.foreseen.batch == 8
    assert found.foreseen.peak_bytes(4) == pytest.approx(at_4, rel=1e-3)
    assert found.foreseen.peak_bytes(16) == pytest.approx(at_16, rel=1e-3)
    assert found.largest is not None
    assert found.largest <= truth <= found.largest * 1.01
    shown = capsys.readouterr().out
    assert f"Foreseen: batch {found.foreseen.low:,} to {found.foreseen.high:,}. Found: batch " in shown
    script.rename(script.with_name("other.py"))
    other = ["--", str(script.with_name("other.py")), "{batch}"]
    assert main(["tune", "--fits", str(folder), *other]) == 2
    assert "name it, a single number: --batch N" in capsys.readouterr().err
