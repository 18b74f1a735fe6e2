"""Files that grow while the program runs, whatever it does to our descriptors and to the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kinetoscope.capture.compiler.stream import Stream


def test_what_is_written_is_on_disk_at_once(tmp_path: Path):
    stream = Stream(tmp_path / "compile" / "rank0.log")
    assert not stream.path.exists()
    stream.write("a\n")
    stream.write(b"b\n")
    assert stream.path.read_bytes() == b"a\nb\n"
    stream.close()
    assert stream.failure is None


def test_a_descriptor_that_the_program_took_over_is_left_alone(tmp_path: Path):
    stream = Stream(tmp_path / "rank0.log")
    stream.write("one ")
    taken = stream.descriptor
    assert taken is not None
    os.close(taken)
    own = os.open(tmp_path / "own", os.O_CREAT | os.O_WRONLY)
    assert own == taken
    stream.write("two")
    stream.close()
    os.write(own, b"the program's")
    os.close(own)
    assert stream.path.read_text() == "one two"
    assert (tmp_path / "own").read_text() == "the program's"


def test_a_full_disk_ends_it_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stream = Stream(tmp_path / "rank0.log")
    stream.write("one\n")

    def no_space(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", no_space)
        stream.write("two\n")
    stream.write("three\n")
    assert stream.failure == "rank0.log is incomplete: No space left on device"
    assert stream.path.read_text() == "one\n"


def test_a_fork_writes_nothing(tmp_path: Path):
    stream = Stream(tmp_path / "rank0.log")
    stream.write("one\n")
    stream.pid += 1
    stream.write("two\n")
    assert stream.path.read_text() == "one\n"
