"""Signals that ask a process to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def as_exceptions() -> Generator[None]:
    """Leave the block as an exception does where a signal asks the process to end, and clean up thereby.

    Threads other than the main one handle no signals: there the block is left as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    ending = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {
        number: signal.signal(number, leave)
        for number in ending
        if signal.getsignal(number) == signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
