"""Streams that began late: found for all of them at once, and said of the longest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kinetoscope.analysis.health.verdict import LISTED, health
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace


def events(streams: int, busy: bool) -> list[dict[str, Any]]:
    """A kernel a stream, launched in the first 100 µs and begun after 10 ms; ``busy``: one fills the time."""
    found: list[dict[str, Any]] = []
    for number in range(streams):
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        found.append({**launch, "ts": number, "dur": 1, "args": {"correlation": number + 1}})
        kernel = {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": 0,
            "tid": number,
            "ts": 10_000 + number,
            "dur": 1,
        }
        found.append({**kernel, "args": {"correlation": number + 1, "device": 0, "stream": number}})
    if busy:
        filling = {"ph": "X", "cat": "kernel", "name": "f", "pid": 0, "tid": 999, "ts": 1, "dur": 20_000}
        found.append({**filling, "args": {"correlation": 9999, "device": 0, "stream": 999}})
    return found


def notes(trace: Trace) -> list[str]:
    return [note.text for note in health(LoadedRun((trace,))).notes if note.code == "unseen-work-before"]


def test_the_longest_are_said_and_the_others_counted(trace_of: Callable[..., Trace]) -> None:
    assert len(notes(trace_of(*events(3, busy=False)))) == 3
    many = notes(trace_of(*events(50, busy=False)))
    assert len(many) == LISTED + 1
    assert "45 more streams" in many[-1]


def test_a_device_that_worked_meanwhile_was_not_waiting(trace_of: Callable[..., Trace]) -> None:
    assert notes(trace_of(*events(3, busy=True))) == []
