"""A process that `kinetoscope run` started: whether to record it, from when, and how its end is noticed."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from kinetoscope.capture.hooks.imports import ImportWatch
from kinetoscope.capture.options import Options
from kinetoscope.capture.process.messages import say
from kinetoscope.capture.process.ranks import rank_and_world
from kinetoscope.capture.process.recording import ProcessRecording, active
from kinetoscope.recording import folder as folders

# Environment variables, which the bootstrap reads, too.
INSTRUCTIONS = "KINETOSCOPE_CAPTURE"
HOME = "KINETOSCOPE_HOME"
# Programs whose Python processes only start others: the ranks are theirs to start and ours to record.
LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed",
    "mpirun",
)


class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """What `kinetoscope run` hands to the processes it starts, in an environment variable.

    Attributes:
        folder: the recording.
        launcher: True where the command starts the program's processes, False where it is the program.
        options: what to record.
        python_path: PYTHONPATH as it was; None where it was not set.
    """

    folder: str
    launcher: bool
    options: Options
    python_path: str | None


def begin() -> None:
    """Arrange for this process to be recorded once it imports torch, if it is one to record."""
    instructions = msgspec.json.decode(os.environ[INSTRUCTIONS], type=Instructions)
    if instructions.launcher and _launches(sys.orig_argv, os.environ):
        return  # its children inherit the instructions
    place = rank_and_world(os.environ)
    if not instructions.launcher or place is not None:
        _hide(instructions)
    rank, world = place or (0, 1)
    watch = ImportWatch()

    def torch_imported() -> None:
        if instructions.launcher and place is None:
            _hide(instructions)
        _record(Path(instructions.folder), rank, world, instructions.options)

    watch.when_imported("torch", torch_imported)


def _launches(command: Sequence[str], variables: Mapping[str, str]) -> bool:
    """True for a process of the launcher itself."""
    names = {os.path.basename(word).removesuffix(".py") for word in command[:4]}
    return rank_and_world(variables) is None and not names.isdisjoint(LAUNCHERS)


def _hide(instructions: Instructions) -> None:
    """Leave the environment as the user's shell had it: the program's own children are none of ours."""
    for name in (INSTRUCTIONS, HOME):
        os.environ.pop(name, None)
    if instructions.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = instructions.python_path


def _record(folder: Path, rank: int, world: int, options: Options) -> None:
    try:
        if not folders.claim(folder, rank):
            return
        recording = ProcessRecording(folder, rank, world, options)
    except Exception as error:
        say(f"not recording: {type(error).__name__}: {error}")
        return
    _Ending(recording).watch()


class _Ending:
    """Notices every way in which a process can end that leaves it the time to write a file."""

    def __init__(self, recording: ProcessRecording) -> None:
        self.recording, self.pid = recording, os.getpid()
        self.leave = {name: getattr(os, name) for name in ("_exit", "abort", "execv", "execve")}

    def watch(self) -> None:
        atexit.register(self._exited)
        os.register_at_fork(after_in_child=self._forked)
        for name, leave in self.leave.items():
            setattr(os, name, self._writing_first(name, leave))
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            # Only while nothing is on disk yet: a program that looks later finds what it expects.
            signal.signal(signal.SIGTERM, self._terminated)
            self.recording.when_saved = self._restore_signal

    def _restore_signal(self) -> None:
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _exited(self) -> None:
        failure = getattr(sys, "last_value", None)
        if failure is not None:
            self.recording.end(f"exception: {type(failure).__name__}", failure)
        else:
            self.recording.end("ok")

    def _writing_first(self, name: str, leave: Callable[..., Any]) -> Callable[..., Any]:
        """One of ``os``'s ways to leave without Python's own end; what execs becomes another program."""

        @functools.wraps(leave)
        def leaving(*arguments: Any, **named: Any) -> Any:
            if os.getpid() == self.pid:
                given = next(iter((*arguments, *named.values())), None)
                self.recording.end("signal: SIGABRT" if name == "abort" else f"os.{name}: {given}")
            return leave(*arguments, **named)

        return leaving

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self.recording.end(f"signal: {signal.Signals(number).name}")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _forked(self) -> None:
        if active() is self.recording:
            self.recording.forget()
        for name, leave in self.leave.items():
            setattr(os, name, leave)
        self._restore_signal()
        _leave_kineto_alone()


def _leave_kineto_alone() -> None:
    """Have this fork end without C++ destructors: Kineto's abort or hang where its threads were not forked.

    What a plain program's fork does at its end it does all the same, but for those destructors: Python is
    shut down, C's streams are flushed, and the exit status is the one it was given.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's atexit that is given the status; runs the latest registered first
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
        libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)
