"""Runs that are killed, and disks that fill up or vanish under a recording: the program's end is its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import kills
from programs import TRAIN, Programs

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="kills find a command's child in /proc"),
    pytest.mark.usefixtures("whole"),
]


@pytest.mark.parametrize(
    ("kill", "moment_s"),
    [
        (kills.Kill("both", kills.to_both(signal.SIGKILL), (-signal.SIGKILL,)), 0.3),
        (kills.Kill("the command", kills.to_command(signal.SIGTERM), (-15,)), 0.7),
        (kills.Kill("the program", kills.to_program(signal.SIGKILL), (-9,)), 1.1),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_recording_that_was_killed_opens(kill: kills.Kill, moment_s: float, tmp_path: Path):
    pytest.importorskip("torch")
    (tmp_path / "place").mkdir()
    assert kills.attempt(kill, moment_s, tmp_path / "place").left in kills.LEFT


def test_where_no_file_may_grow_the_first_steps_are_left(programs: Programs):
    script = programs.write(
        TRAIN
        + """
import resource
train(4)
os.closerange(3, 256)
sys.dont_write_bytecode = True  # a part of a module would be read by every later run
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
train(500)
sys.exit(7)
"""
    )
    run = programs.record(str(script))
    assert run.status == 7
    assert not [line for line in run.err.splitlines() if not line.startswith("kinetoscope: ")]
    assert run.steps["cold"]
    assert "the recorded steps could not be written" in run.steps["notes"][0]
    assert len(run.marks()) == 3
    assert run.folder is not None
    assert sorted(path.name for path in (run.folder / "trace").iterdir()) == ["rank0.json"]


def test_a_recording_that_vanishes_is_said_to_be_lost(programs: Programs):
    run = programs.record(
        "--out", "gone", str(programs.write("import shutil\nshutil.rmtree('gone')\nprint('end')"))
    )
    assert (run.status, run.out) == (0, "end\n")
    said = run.err.splitlines()
    assert any("the recording is lost" in line for line in said)
    assert not [line for line in said if not line.startswith("kinetoscope: ")]


def test_a_standard_error_that_is_full_changes_no_status(programs: Programs):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    script = programs.write("raise SystemExit(5)")
    for closed in ("2>/dev/full", "2>&-", ">&-", ">/dev/full"):
        command = f"exec {sys.executable} -m kinetoscope run {script} {closed}"
        assert programs.execute(["/bin/sh", "-c", command]).status == 5


def test_a_device_that_failed_while_it_was_recorded_leaves_the_program_its_status(programs: Programs):
    script = programs.write(
        TRAIN
        + """
import ctypes
class Failed:
    def query(self):
        raise RuntimeError("CUDA error: device-side assert triggered")
train(2)
torch.cuda.is_initialized, torch.cuda.current_stream = lambda: True, Failed
libc = ctypes.CDLL(None)  # as Kineto does, whose destructors crash once the device has failed
libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
print("last", end="")
sys.exit(3)
"""
    )
    run = programs.record(str(script))
    assert (run.status, run.out) == (3, "last"), run.err
    assert run.marks()
