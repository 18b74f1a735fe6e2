"""Every analysis of this kind gives its columns, and no rows, where there is nothing to analyse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kinetoscope.analysis.collectives.waiting import exposed_waiting, waiting
from kinetoscope.analysis.cost.roofline import kernel_roofline, roofline
from kinetoscope.analysis.health.verdict import health
from kinetoscope.analysis.idle.gaps import gaps, idle
from kinetoscope.analysis.idle.launches import launch_statistics, launches, queue_depth
from kinetoscope.analysis.memory.traced import allocator_calls, memory_statistics
from kinetoscope.analysis.origins.attribution import attribution
from kinetoscope.analysis.step_outliers import step_outliers
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

OF_A_PROFILE = [
    gaps, idle, waiting, exposed_waiting, launch_statistics, memory_statistics, allocator_calls, roofline,
    kernel_roofline,
]  # fmt: skip
HOST_ONLY = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::add",
    "pid": 1,
    "tid": 1,
    "ts": 5,
    "dur": 5,
    "args": {},
}


@pytest.mark.parametrize("analysis", OF_A_PROFILE, ids=lambda f: f.__name__)
def test_no_traces_and_no_device_work(
    trace_of: Callable[..., Trace], analysis: Callable[..., object]
) -> None:
    nothing, host_only = analysis(LoadedRun(())), analysis(LoadedRun((trace_of(HOST_ONLY),)))
    assert len(nothing) == len(host_only) == 0  # type: ignore[arg-type]
    assert nothing.schema == host_only.schema  # type: ignore[attr-defined]


def test_traces_without_device_work(trace_of: Callable[..., Trace]) -> None:
    trace = trace_of(HOST_ONLY)
    for analysis in (attribution, launches, queue_depth):
        assert len(analysis(trace)) == 0
    assert step_outliers(LoadedRun((trace,))) == ()
    assert health(LoadedRun(())).verdict == "good"
