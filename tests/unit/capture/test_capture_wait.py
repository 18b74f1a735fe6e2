"""Waiting for the program where other threads may be sent the signals that are waited for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kinetoscope.capture.process import wait as module
from kinetoscope.capture.process.wait import wait

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "sigtimedwait"), reason="the system cannot wait for a while"
)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Ends the process, as nothing else can, where all signals are blocked."""
    watchdog = threading.Timer(seconds, lambda: signal.raise_signal(signal.SIGKILL))
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def test_a_program_s_end_that_another_thread_was_sent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    given = signal.sigtimedwait

    def other_takes_it(numbers: Any, seconds: float) -> Any:
        taken = given(numbers, seconds)
        return None if taken is not None and taken.si_signo == signal.SIGCHLD else taken

    monkeypatch.setattr(signal, "sigtimedwait", other_takes_it)
    with within(60):
        assert wait(["/bin/sh", "-c", "exit 3"], {}) == (3, False)


def test_a_signal_that_another_thread_takes_first_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = iter([{signal.SIGCHLD}, set[signal.Signals]()])
    monkeypatch.setattr(signal, "sigpending", lambda: next(pending))
    with within(60):
        assert list(module._taken()) == []  # pyright: ignore[reportPrivateUsage]
