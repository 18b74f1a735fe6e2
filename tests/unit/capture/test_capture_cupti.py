"""CUPTI is detached only from a library that was tried, and only while no other thread can be inside CUDA."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetoscope.capture import torch_private
from kinetoscope.capture.recorder import cupti

SOURCE = """
#include <stdint.h>
int cuptiGetVersion(uint32_t *version) { *version = VERSION; return 0; }
int cuptiFinalize(void) { return RESULT; }
"""


def library(folder: Path, version: int, result: int = 0) -> Path:
    """A CUPTI of that version, which says that of being detached; the file lists it as a process' memory."""
    target = folder / f"libcupti.so.{version}.{result}"
    flags = [f"-DVERSION={version}", f"-DRESULT={result}", "-shared", "-fPIC", "-xc", "-"]
    try:
        subprocess.run(["cc", *flags, "-o", target], input=SOURCE, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here to make a CUPTI of")
    maps = folder / f"maps.{version}.{result}"
    maps.write_text(f"7f00-7f01 r--p 0 08:01 1  /lib/libc.so.6\n7f01-7f02 r-xp 0 08:01 9          {target}\n")
    return maps


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "devices_in_use", lambda: 1)
    monkeypatch.setattr(torch_private, "wait_for_device", lambda: None)
    monkeypatch.setattr(cupti, "WAITING", (*cupti.WAITING, "/execnet/"))  # what hands tests out


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A process whose only thread is the one that looks: this one has pools of its libraries' beside it."""
    folder = tmp_path / "task"
    (folder / str(threading.get_native_id())).mkdir(parents=True)
    return folder


def native(tasks: Path) -> Path:
    """The status of a thread that no code of Python's knows."""
    status = tasks / "4711" / "status"
    status.parent.mkdir()
    status.write_text(
        "Name:\tx\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t0\n"
    )
    return status


def test_cupti_is_detached_where_that_was_tried(tmp_path: Path, tasks: Path) -> None:
    assert cupti.detach(library(tmp_path, cupti.TRIED), tasks)
    assert not cupti.detach(library(tmp_path, cupti.TRIED, result=1), tasks)  # it refused
    assert not cupti.detach(library(tmp_path, 28), tasks)  # of CUDA 12


def test_without_cupti_nothing_is_detached(tmp_path: Path, tasks: Path) -> None:
    assert not cupti.detach(tmp_path / "nowhere", tasks)
    (tmp_path / "maps").write_text("7f00-7f01 r--p 0 08:01 1  /lib/libc.so.6\n")
    assert not cupti.detach(tmp_path / "maps", tasks)
    (tmp_path / "gone").write_text(f"7f00-7f01 r--p 0 08:01 1  {tmp_path}/libcupti.so.13\n")
    assert not cupti.detach(tmp_path / "gone", tasks)


def test_two_libraries_of_that_name_are_left_alone(tmp_path: Path, tasks: Path) -> None:
    maps = library(tmp_path, cupti.TRIED)
    maps.write_text(maps.read_text() + "7f03-7f04 r-xp 0 08:01 9  /elsewhere/libcupti.so.12\n")
    assert not cupti.detach(maps, tasks)


@pytest.mark.parametrize("variable", cupti.OTHERS)
def test_a_process_that_another_tool_watches_is_left_alone(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "x")
    assert not cupti.detach(library(tmp_path, cupti.TRIED), tasks)


@pytest.mark.parametrize(
    ("name", "value"), [("devices_in_use", lambda: 2), ("process_group_exists", lambda: True)]
)
def test_several_devices_and_ranks_are_left_alone(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Callable[[], int]
) -> None:
    monkeypatch.setattr(torch_private, name, value)
    assert not cupti.detach(library(tmp_path, cupti.TRIED), tasks)


@pytest.fixture
def thread() -> Iterator[Callable[[Callable[[threading.Event], object]], None]]:
    """Runs a function in a thread until the test is over; it is given what is set then."""
    over, started = threading.Event(), list[threading.Thread]()

    def start(work: Callable[[threading.Event], object]) -> None:
        started.append(threading.Thread(target=work, args=(over,)))
        started[-1].start()
        time.sleep(0.05)

    yield start
    over.set()
    for one in started:
        one.join()


def test_a_thread_that_waits_for_another_does_not_matter(
    tmp_path: Path, tasks: Path, thread: Callable[[Callable[[threading.Event], object]], None]
) -> None:
    thread(threading.Event.wait)
    assert cupti.detach(library(tmp_path, cupti.TRIED), tasks)


def test_a_thread_that_is_in_code_of_the_program_keeps_cupti_attached(
    tmp_path: Path, tasks: Path, thread: Callable[[Callable[[threading.Event], object]], None]
) -> None:
    def work(over: threading.Event) -> None:
        while not over.is_set():
            time.sleep(0.001)  # stands for a call of CUDA that gives the interpreter up

    thread(work)
    assert not cupti.detach(library(tmp_path, cupti.TRIED), tasks)


def test_a_thread_that_no_code_of_python_knows_must_have_slept_all_the_time(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = native(tasks)
    maps = library(tmp_path, cupti.TRIED)
    assert cupti.detach(maps, tasks)
    before = status.read_text()

    runs = iter(range(8, 1000))

    def runs_on(seconds: float) -> None:
        if seconds and (switches := next(runs, None)):  # between the two looks
            status.write_text(before.replace("\t7", f"\t{switches}"))

    with monkeypatch.context() as patched:
        patched.setattr(cupti.time, "sleep", runs_on)
        assert not cupti.detach(maps, tasks)
        runs = iter(range(8, 10))  # for a moment
        assert cupti.detach(maps, tasks)
    status.write_text(before.replace("S (", "R ("))
    assert not cupti.detach(maps, tasks)
    status.write_text("Name:\tx\n")  # a system that does not count
    assert not cupti.detach(maps, tasks)
