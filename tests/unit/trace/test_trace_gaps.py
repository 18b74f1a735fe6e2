"""A hole in a file is measured, in bytes and in time, and the verdict follows from it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kinetoscope.analysis.health.verdict import health
from kinetoscope.cli import main
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.trace import container, cutter
from traces import call, host, kernel, step

LAUNCHES = 3000


def whole() -> bytes:
    """3,000 launches in the order of time, one every 10 µs: 30 ms."""
    pairs = [
        event
        for i in range(LAUNCHES)
        for event in (
            host("aten::mm", 10 * i, 4),
            call("cudaLaunchKernel", 10 * i + 1, 2, i + 1),
            kernel("gemm", 10 * i + 5, 4, i + 1),
        )
    ]
    return json.dumps({"traceEvents": [step(1, 0, 10 * LAUNCHES), *pairs]}).encode()


def zeroed(data: bytes, start: float, end: float) -> bytes:
    first, last = int(start * len(data)), int(end * len(data))
    return data[:first] + b"\0" * (last - first) + data[last:]


def opened(folder: Path, data: bytes, suffix: str = ".json") -> LoadedRun:
    path = folder / f"trace{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    return load(path)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("small", [False, True])
def test_the_middle_third_zeroed(
    tmp_path: Path, suffix: str, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:  # the hole is longer than what is looked at in one piece
        monkeypatch.setattr(container.FileSupply, "span", 8192)
        monkeypatch.setattr(container.StreamSupply, "span", 8192)
        monkeypatch.setattr(cutter, "TAIL", 2048)
        monkeypatch.setattr(cutter, "_LONGEST_EVENT", 65536)
    run = opened(tmp_path, zeroed(whole(), 1 / 3, 2 / 3), suffix)
    source = run.traces[0].source
    assert source.lost_share == pytest.approx(1 / 3, abs=0.002)
    assert source.lost_ns == pytest.approx(10e6, rel=0.02)
    (note,) = [note for note in health(run).notes if note.code == "unreadable-bytes"]
    assert (health(run).verdict, note.gravity, source.complete) == ("unreliable", "unreliable", False)
    assert "33.4% of the file" in note.text
    assert " ms of the recording" in note.text


@pytest.mark.parametrize(("part", "verdict"), [(0.0001, "good"), (0.01, "degraded"), (0.2, "unreliable")])
def test_the_verdict_follows_from_how_much_is_gone(tmp_path: Path, part: float, verdict: str) -> None:
    assert health(opened(tmp_path, zeroed(whole(), 0.5, 0.5 + part))).verdict == verdict


def test_events_written_kind_by_kind(tmp_path: Path) -> None:
    """All ops, then all calls, then all kernels, as Kineto has it: the calls are gone, all of the 30 ms."""
    document = json.loads(whole())
    kinds = ("user_annotation", "cpu_op", "cuda_runtime", "kernel")
    events = document["traceEvents"]
    document["traceEvents"] = [event for kind in kinds for event in events if event["cat"] == kind]
    source = opened(tmp_path, zeroed(json.dumps(document).encode(), 0.4, 0.6)).traces[0].source
    assert source.lost_ns > 10e6


def test_a_whole_file_lost_nothing(tmp_path: Path) -> None:
    run = opened(tmp_path, whole())
    assert (run.traces[0].source.lost_share, run.traces[0].source.lost_ns) == (0.0, 0)
    assert health(run).verdict == "good"


@pytest.mark.parametrize("correlation", [None, 7])
def test_launches_that_cannot_be_told_apart(tmp_path: Path, correlation: int | None) -> None:
    document = json.loads(whole())
    for event in document["traceEvents"]:
        if event["args"].pop("correlation", None) is not None and correlation is not None:
            event["args"]["correlation"] = correlation
    assert health(opened(tmp_path, json.dumps(document).encode())).verdict == "unreliable"


def test_figures_of_a_part_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(zeroed(whole(), 1 / 3, 2 / 3))
    for verb in ("report", "kernels", "findings"):
        assert main([verb, str(path)]) == 0
        shown = capsys.readouterr()
        assert "is incomplete, and all figures are of what is left" in shown.err
        assert verb != "report" or "Of what is left of the recording" in " ".join(shown.out.split())
