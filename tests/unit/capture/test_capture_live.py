"""What waits to be recorded: who may ask, and what is not a request."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from kinetoscope.capture import torch_private
from kinetoscope.capture.live import batches, channel
from kinetoscope.capture.live import listener as live_listener
from kinetoscope.capture.live import recording as live_recording
from kinetoscope.capture.live.channel import Greeting, LiveRequest
from kinetoscope.capture.live.listener import Listener
from kinetoscope.capture.live.recording import LiveRecording, ServedSession
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder import graphs
from kinetoscope.capture.recorder.profiler import Replay, TorchDevice
from kinetoscope.capture.recorder.unlocked import unlocked
from kinetoscope.trace.engines import EngineStep, engine_step

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@pytest.fixture
def listener(tmp_path: Path):
    pytest.importorskip("torch")
    waiting = Listener(tmp_path, Options(on_request=True))
    waiting._resume()  # without what begin() registers for forks, for good
    yield waiting
    waiting.end("ok")


def place(folder: Path) -> channel.Listening:
    (found,) = [one for one in channel.listening() if one.mark == channel.mark(folder)]
    return found


def answer(folder: Path, sent: bytes) -> bytes:
    connection = channel.connected(place(folder))
    assert connection is not None
    with connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def greeting(folder: Path) -> Greeting:
    said = answer(folder, msgspec.json.encode(LiveRequest()) + b"\n")
    return msgspec.json.decode(said, type=Greeting)


def test_a_process_says_who_it_is(listener: Listener, tmp_path: Path) -> None:
    said = greeting(tmp_path)
    assert (said.pid, Path(os.fsdecode(said.folder)), said.busy) == (os.getpid(), tmp_path, False)
    assert said.command == tuple(sys.orig_argv)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"record": "../../etc"}\n',
        b'{"record": -1}\n',
        b'{"record": 1, "steps": 0}\n',
        b'{"record": 1, "steps": 1e99}\n',
        b'{"record": 1, "seconds": NaN}\n',
        b'{"record": 1, "folder": "/tmp"}\n',
        b'{"record": 7, "steps": 1, "seconds": 1}\n',  # a folder that the requester has not made
        b"[" * 60_000 + b"\n",
        b"x" * 300_000,
        bytes(range(256)) * 8 + b"\n",
    ],
)
def test_what_is_no_request_is_not_answered_and_harms_nothing(
    listener: Listener, tmp_path: Path, sent: bytes
) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has closed while we were sending
        assert answer(tmp_path, sent) == b""
    assert not list(tmp_path.iterdir())
    assert greeting(tmp_path).pid == os.getpid()


def test_a_folder_that_a_link_stands_for_is_not_recorded_into(
    listener: Listener, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (tmp_path / "001").symlink_to(elsewhere)
    request = LiveRequest(record=1, steps=1, seconds=1)
    assert answer(tmp_path, msgspec.json.encode(request) + b"\n") == b""
    assert not list(elsewhere.iterdir())


def test_names_of_other_sockets_are_none_of_ours(tmp_path: Path) -> None:
    table = tmp_path / "unix"
    ours = "@kinetoscope/12/0123456789abcdef/0123456789abcdef"
    rows = (ours, "@kinetoscope/../etc/x", "@kinetoscope/12/0123/45", "/run/x.sock", f"{ours}0", "")
    table.write_text("Num RefCount\n" + "".join(f"0000: 00000002 00000000 0001 01 1 {row}\n" for row in rows))
    assert [one.pid for one in channel.listening(table)] == [12]


def test_who_waits_no_more_is_not_listed(listener: Listener, tmp_path: Path) -> None:
    place(tmp_path)
    listener.end("ok")
    assert channel.mark(tmp_path) not in {one.mark for one in channel.listening()}


class Graph:
    """A graph as torch's class looks to who watches it."""

    def capture_begin(self) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...


@pytest.mark.parametrize("graphs", [False, True])
def test_captures_are_recorded_only_where_asked_for_and_always_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, graphs: bool
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(torch_private, "graph_classes", lambda: iter([Graph]))
    waiting, graph = Listener(tmp_path, Options(on_request=True, graphs=graphs)), Graph()
    waiting.begin()
    try:
        graph.capture_begin()
        assert waiting.device.occupied() is not None
        graph.capture_end()
        assert waiting.device.captures.seen
        assert len(waiting.graphs.paths) == graphs
    finally:
        waiting.end("ok")
        waiting.device.captures.remove()


def requested(waiting: Listener, steps: int, seconds: float) -> LiveRecording:
    """A recording of this process, in the first folder."""
    folder = waiting.folder / "001"
    folder.mkdir()
    return LiveRecording(
        folder,
        LiveRequest(record=1, steps=steps, seconds=seconds),
        waiting.options,
        waiting.graphs,
        lambda text, *, steps=False: None,
        lambda: True,
        threading.get_ident(),
    )


def test_a_graph_captured_before_any_request_lies_with_what_replays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch_private, "graph_classes", lambda: iter([Graph]))
    waiting = Listener(tmp_path, Options(on_request=True, graphs=True))
    waiting.begin()
    model, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    unused, graph = Graph(), Graph()
    for one in (unused, graph):
        one.capture_begin()
        model(x)
        one.capture_end()
    assert len(waiting.graphs.paths) == 2
    recording = requested(waiting, steps=5, seconds=30)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(recording.run)
        while not done.done():
            model(x)
            graph.replay()
            time.sleep(0.001)
    waiting.end("ok")
    waiting.device.captures.remove()
    record = done.result()
    assert record is not None
    assert record.captures == ("trace/rank0.capture0.json",)
    capture, trace = (
        json.loads((tmp_path / "001" / path).read_text())["traceEvents"]
        for path in (*record.captures, record.trace or "")
    )
    assert "aten::linear" in {event.get("name") for event in capture}
    assert {event["name"] for event in trace if event.get("cat") == "graph_replay"} == {"capture 0"}
    assert not (tmp_path / "captures").exists()


@pytest.mark.parametrize(
    ("replays", "kernels", "most_mb"), [(True, 0, 27), (False, 0, 55), (True, 10, None), (True, 1, 55)]
)
def test_a_recording_ends_where_writing_it_takes_seconds_sooner_where_graphs_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replays: bool, kernels: int, most_mb: int | None
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(live_recording, "MOST_REPLAYED", 105 if kernels == 10 else 105_000)
    counted = re.compile(rb'"name": "ours"' if kernels else rb'"name": "none"')
    monkeypatch.setattr(graphs, "LAUNCHED", counted)
    monkeypatch.setattr(torch_private, "graph_classes", lambda: iter([Graph]))
    grown = itertools.count(0, 0 if most_mb is None else 1_000_000)
    monkeypatch.setattr(live_recording, "resident_bytes", lambda: next(grown))
    monkeypatch.setattr(live_recording, "LOOK_S", 0.001)
    waiting = Listener(tmp_path, Options(on_request=True, graphs=True))
    waiting.begin()
    # In training, it would be waited for the optimizer that another test may just have made.
    graph, model, x = Graph(), torch.nn.Linear(8, 8).eval(), torch.ones(2, 8)
    graph.capture_begin()
    for _ in range(kernels):
        with torch.profiler.record_function("ours"):
            pass
    graph.capture_end()
    recording = requested(waiting, steps=100_000, seconds=60)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(recording.run)
        while not done.done():
            graph.replay() if replays else model(x)
            time.sleep(0.001)
    waiting.end("ok")
    waiting.device.captures.remove()
    record = done.result()
    assert record is not None
    if most_mb is None:
        said = re.search(r"and (\d+) kernels of graphs had run: more takes", record.notes[0])
        assert said is not None
        assert int(said[1]) > 105
    else:
        assert most_mb <= recording.grown_bytes / 1e6 <= most_mb + 2
    assert record.steps.found_by == ("graph" if replays else "module")
    assert len(recording.recorded) > 5


class Serving:
    """A thread that calls a model again and again, and one that may keep a range open."""

    def __init__(self, model: Any) -> None:
        self.model, self.over, self.left = model, threading.Event(), threading.Event()

    def serve(self) -> None:
        import torch

        while not self.over.is_set():
            self.model(torch.ones(64, 64))

    def stay(self) -> None:
        import torch

        with torch.profiler.record_function("a long range"):
            self.left.wait(30)


def live_session() -> ServedSession:
    device = TorchDevice(Options())
    session = device.session(kind="full", any_thread=True, of=ServedSession)
    assert isinstance(session, ServedSession)
    session.prepare()
    return session


@pytest.mark.parametrize("stays", [False, True])
def test_what_ends_soon_is_waited_for_and_what_does_not_is_known(tmp_path: Path, *, stays: bool) -> None:
    torch = pytest.importorskip("torch")
    if unlocked() is None:
        pytest.skip("this torch's functions are others")
    serving = Serving(torch.nn.Linear(64, 64))
    with ThreadPoolExecutor(2) as pool:
        pool.submit(serving.serve)
        try:
            session = live_session()
            session.start()
            if stays:
                pool.submit(serving.stay)
            time.sleep(0.05)
            session.begin_no_more()
            time.sleep(0.2)
            session.stop()
            assert session.unfinished  # nothing is known yet
            session.export(tmp_path / "trace.json")
        finally:
            serving.left.set()
            serving.over.set()
    assert session.unfinished == (("a long range",) if stays else ())
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert "aten::linear" in names


def test_no_recording_follows_one_that_has_left_a_range_open(listener: Listener, tmp_path: Path) -> None:
    listener.unfinished = ("a long range",)
    (tmp_path / "001").mkdir()
    request = LiveRequest(record=1, steps=1, seconds=1)
    said = answer(tmp_path, msgspec.json.encode(request) + b"\n")
    progress = msgspec.json.decode(said, type=channel.Progress)
    assert (progress.over, progress.recorded) == (True, False)
    assert progress.text.startswith("a long range began in the last recording")
    assert not list((tmp_path / "001").iterdir())


def test_cupti_is_detached_once_the_server_rests(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rests, tried = iter([*[False] * 9, True]), threading.Event()  # however long that takes

    def release() -> bool:
        found = next(rests)
        if found:
            tried.set()
        return found

    monkeypatch.setattr(live_listener, "AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(listener.device, "release", release)
    listener._release_soon()
    assert tried.wait(10)
    assert next(rests, None) is None


def test_a_batch_is_named_by_what_its_requests_read_and_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers has them: a request of a prompt in two pieces, one that generates, two of prompts."""

    def request(prompt: int, past: int, queries: int) -> SimpleNamespace:
        state = SimpleNamespace(initial_tokens=[0] * prompt, position_offset=past)
        return SimpleNamespace(state=state, query_length=queries)

    class ContinuousBatchingIOs:
        def prepare_batch_tensors(self, requests_in_batch: list[Any], padded: bool) -> int:
            return len(requests_in_batch)

    module = SimpleNamespace(ContinuousBatchingIOs=ContinuousBatchingIOs)
    monkeypatch.setitem(sys.modules, batches.MODULE, module)
    said: list[str] = []
    end = batches.watch(said.append)
    assert end is not None
    prepared = [request(32, 0, 20), request(8, 8, 1), request(4, 9, 1)]
    assert ContinuousBatchingIOs().prepare_batch_tensors(requests_in_batch=prepared, padded=True) == 3
    assert ContinuousBatchingIOs().prepare_batch_tensors([request(32, 20, 12)], True) == 1
    end()
    ContinuousBatchingIOs().prepare_batch_tensors([], False)
    assert [engine_step(one) for one in said] == [
        EngineStep("transformers", "mixed", 1, 2, 22, 20 + 9 + 10, 20 * 20 - (400 - 20) // 2 + 9 + 10),
        EngineStep("transformers", "prefill", 1, 0, 12, 32, 12 * 32 - (144 - 12) // 2),
    ]
    assert live_recording.ENGINE_STEP.match(said[0])
    monkeypatch.setitem(sys.modules, batches.MODULE, SimpleNamespace())
    assert batches.watch(said.append) is None


def test_replays_are_noted_until_the_device_is_recorded_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's end takes seconds, and the device is recorded in the first moments of it."""
    noted: list[Replay] = []

    def disable() -> int:
        now = time.time_ns()
        noted.extend(Replay(0, now + after, 1, 1) for after in (1_000_000, 10 * live_recording.STOPS_NS))
        return 0

    monkeypatch.setattr(live_recording, "unlocked", lambda: SimpleNamespace(disable=disable))
    monkeypatch.setattr(torch_private, "profiler_stopped", lambda: None)
    session = object.__new__(ServedSession)
    session.captures = cast(Any, SimpleNamespace(replays_seen=lambda: noted))
    session.stop()
    assert session.replays == noted[:1]
