"""How CUDA graphs are captured is recorded, and which of them is replayed."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.capture import torch_private
from kinetoscope.capture.hooks.calls import EveryCallWatch
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder import cupti
from kinetoscope.capture.recorder import graphs as graph_captures
from kinetoscope.capture.recorder.graphs import GraphCaptures
from kinetoscope.capture.recorder.profiler import Captures, KinetoSession, Replay, TorchDevice, annotate


class Graph:
    """A graph as torch's class looks to who watches it."""

    def capture_begin(self) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> str:
        return "replayed"


class Session:
    """A session that writes an empty trace."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def prepare(self) -> None:
        self.log.append("prepare")

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")

    def export(self, path: Path) -> None:
        path.write_text('{"traceEvents": []}')


class Noted:
    """A session of another's, whose steps are written with it."""

    def __init__(self) -> None:
        self.steps: list[Any] = []


class Device:
    def __init__(self) -> None:
        self.captures, self.log = Captures(), list[str]()

    def session(self, *, kind: str, any_thread: bool) -> Session:
        assert (kind, any_thread) == ("capture", False)
        return Session(self.log)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(torch_private, "graph_classes", lambda: iter([Graph]))
    return Device()


def made(device: Any, folder: Path) -> GraphCaptures:
    return GraphCaptures(device, folder / "rank0.json")


def test_a_thread_that_ends_waits_for_the_capture_of_another_before_it_ends_its_recording() -> None:
    captures, capturing = Captures(), []

    class Session(KinetoSession):
        def __init__(self) -> None:
            self.graphs = captures

        def _stop(self) -> None:
            capturing.append(dict(captures.threads))

    captures.threads[1] = 1
    thread = threading.Thread(target=Session().thread_ends)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert not capturing
    del captures.threads[1]
    thread.join(5)
    assert capturing == [{}]


def test_a_capture_is_recorded_from_before_it_begins_until_it_has_ended(
    device: Device, tmp_path: Path
) -> None:
    recorded = made(device, tmp_path)
    device.captures.before, device.captures.after = recorded.begin, recorded.end
    device.captures.install()
    graph = Graph()
    try:
        graph.capture_begin()
        assert device.log == ["prepare", "start"]
        assert device.captures.threads
        graph.capture_end()
    finally:
        device.captures.remove()
    assert device.log == ["prepare", "start", "stop"]
    assert [path.name for path in recorded.paths] == ["rank0.capture0.json"]
    assert recorded.paths[0].is_file()
    assert not device.captures.threads
    graph.capture_begin()
    assert device.log == ["prepare", "start", "stop"]


def test_replays_are_noted_by_the_number_of_their_capture(device: Device, tmp_path: Path) -> None:
    recorded = made(device, tmp_path)
    first, second, other = Graph(), Graph(), Graph()
    for graph in (first, second):
        recorded.begin(graph)
        recorded.end(graph)
    device.captures.watch_replays()
    assert [graph.replay() for graph in (second, other, first, second)] == ["replayed"] * 4
    assert [replay.number for replay in device.captures.replays_seen()] == [1, 0, 1]
    first.replay()
    assert len(device.captures.replays) == 3
    device.captures.replaying = lambda: second  # its replay is what begins the recorded steps
    device.captures.watch_replays()
    device.captures.replay_begins()
    first.replay()
    assert [replay.number for replay in device.captures.replays_seen()] == [1, 0]


def test_replays_that_are_noted_are_still_seen_by_who_finds_the_steps(device: Device, tmp_path: Path) -> None:
    recorded, graph, ticks = made(device, tmp_path), Graph(), list[Any]()
    recorded.begin(graph)
    recorded.end(graph)
    steps = EveryCallWatch(Graph, "replay", ticks.append)
    steps.install()
    device.captures.watch_replays()
    graph.replay()
    steps.remove()  # as where Dynamo compiles meanwhile
    steps.install()
    graph.replay()
    assert [replay.number for replay in device.captures.replays_seen()] == [0, 0]
    graph.replay()
    steps.remove()
    assert graph.replay() == "replayed"
    assert ticks == [graph] * 3


class Attached:
    """A device whose CUPTI can be detached at any time, and a program that replays graphs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = pytest.importorskip("torch")
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch_private, "captures_now", lambda: False)
        monkeypatch.setattr(cupti, "detach", lambda: self.can_be)
        self.device, self.replays, self.can_be = TorchDevice(Options()), 0, True
        self.device.captures.replayed = lambda: self.replays

    def captured(self) -> None:
        self.device.captures._began(object())
        self.device.captures._ended(object())

    def replayed(self, *, traced: bool) -> None:
        self.replays += 1
        if traced:
            self.device.captures.tracing_ends()


def test_cupti_is_detached_after_replays_that_were_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Attached(monkeypatch)
    process.captured()
    process.replayed(traced=True)
    assert process.device.release()
    process.replayed(traced=False)  # it is gone
    process.replayed(traced=True)
    assert process.device.release()


@pytest.mark.parametrize("how", ["replayed", "not at once", "another's profiler"])
def test_cupti_stays_once_a_graph_may_have_been_replayed_untraced(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next replay of a graph of 800 kernels failed on an H100: "unspecified launch failure"."""
    process = Attached(monkeypatch)
    process.captured()
    process.replayed(traced=True)
    if how == "replayed":
        process.replayed(traced=False)
    elif how == "not at once":
        process.can_be = False
        assert not process.device.release()
        process.can_be = True
    else:
        process.device.captures.untraced = True
    assert not process.device.release()
    process.replayed(traced=True)
    assert not process.device.release()


def test_without_graphs_cupti_is_detached_whenever_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Attached(monkeypatch)
    process.can_be = False
    assert not process.device.release()
    process.can_be = True
    assert process.device.release()


def test_a_graph_that_is_gone_is_forgotten(device: Device, tmp_path: Path) -> None:
    recorded, graph = made(device, tmp_path), Graph()
    recorded.begin(graph)
    recorded.end(graph)
    del graph
    assert not recorded.numbers


def test_captures_of_the_first_steps_are_kept_with_them(device: Device, tmp_path: Path) -> None:
    recorded = made(device, tmp_path)
    graphs = [Graph(), Graph()]
    for graph in graphs:
        session = Noted()
        recorded.seen(graph, session)
        assert sys.gettrace() is not None
        work = len("what is captured")
        assert recorded.end(graph) is False
        assert sys.gettrace() is None
        assert any("test_capture_graphs.py(" in step.part for step in session.steps), work
    recorded.trace.write_text("first steps")
    recorded.keep_first()
    recorded.trace.write_text("steady steps")
    assert [path.read_text() for path in recorded.paths] == ["first steps"] * 2
    assert [recorded.numbers[graph] for graph in graphs] == [0, 1]


def test_no_more_than_a_bounded_time_is_spent_on_captures(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = made(device, tmp_path)
    monkeypatch.setattr(graph_captures, "MOST", 1)
    assert recorded.wanted()
    recorded.begin(Graph())
    recorded.end(Graph())
    assert not recorded.wanted()
    assert recorded.notes() == ["1 captures of CUDA graphs were not recorded: their kernels have no op"]


def test_captures_that_come_again_and_again_are_left_alone(device: Device, tmp_path: Path) -> None:
    replays, recorded = 0, made(device, tmp_path)
    device.captures.replayed = lambda: replays
    wanted = [recorded.wanted() for _ in range(40)]
    assert all(wanted)
    for _ in range(40):
        replays += 1
        wanted.append(recorded.wanted())
    assert wanted[40:] == [True] * graph_captures.ANEW + [False] * (40 - graph_captures.ANEW)


def test_replays_are_events_of_the_trace(tmp_path: Path) -> None:
    exported, trace = tmp_path / "exported.json", tmp_path / "trace.json"
    exported.write_text('{"baseTimeNanoseconds": 1000, "traceEvents": [\n {"ph": "X"}]}')
    annotate(exported, [Replay(3, 6000, 11, 12)], trace)
    event = json.loads(trace.read_text())["traceEvents"][0]
    assert (event["cat"], event["name"], event["ts"]) == ("graph_replay", "capture 3", 5.0)


def layer(x: Any) -> Any:
    return x @ x + 1


def test_a_capture_is_recorded_with_shapes_and_lines(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    session = TorchDevice(Options()).session(kind="capture", any_thread=False)
    x = torch.ones(3, 3)
    session.prepare()
    session.start()
    layer(x)
    session.stop()
    assert sys.gettrace() is None
    session.export(tmp_path / "capture.json")
    events = json.loads((tmp_path / "capture.json").read_text())["traceEvents"]
    (product,) = [one for one in events if one.get("name") == "aten::matmul"]
    assert product["args"]["Input Dims"] == [[3, 3], [3, 3]]
    around = [
        one["name"]
        for one in events
        if one.get("cat") == "python_function"
        and one["ts"] <= product["ts"] < one["ts"] + one["dur"]
        and "test_capture_graphs.py(" in one["name"]
    ]
    assert [name.rpartition(" ")[2] for name in around] == ["layer"]


def test_replayed_captures_lie_with_the_recording_and_number_its_replays(
    device: Device, tmp_path: Path
) -> None:
    recorded = made(device, tmp_path)
    for number in range(3):
        recorded.begin(graph := Graph())
        recorded.end(graph)
        recorded.paths[number].write_text(str(number))
    session: Any = Noted()
    session.replays = [Replay(number, 0, 1, 1) for number in (2, 0, 2)]
    (tmp_path / "001").mkdir()
    kept = recorded.kept_with(session, tmp_path / "001" / "rank0.json")
    recorded.removed()
    assert [path.read_text() for path in kept] == ["0", "2"]
    assert [replay.number for replay in session.replays] == [1, 0, 1]
    assert not any(path.exists() for path in recorded.paths)
