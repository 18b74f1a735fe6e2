"""A process that `kinetoscope run` started: recorded from the import of torch on, however it ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import msgspec

from kinetoscope.capture import torch_private
from kinetoscope.capture.hooks.imports import ImportWatch
from kinetoscope.capture.options import Options
from kinetoscope.capture.process.ranks import is_recorded
from kinetoscope.capture.process.recording import ProcessRecording, say
from kinetoscope.errors import in_one_line
from kinetoscope.recording import folder as folders


class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions that `kinetoscope run` hands to the processes it starts, in an environment variable."""

    folder: bytes  # the recording, as the bytes of its path, which need not be UTF-8
    options: Options  # what to record


def begin(instructions: str, rank: int, world: int) -> None:
    """Record this process, which has imported torch, as ``rank`` of ``world``; a failure is a message."""
    try:
        given = msgspec.json.decode(instructions, type=Instructions)
        if not is_recorded(given.options.ranks, rank, os.environ):
            return
        folder = Path(os.fsdecode(given.folder))
        if given.options.on_request:
            listen(folder, given.options)
            return
        if not folders.claim(folder, rank):
            return
        imports = ImportWatch()
        imports.import_under(torch_private.INDUCTOR_CONFIG, _inductor_variables(given.options))
        recording = ProcessRecording(folder, rank, world, given.options)
    except Exception as error:
        say(f"not recording: {in_one_line(error)}")
        return
    _Ending(recording).watch()


def listen(folder: Path, options: Options) -> None:
    """Wait for requests to record this process into ``folder``, from now to its end. Raises OSError where the
    system has no sockets to wait at."""
    from kinetoscope.capture.live.listener import Listener

    listener = Listener(folder, options)
    listener.begin()
    _Ending(listener).watch()


def _inductor_variables(options: Options) -> dict[str, str]:
    """Variables that make a generated kernel's name and origin known, where the user has not set them."""
    chosen: dict[str, str] = {}
    if options.compile_log:
        chosen["TORCHINDUCTOR_UNIQUE_KERNEL_NAMES"] = "1"
    if options.compile_log and options.provenance:
        chosen["INDUCTOR_PROVENANCE"] = "1"
    if options.bench_harness:
        chosen["TORCHINDUCTOR_BENCHMARK_KERNEL"] = "1"
    return chosen


class _Ends(Protocol):
    """Is to be ended before the process does."""

    when_saved: Callable[[], None]  # called once there is nothing that an end would have to wait for

    def end(self, exit: str, failure: BaseException | None = None) -> object: ...

    def forked(self) -> bool:
        """This process is a fork; returns whether its end is to be noticed as well."""
        ...


class _Ending:
    """Notices every end of a process that leaves it the time to write a file."""

    def __init__(self, recording: _Ends) -> None:
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
        with _undisturbed():
            if failure is not None:
                self.recording.end(f"exception: {type(failure).__name__}", failure)
            else:
                self.recording.end("ok")
        self._restore_signal()
        if _device_failed():
            _leave_kineto_alone()

    def _writing_first(self, name: str, leave: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of ``os`` that leaves without Python's own end; exec becomes another program."""

        @functools.wraps(leave)
        def leaving(*arguments: Any, **named: Any) -> Any:
            if os.getpid() == self.pid:
                given = next(iter((*arguments, *named.values())), None)
                self.recording.end("signal: SIGABRT" if name == "abort" else f"os.{name}: {given}")
            return leave(*arguments, **named)

        return leaving

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if signal.getsignal(number) != self._terminated:
            return  # a handler of the program's calls the one before it: without us there was none
        with _undisturbed():
            self.recording.end(f"signal: {signal.Signals(number).name}")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _forked(self) -> None:
        if self.recording.forked():
            self.pid = os.getpid()
            return
        for name, leave in self.leave.items():
            setattr(os, name, leave)
        self._restore_signal()
        _leave_kineto_alone()


@contextlib.contextmanager
def _undisturbed() -> Generator[None, None, None]:
    """Ignore a second Ctrl-C or SIGTERM while the recording is written."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = threading.current_thread() is threading.main_thread() and None not in before.values()
    for number in before if ours else ():
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items() if ours else ():
            signal.signal(number, handler)


def _device_failed() -> bool:
    """Whether the device answers no call any more, as after an assertion in a kernel."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.current_stream().query()
    except AttributeError:  # torch is half imported, or another module has its name
        return False
    except RuntimeError:
        return True
    return False


def _leave_kineto_alone() -> None:
    """Have this process end without C++ destructors.

    Kineto's abort or hang in a fork, where its threads were not forked, and crash where the device failed
    while it recorded. All else happens as in a plain program: Python is shut down, C's streams are flushed,
    and the exit status is the one that was given.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's atexit that is given the status; runs the latest registered first
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
        libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)
