"""Starts the program and waits for its end, so that signals do to it what they do without `kinetoscope run`.

The program is a child in our own process group and session, with our descriptors and signal dispositions.
What the kernel does to a group (Ctrl-C, Ctrl-Z, a hang-up, reading the terminal in the background, SIGKILL
and SIGSTOP by `kill -- -GROUP`) therefore reaches it by itself, and pipelines keep working. Two other designs
were weighed. A process group of its own would hide it from SIGKILL and SIGSTOP to the group, and would push
the other programs of a pipeline off the terminal. Replacing ourselves by the program (exec, with a watcher
left behind) would let the shell go on before the recording is finished.

What remains is a signal that is sent to us: it must be passed on where only we were sent it (`kill PID`,
torchrun), and must not where the program was sent it too (`timeout`, systemd, scancel, `pkill -f`, a
terminal). The kernel does not say which it was. A sentinel does: an idle fork of ours, in the same group and
control group and with the same command line, that blocks every signal. Whatever is sent to all of us is
pending in it as well.

We handle no signal but block them all and take them one after the other, so that what the shell ignores
(nohup; SIGINT and SIGQUIT of `command &`) stays ignored in the program, and none ends us before the program.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

TOGETHER_S = 0.05  # what is sent to many processes, one after the other, has reached all of them by then
PATIENCE_S = 2.0
POLL_S = 0.25
LOOK_S = 1.0
# How a program is ended on purpose: seconds after the first signal, and the signal.
ENDING = ((0.0, "SIGINT"), (10.0, "SIGTERM"), (30.0, "SIGKILL"))


def wait(
    command: Sequence[str],  # its first word is a path
    variables: Mapping[str, str],  # the command's environment
    # called four times a second; once it returns True, the command is ended
    is_over: Callable[[], bool] | None = None,
    # without that, called once a second until it returns True (where signals can be waited for with a limit,
    # which macOS cannot)
    meanwhile: Callable[[], bool] | None = None,
) -> tuple[int, bool]:
    """Run a command to its end.

    Returns:
        The exit status (minus the number of the signal that ended it), and whether we ended it.

    Raises:
        OSError: it cannot be started.
    """
    if not hasattr(os, "posix_spawn"):
        return _without_signals(command, variables), False
    everything = signal.valid_signals()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    # Python itself ignores these two, which a program does not inherit from a shell.
    defaults = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
    sentinel = _Sentinel()
    try:
        signals: dict[str, Any] = {"setsigmask": mask, "setsigdef": defaults}
        try:
            child = os.posix_spawn(command[0], [*command], variables, **signals)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script that names no interpreter is the shell's, for whoever starts it.
            child = os.posix_spawn("/bin/sh", ["/bin/sh", *command], variables, **signals)
        with _children_reported():
            return _Wait(child, sentinel, is_over, meanwhile).to_the_end()
    finally:
        sentinel.end()
        list(_taken())  # a Ctrl-C that ended the program is not to end our summary
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Wait:
    def __init__(
        self,
        child: int,
        sentinel: _Sentinel,
        is_over: Callable[[], bool] | None,
        meanwhile: Callable[[], bool] | None,
    ) -> None:
        self.child, self.sentinel, self.is_over = child, sentinel, is_over
        self.meanwhile = meanwhile
        self.ending: Iterator[tuple[float, str]] = iter(ENDING)
        self.next = next(self.ending)
        self.over_since: float | None = None

    def to_the_end(self) -> tuple[int, bool]:
        while True:
            found, state = os.waitpid(self.child, os.WNOHANG | os.WUNTRACED)
            if found and not os.WIFSTOPPED(state):
                return os.waitstatus_to_exitcode(state), self.over_since is not None
            if found:
                self._stop_likewise(os.WSTOPSIG(state))
            self._pass_on(self._arrived())

    def _arrived(self) -> set[int]:
        """Signals that have come. Waits for one, or for a moment."""
        if self.is_over is not None:
            time.sleep(POLL_S)
            self._end_once_over(self.is_over)
            return set(_taken())
        if not hasattr(signal, "sigtimedwait"):
            return {int(signal.sigwait(signal.valid_signals()))}
        # Where we have other threads, one of them may be sent the report of the program's end.
        arrived = signal.sigtimedwait(signal.valid_signals(), LOOK_S)
        if arrived is None and self.meanwhile is not None and self.meanwhile():
            self.meanwhile = None
        return set() if arrived is None else {arrived.si_signo}

    def _pass_on(self, arrived: set[int]) -> None:
        if not arrived - {signal.SIGCHLD}:
            return
        time.sleep(TOGETHER_S)
        arrived |= set(_taken())
        for number in arrived - self.sentinel.received() - {signal.SIGCHLD}:
            with suppress(PermissionError):  # it runs as another user, to whom we may send nothing
                os.kill(self.child, number)

    def _stop_likewise(self, number: int) -> None:
        """The program was stopped: stop, too, where a shell with job control waits for that."""
        if number != signal.SIGSTOP:  # not sent to us: who continues the program would not continue us
            os.kill(os.getpid(), number)  # one with that of the terminal, if it is pending
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    def _end_once_over(self, is_over: Callable[[], bool]) -> None:
        now = time.monotonic()
        if self.over_since is None and is_over():
            self.over_since = now
        after_s, name = self.next
        if self.over_since is not None and now - self.over_since >= after_s:
            os.kill(self.child, getattr(signal, name))
            self.next = next(self.ending, (float("inf"), name))


class _Sentinel:
    """A process that is sent what all processes around us are sent, and says which signals that were."""

    def __init__(self) -> None:
        requests, self.ask = os.pipe()
        self.answers, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _watch(requests, answer)
            finally:
                os._exit(0)
        os.close(requests)
        os.close(answer)

    def received(self) -> set[int]:
        """The signals since the last call; none where the sentinel was killed or stopped."""
        with suppress(BrokenPipeError):
            os.write(self.ask, b"?")
            if select.select([self.answers], [], [], PATIENCE_S)[0]:
                return set(os.read(self.answers, 4096))
        return set()

    def end(self) -> None:
        os.close(self.ask)
        os.close(self.answers)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _watch(requests: int, answer: int) -> None:
    """Answer until the other end is closed. Other descriptors are closed: their readers wait for that."""
    first, second = sorted((requests, answer))
    for low, high in ((0, first), (first + 1, second), (second + 1, 1 << 20)):
        os.closerange(low, high)
    while os.read(requests, 1):
        os.write(answer, bytes([0, *_taken()]))


def _taken() -> Iterator[int]:
    """The signals that are pending here, which they are no longer. Another thread may take one first."""
    while pending := signal.sigpending():
        if not hasattr(signal, "sigtimedwait"):
            yield int(signal.sigwait(pending))
        elif (taken := signal.sigtimedwait(pending, 0)) is not None:
            yield taken.si_signo


@contextmanager
def _children_reported() -> Generator[None, None, None]:
    """Have the end of our child reported, even where the process that started us ignores such reports.

    It is blocked all the while, so that no handler is ever called. Set once the child has started, which
    inherits what was ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCHLD, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)


def _without_signals(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command on a system without signals, except those typed at the console, which it gets, too."""
    child = subprocess.Popen(command, env=dict(variables), close_fds=False)
    while True:
        with suppress(KeyboardInterrupt):
            return child.wait()
