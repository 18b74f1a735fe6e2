"""Steps written into a trace that has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinetoscope.analysis.time.phases import phases_of
from kinetoscope.capture.recorder.profiler import MarkedStep, annotate
from kinetoscope.trace.read import read
from traces import call, kernel

BASE = 1_790_000_000_000_000_000
STEPS = [
    MarkedStep(41, BASE + 1_000_000, BASE + 3_000_500, 7, 8),
    MarkedStep(42, BASE + 3_000_500, BASE + 5_000_000, 7, 8),
]
EVENTS = [
    call("cudaLaunchKernel", 1100.0, 5.0, 1),
    kernel("first", 1200.0, 800.0, 1),
    call("cudaLaunchKernel", 3200.0, 5.0, 2),
    kernel("second", 3300.0, 900.0, 2),
]


def exported(folder: Path, events: list[dict], base_first: bool) -> Path:
    """As Kineto exports a trace of CUDA activities alone; newer versions begin with the base, older end."""
    base = {"baseTimeNanoseconds": BASE}
    head, tail = (base, {}) if base_first else ({}, base)
    path = folder / "rank0.device.part.json"
    document = {"schemaVersion": 1, **head, "traceEvents": events, "traceName": "trace.json", **tail}
    path.write_text(json.dumps(document, indent=2))
    return path


@pytest.mark.parametrize("base_first", [True, False])
def test_an_annotated_trace_has_its_steps(tmp_path: Path, base_first: bool) -> None:
    path = tmp_path / "rank0.device.json"
    annotate(exported(tmp_path, EVENTS, base_first), STEPS, path)
    trace = read(path)
    assert trace.source.complete
    assert trace.steps["name"].to_list() == ["ProfilerStep#41", "ProfilerStep#42"]
    assert trace.steps["start_ns"].to_list() == [1_000_000, 3_000_500]
    assert trace.steps["duration_ns"].to_list() == [2_000_500, 1_999_500]
    assert trace.device_events["name"].to_list() == ["first", "second"]
    assert trace.device_events["step"].to_list() == [0, 1]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rank0.device.json", "rank0.device.part.json"]


@pytest.mark.parametrize(("events", "steps"), [([], STEPS), (EVENTS, []), ([], [])])
def test_the_annotated_trace_is_json_without_events_or_steps(
    tmp_path: Path, events: list[dict], steps: list[MarkedStep]
) -> None:
    path = tmp_path / "out.json"
    annotate(exported(tmp_path, events, True), steps, path)
    written = json.loads(path.read_text())["traceEvents"]
    assert [event["name"] for event in written] == [
        *[f"ProfilerStep#{step.number}" for step in steps],
        *[event["name"] for event in events],
    ]


def test_what_is_no_trace_is_refused_and_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="no events"):
        annotate(tmp_path / "other.json", STEPS, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_a_light_session_marks_by_the_wall_clock_and_exports_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from kinetoscope.capture.options import Options
    from kinetoscope.capture.recorder import profiler

    class Kineto:
        def __init__(self, activities: list[object], experimental_config: object) -> None:
            assert activities == [torch.profiler.ProfilerActivity.CUDA]
            self.calls: list[str] = []

        def prepare_trace(self) -> None:
            self.calls.append("prepare")

        def start_trace(self) -> None:
            self.calls.append("start")

        def stop_trace(self) -> None:
            self.calls.append("stop")

        def export_chrome_trace(self, path: str) -> None:
            assert Path(exported(tmp_path, EVENTS, True)) == Path(path)

    times = iter((BASE + 1_000_000, BASE + 3_000_000, BASE + 4_500_000))
    monkeypatch.setattr(torch.profiler, "profile", Kineto)
    monkeypatch.setattr(profiler.time, "time_ns", lambda: next(times))
    session = profiler.TorchDevice(Options()).session(kind="light", any_thread=False)
    session.prepare()
    session.start()
    session.mark(41)
    session.mark(42)
    session.mark(None)
    session.stop()
    session.export(tmp_path / "rank0.device.json")
    assert session.profile.calls == ["prepare", "start", "stop"]
    assert [file.name for file in tmp_path.iterdir()] == ["rank0.device.json"]
    steps = read(tmp_path / "rank0.device.json").steps
    assert steps["name"].to_list() == ["ProfilerStep#41", "ProfilerStep#42"]
    assert steps["duration_ns"].to_list() == [2_000_000, 1_500_000]


def test_a_process_without_a_gpu_has_neither_a_device_s_clock_nor_a_light_pass() -> None:
    torch = pytest.importorskip("torch")
    from kinetoscope.capture.options import Options
    from kinetoscope.capture.recorder.profiler import TorchDevice

    if torch.cuda.is_initialized():
        pytest.skip("this process uses a GPU")
    device = TorchDevice(Options())
    assert (device.has_clock(), device.mark(), device.has_light_pass()) == (False, None, False)


def test_a_part_stands_inside_its_step(tmp_path: Path) -> None:
    path = tmp_path / "rank0.device.json"
    part = MarkedStep(42, BASE + 3_100_000, BASE + 4_000_000, 7, 8, "evaluate")
    annotate(exported(tmp_path, EVENTS, base_first=True), [*STEPS, part], path)
    trace = read(path)
    assert trace.steps["name"].to_list() == ["ProfilerStep#41", "ProfilerStep#42"]
    assert phases_of(trace)["phase"].to_list() == ["step", "evaluate"]
