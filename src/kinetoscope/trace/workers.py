"""Decoding on every core: plain Python processes that read spans and answer with packed columns.

They are started with the standard library's subprocess, not multiprocessing: nothing of the caller's program
is imported again, no ``if __name__ == "__main__"`` is needed in it, and they load ``spans`` alone (30 ms).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from kinetoscope.trace.decoding.packing import Batch
from kinetoscope.trace.decoding.spans import Span, decode_span, receive, send

MOST = 32
_PIPE = 256 << 10  # bytes, where the system lets a pipe be so large: fewer turns between the processes


def cores() -> int:
    """Cores this process may use; the environment variable KINETOSCOPE_WORKERS overrides it."""
    wanted = os.environ.get("KINETOSCOPE_WORKERS", "")
    if wanted.isdecimal() and int(wanted):
        return min(int(wanted), MOST)
    try:
        return min(len(os.sched_getaffinity(0)), MOST)
    except AttributeError:  # not Linux
        return min(os.cpu_count() or 1, MOST)


class WorkerProcess:
    """A process that answers questions over pipes."""

    def __init__(self, *words: str, **settings: Any) -> None:
        """Start this Python with the words as arguments; ``settings``: further ones of ``subprocess.Popen``.
        Raises OSError where the system has no process left."""
        self._process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **settings
        )

    def ask(self, question: object) -> Any:
        """The answer. Raises DiedError where the process has ended."""
        if self._process.stdin is None or self._process.stdout is None:
            raise DiedError
        try:
            send(self._process.stdin, question)
            return receive(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise DiedError from error

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what it did not read before it was ended
                    pipe.close()


class DiedError(Exception):
    """A process that was to answer has ended."""


class Workers:
    """As many decoding processes as wanted, for the length of a ``with`` block; instead of one, this one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads = ThreadPoolExecutor(count)
        self._idle: SimpleQueue[WorkerProcess | None] = SimpleQueue()
        self._started: list[WorkerProcess] = []

    def __enter__(self) -> Workers:
        for _ in range(self._count if self._count > 1 else 0):
            if (process := _start()) is not None:
                self._started.append(process)
            self._idle.put(process)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for process in self._started:
            process.close()

    def decode(self, spans: Iterator[Span]) -> Iterator[Batch]:
        """The batches of all spans, in order; two per process are under way, the first from the call on."""
        if self._count == 1:
            return map(decode_span, spans)
        under_way = deque(self._submit(span) for span in islice(spans, 2 * self._count))
        return self._in_order(under_way, spans)

    def _in_order(self, under_way: deque[Future[Batch]], spans: Iterator[Span]) -> Iterator[Batch]:
        while under_way:
            yield under_way.popleft().result()
            under_way.extend(map(self._submit, islice(spans, 1)))

    def _submit(self, span: Span) -> Future[Batch]:
        return self._threads.submit(self._decode, span)

    def _decode(self, span: Span) -> Batch:
        process = self._idle.get()
        try:
            if process is not None:
                return Batch(*process.ask(span))
        except DiedError:  # this process does its work
            process = None
        finally:
            self._idle.put(process)
        return decode_span(span)


def program() -> str:
    """The code of a decoding process, started without site packages and settings (``-I -S``)."""
    homes = [str(Path(__file__).resolve().parents[2]), str(Path(msgspec.__file__).resolve().parents[1])]
    return f"import sys; sys.path += {homes!r}; from kinetoscope.trace.decoding.spans import serve; serve()"


def _start() -> WorkerProcess | None:
    try:
        return WorkerProcess("-I", "-S", "-c", program(), stderr=subprocess.DEVNULL, pipesize=_PIPE)
    except OSError:  # no interpreter to start, or no process left: this process does the work
        return None
