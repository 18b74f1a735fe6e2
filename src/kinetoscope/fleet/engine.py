"""Engines that map traces: processes of this machine, or of Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from kinetoscope.errors import InputError, MissingDependencyError
from kinetoscope.fleet.worker import SETTINGS, mapped, settled
from kinetoscope.sources.paths import FEW, TraceFile, is_remote
from kinetoscope.trace.workers import DiedError, WorkerProcess, cores

ATTEMPTS = 2  # a trace whose worker died is given to another once
# A worker's memory grows with the largest trace it has read: after so many it is replaced by a new one.
TRACES_A_WORKER = 200
# Bytes of traces that this process maps in the time that others take to start; packed they are 60,000 events.
SMALL = 2 << 20
HOME = str(Path(__file__).resolve().parents[2])
PROGRAM = f"import sys; sys.path.insert(0, {HOME!r}); from kinetoscope.fleet.worker import serve; serve()"

Answer = tuple[TraceFile, bytes | InputError]
Engine = Callable[[Sequence[TraceFile]], Iterator[Answer]]


def local(traces: Sequence[TraceFile]) -> Iterator[Answer]:
    """Map on every core of this machine, or in this process what takes it less time than others take to
    start; answers come as they are ready."""
    if _are_small(traces):
        yield from ((trace, _answered_here(trace)) for trace in traces)
        return
    count = min(cores(), len(traces))
    idle: SimpleQueue[_Worker] = SimpleQueue()
    started = [_Worker() for _ in range(count)]
    for worker in started:
        idle.put(worker)

    def answer(trace: TraceFile) -> bytes | InputError:
        worker = idle.get()
        try:
            return worker.ask(trace)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(max(1, count))
    try:
        pending = {threads.submit(answer, trace): trace for trace in traces}
        for done in as_completed(pending):
            yield pending.pop(done), done.result()
    finally:
        threads.shutdown(cancel_futures=True)
        for worker in started:
            worker.close()


def _are_small(traces: Sequence[TraceFile]) -> bool:
    if len(traces) > FEW or any(is_remote(trace.url) for trace in traces):
        return False
    try:
        return sum(os.path.getsize(trace.url) for trace in traces) <= SMALL
    except OSError:  # one has gone: who maps it says so
        return False


class _Worker:
    """A process that maps, started with its first trace, and again when it has died."""

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None
        self._done = 0

    def ask(self, trace: TraceFile) -> bytes | InputError:
        for _ in range(ATTEMPTS):
            if self._done >= TRACES_A_WORKER:
                self.close()
            self._process = self._process or WorkerProcess("-c", PROGRAM, env=settled())
            try:
                answer: bytes | InputError = self._process.ask((trace.url, trace.rank))
            except DiedError:
                self.close()
                continue
            self._done += 1
            return answer
        return InputError(f"{ATTEMPTS} workers died of it", where=trace.url, hint="is there memory enough?")

    def close(self) -> None:
        process, self._process, self._done = self._process, None, 0
        if process is not None:
            process.close()


def on_ray(traces: Sequence[TraceFile]) -> Iterator[Answer]:
    """Map on the Ray cluster that this process is joined to, or on one of this machine alone. Files must be
    within reach of every machine; a lost worker's trace is mapped by another. Raises MissingDependencyError
    where Ray is not installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            "Ray is not installed", where="--engine ray", hint="pip install 'kinetoscope[ray]'"
        ) from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False, runtime_env={"env_vars": SETTINGS})
    task = ray.remote(max_retries=ATTEMPTS, num_cpus=1)(_answered)
    pending = {task.remote(trace): trace for trace in traces}
    while pending:
        done, _ = ray.wait(list(pending), num_returns=1)
        for one in done:
            trace = pending.pop(one)
            try:
                yield trace, ray.get(one)
            except ray.exceptions.RayError as error:
                yield trace, InputError(f"its worker was lost: {type(error).__name__}", where=trace.url)


def _answered(trace: TraceFile) -> bytes | InputError:
    try:
        return mapped(trace.url, trace.rank)
    except InputError as error:
        return error


def _answered_here(trace: TraceFile) -> bytes | InputError:
    """As ``_answered``; what would end a worker must not end the process in which all are compared."""
    try:
        return _answered(trace)
    except Exception as error:
        return InputError(f"it cannot be mapped: {type(error).__name__}: {error}", where=trace.url)


ENGINES: dict[str, Engine] = {"local": local, "ray": on_ray}
