"""Collections of garbage that no trace shows: measured in the steps that were timed without the profiler."""

from __future__ import annotations

import pytest

from kinetoscope.analysis.passes.as_it_runs import as_it_runs
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import views
from kinetoscope.findings.rules.gc_pause import find
from kinetoscope.recording.manifest import Manifest, RankRecord, StepTimings, TimedSteps
from kinetoscope.sources.run import LoadedRun
from traces import call, host, kernel, step, trace


def recording(collected_us: float, busy_us: int) -> LoadedRun:
    """Steps of 1000 µs by their own clock, of which the device works ``busy_us``."""
    before = TimedSteps(step_s=(1e-3,) * 20, gc_s=(collected_us / 1e6,) * 20)
    record = RankRecord(rank=0, steps=StepTimings(before=before, collects_at="serve.py:104"))
    work = [
        event
        for i in range(3)
        for event in (
            host("aten::mm", 2000 * i + 100, 50),
            call("cudaLaunchKernel", 2000 * i + 110, 5, i + 1),
            kernel("gemm", 2000 * i + 200, busy_us, i + 1),
        )
    ]
    steps = [step(i, 2000 * i, 2000) for i in range(3)]
    return LoadedRun((trace(*steps, *work),), Manifest(ranks=(record,)))


def found(run: LoadedRun) -> list[Finding]:
    (view,) = views(run)
    return list(find(view))


def test_what_the_collector_took_is_a_finding_at_the_line_that_asked() -> None:
    run = recording(700, 100)
    (one,) = found(run)
    assert one.saving.us == pytest.approx(700)
    assert one.source == "serve.py:104"
    assert "700 µs of a step (70% of it)" in one.title
    own = as_it_runs(run)[0]
    assert own.idle["garbage-collection"] == pytest.approx(700)
    assert own.busy_us is not None
    assert own.busy_us + sum(own.idle.values()) == pytest.approx(own.step_us)


def test_no_more_is_promised_than_the_device_idles() -> None:
    (one,) = found(recording(700, 600))
    assert one.saving.us == pytest.approx(400)


def test_collections_that_take_nothing_are_none() -> None:
    assert found(recording(1, 100)) == []
    assert "garbage-collection" not in as_it_runs(recording(1, 100))[0].idle
