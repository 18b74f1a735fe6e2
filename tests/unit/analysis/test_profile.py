"""What becomes one run: folders with other files in them, several recordings."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from kinetoscope.document.collect.report import build
from kinetoscope.errors import InputError, NotATraceError
from kinetoscope.recording import manifest as manifests
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord, StepTimings
from kinetoscope.sources.run import load

SMALL = Path(__file__).resolve().parents[2] / "fixtures" / "h200" / "mm_64_warm_eager.json.gz"


def test_what_is_no_trace_in_a_folder_is_left_out_and_said(tmp_path: Path) -> None:
    shutil.copy(SMALL, tmp_path / "b.json.gz")
    (tmp_path / "a.json").write_text('{"model": "llama"}')
    (tmp_path / "c.json").write_text("")
    (tmp_path / "notes.txt").write_text("not looked at")
    run = load(tmp_path)
    assert [Path(trace.source.path).name for trace in run.traces] == ["b.json.gz"]
    assert [sentence.split(" was left out: ")[0] for sentence in run.unread] == [
        str(tmp_path / "a.json"),
        str(tmp_path / "c.json"),
    ]


def test_a_folder_without_any_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"model": "llama"}')
    with pytest.raises(NotATraceError):
        load(tmp_path)


def test_a_file_that_was_named_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"model": "llama"}')
    with pytest.raises(NotATraceError):
        load(SMALL, tmp_path / "a.json")


def recording(folder: Path, rank: int, host: str) -> Path:
    (folder / "trace").mkdir(parents=True)
    shutil.copy(SMALL, folder / "trace" / f"rank{rank}.json.gz")
    steps = StepTimings(unprofiled_s=(0.01 * (rank + 1),))
    ranks = (RankRecord(rank=rank, trace=f"trace/rank{rank}.json.gz", steps=steps),)
    manifests.write(folder, Manifest(environment=Environment(host=host), ranks=ranks))
    return folder


def test_recordings_of_several_hosts_are_one_run(tmp_path: Path) -> None:
    """Every rank keeps its own step times; what is said once is said by the first."""
    one, two = recording(tmp_path / "one", 0, "alpha"), recording(tmp_path / "two", 1, "beta")
    for run in (load(one, two), load(tmp_path)):
        assert [trace.rank for trace in run.traces] == [0, 1]
        assert run.manifest is not None
        assert [record.steps.unprofiled_s for record in run.manifest.ranks] == [(0.01,), (0.02,)]
        assert run.manifest.environment.host == "alpha"
        assert run.folder == one


def test_recordings_of_two_runs_are_refused(tmp_path: Path) -> None:
    one, two = recording(tmp_path / "one", 0, "alpha"), recording(tmp_path / "two", 0, "alpha")
    with pytest.raises(InputError, match="two traces are of rank 0"):
        load(one, two)


def test_a_recording_that_lists_no_trace_opens_with_what_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    manifests.write(tmp_path, Manifest(ranks=(RankRecord(rank=0),), exit="signal: SIGKILL"))
    report = build(load(tmp_path))
    assert report.health.verdict != "good"
    assert "left no trace" in report.sources[0].notes[0]
    assert "SIGKILL" in report.sources[0].notes[0]
    with gzip.open(SMALL) as packed:
        (tmp_path / "trace" / "rank0.json").write_bytes(packed.read())
    assert len(build(load(tmp_path)).kernels) == 2
