"""The sampler of the whole run: what it sees, and that nobody sees it."""

from __future__ import annotations

import gc
import os
import queue
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import msgspec

from kinetoscope.capture.options import Options
from kinetoscope.capture.process.whole_run import Sampler, Tree, process_age_s, watches
from kinetoscope.errors import InputError
from kinetoscope.recording.whole_run import (
    MOST_NODES,
    PERIODS,
    Node,
    Period,
    SampledPlace,
    WholeRun,
    read,
)


def until(condition: Callable[[], bool], patience_s: float = 20.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def sampler() -> Generator[Sampler]:
    periods: list[Period] = ["before"]
    one = Sampler(lambda: periods[0])
    one.begin()
    yield one
    one.end()


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def functions(found: WholeRun) -> set[str]:
    return {place.name for place in found.places}


def far_from_here(done: Callable[[], bool]) -> None:
    until(done)


def waits_for_a_lock(lock: threading.Lock) -> None:
    with lock:
        pass


def waits_a_while() -> None:
    time.sleep(max(0.1, 0.3))


def test_a_lock_that_another_thread_has_and_a_sleep_are_waited_for(sampler: Sampler) -> None:
    lock, began = threading.Lock(), sampler.count
    lock.acquire()

    def releases() -> None:
        try:
            until(lambda: sampler.count >= began + 5)
        finally:
            lock.release()

    other = threading.Thread(target=releases)
    other.start()
    waits_for_a_lock(lock)
    other.join()
    waits_a_while()
    found = sampler.written()
    waits = {
        (found.places[node.place].name, found.nodes[node.parent].line)
        for node in found.nodes
        if node.place >= 0 and not found.places[node.place].file
    }
    assert ("waiting for a lock", caller_line(waits_for_a_lock)) in waits
    assert ("waiting", caller_line(waits_a_while)) in waits


def test_a_function_that_runs_is_seen_below_those_that_called_it(sampler: Sampler) -> None:
    far_from_here(lambda: sampler.count >= 3)
    found = sampler.written()
    node = next(n for n in found.nodes if n.place >= 0 and found.places[n.place].name == "far_from_here")
    assert found.places[node.place].file == __file__
    assert found.places[node.place].line == far_from_here.__code__.co_firstlineno
    line = found.nodes[node.parent]
    caller = found.nodes[line.parent]
    assert (line.place, line.line) == (
        -1,
        caller_line(test_a_function_that_runs_is_seen_below_those_that_called_it),
    )
    assert found.places[caller.place].name == "test_a_function_that_runs_is_seen_below_those_that_called_it"
    assert sum(sum(one.seconds) for one in found.nodes) > 0
    assert "begin" not in functions(found)


def caller_line(function: Callable[..., object]) -> int:
    return function.__code__.co_firstlineno + 1


def test_it_is_not_there_while_the_process_forks_and_goes_on_in_the_parent(sampler: Sampler) -> None:
    until(lambda: sampler.count >= 1)
    running = sampler.running
    assert running is not None
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        child = os.fork()
    if child == 0:
        alone = len(threads()) == 1 and sampler.running is None
        before = sampler.count
        time.sleep(0.1)
        os._exit(0 if alone and sampler.count == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert str(running[2][0]) not in threads()
    assert sampler.running is not None
    seen = sampler.count
    until(lambda: sampler.count > seen)


def test_forks_of_several_threads_at_once_leave_it_running(sampler: Sampler) -> None:
    def fork() -> None:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)

    forking = [threading.Thread(target=fork) for _ in range(3)]
    for thread in forking:
        thread.start()
    for thread in forking:
        thread.join()
    seen = sampler.count
    until(lambda: sampler.count > seen)


def test_once_it_has_ended_nothing_of_it_is_left(sampler: Sampler) -> None:
    until(lambda: sampler.count >= 1)
    assert sampler.running is not None
    (task,) = sampler.running[2]
    assert str(task) in threads()
    assert "MainThread" in {thread.name for thread in threading.enumerate()}
    assert task not in {thread.native_id for thread in threading.enumerate()}
    sampler.end()
    assert str(task) not in threads()
    os.waitpid(child, 0) if (child := os.fork()) else os._exit(0)
    sampler.profiler_ended()
    assert sampler.running is None


def test_no_signal_of_the_program_s_is_delivered_to_it(sampler: Sampler) -> None:
    until(lambda: sampler.count >= 1)
    assert sampler.running is not None
    (task,) = sampler.running[2]
    status = Path(f"/proc/self/task/{task}/status").read_text()
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        assert blocked >> (number - 1) & 1


def test_what_a_function_had_is_freed_where_the_function_returns(sampler: Sampler) -> None:
    class Thing:
        pass

    def owner() -> weakref.ref[Thing]:
        thing = Thing()
        seen = sampler.count
        until(lambda: sampler.count > seen)
        return weakref.ref(thing)

    for _ in range(10):
        assert owner()() is None


def test_the_garbage_collector_is_as_the_program_left_it(sampler: Sampler) -> None:
    """A busy machine may interrupt a sample just there where the program turns the collector on or off: the
    next tries find the collector as it should be, where it is not otherwise changed each time."""
    assert any(collects_as_left(sampler) for _ in range(5))


def collects_as_left(sampler: Sampler) -> bool:
    """Whether the collector stays on or off as it is set, and never runs in the sampler's thread."""
    collected_in: set[int] = set()

    def collection(phase: str, info: dict[str, int]) -> None:
        collected_in.add(threading.get_native_id())

    as_left = []
    gc.callbacks.append(collection)
    usual = gc.get_threshold()
    gc.set_threshold(1, 1000, 1000)  # each second object that the collector counts makes it collect
    try:
        for enabled in (True, False, True):
            (gc.enable if enabled else gc.disable)()
            seen = sampler.count
            until(lambda seen=seen: sampler.count > seen + 3)
            as_left.append(gc.isenabled() is enabled)
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(collection)
        gc.enable()
    assert sampler.running is not None
    return all(as_left) and sampler.running[2][0] not in collected_in


def test_the_recorder_s_own_time_is_no_phase(sampler: Sampler) -> None:
    sampler.period = lambda: None
    until(lambda: sampler.ours_s > 0.05)
    assert sampler.written().ours_s > 0.05


def test_of_what_it_took_for_steps_nothing_stays_where_others_lead() -> None:
    tree = Tree()
    for period in PERIODS:
        tree.add([("train.py", "train", 3)], period, 1.0, 0.5)
    tree.forget_steps()
    (node,) = tree.written()[1]
    assert node.seconds == (1.5, 0.0, 0.0, 0.5)
    assert node.samples == (3, 0, 0, 1)


def test_a_tree_has_room_for_so_many_nodes_and_counts_the_rest_where_it_can() -> None:
    tree = Tree()
    for number in range(3 * MOST_NODES):
        path = [("a.py", "main", 1), ("", "", number), ("a.py", f"f{number}", number)]
        tree.add(path, "after", 0.02 * number, 0.02)
    places, nodes = tree.written()
    assert len(nodes) <= MOST_NODES
    assert len(places) <= MOST_NODES
    assert sum(sum(node.seconds) for node in nodes) == pytest.approx(0.02 * 3 * MOST_NODES)


def test_what_is_written_is_read(tmp_path: Path, sampler: Sampler) -> None:
    until(lambda: sampler.count >= 3)
    sampler.end()
    path = tmp_path / "rank0.json"
    path.write_bytes(msgspec.json.encode(sampler.written()))
    assert read(path) == sampler.written()
    assert read(path).cpu_s > 0


NODE = Node(parent=-1, place=0, line=0, seconds=(1.0,) * 4, samples=(1,) * 4, stays=1, longest_s=1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"parent": 0},
        {"parent": 7},
        {"parent": -2},
        {"place": 1},
        {"place": -2},
        {"seconds": (-1.0,) * 4},
        {"seconds": (1e300,) * 4},
        {"samples": (-1,) * 4},
        {"stays": -1},
        {"line": -1},
        {"longest_s": 1e10},
    ],
)
def test_a_file_that_is_no_tree_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "rank0.json"
    damaged = WholeRun(
        places=(SampledPlace("a.py", "f", 1),), nodes=(msgspec.structs.replace(NODE, **changes),)
    )
    path.write_bytes(msgspec.json.encode(damaged))
    with pytest.raises(InputError):
        read(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nodes": [[0]]}', '{"tick": 3}'])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read(path)


def test_it_stays_away_where_that_is_asked_for() -> None:
    assert watches(Options())
    assert not watches(Options(careful=True))
    assert not watches(Options(stacks=True))


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")
def test_the_process_is_older_than_this_test() -> None:
    assert 0 < process_age_s() < 1e6


def test_a_thread_that_waits_for_another_one_is_seen_to_wait_and_at_which_line(sampler: Sampler) -> None:
    requests: queue.Queue[int] = queue.Queue()
    threading.Thread(target=lambda: (until(lambda: sampler.count >= 3), requests.put(1))).start()
    requests.get()
    found = sampler.written()
    (waiting,) = (
        n for n in found.nodes if n.place >= 0 and found.places[n.place] == SampledPlace("", "waiting", 0)
    )
    assert sum(waiting.samples) >= 2
    function = test_a_thread_that_waits_for_another_one_is_seen_to_wait_and_at_which_line
    assert found.nodes[waiting.parent].line == function.__code__.co_firstlineno + 3
