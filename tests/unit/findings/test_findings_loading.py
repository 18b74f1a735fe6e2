"""What waiting for data is worth, where workers need cores of their own."""

from __future__ import annotations

import pytest

from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import views
from kinetoscope.findings.rules.data_loading_stall import find
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord, StepTimings, TimedSteps
from kinetoscope.sources.run import LoadedRun
from traces import host, step, trace


def found(cores: int, workers: int) -> list[Finding]:
    before = TimedSteps(step_s=(1e-3,) * 20, data_s=(4e-4,) * 20)
    record = RankRecord(rank=0, steps=StepTimings(before=before, loader_workers=workers))
    steps = [step(i, 1000 * i, 1000) for i in range(3)]
    manifest = Manifest(ranks=(record,), environment=Environment(cpu_count=cores))
    (view,) = views(LoadedRun((trace(*steps, host("aten::mm", 500, 400)),), manifest))
    return list(find(view))


@pytest.mark.parametrize(("cores", "saved_us"), [(1, None), (2, 200), (4, 300), (0, 400)])
def test_on_a_cpu_workers_take_turns_with_the_step(cores: int, saved_us: float | None) -> None:
    promised = [one.saving.us for one in found(cores, 0)]
    assert promised == ([] if saved_us is None else [pytest.approx(saved_us)])


@pytest.mark.parametrize(("cores", "advice"), [(4, "no cores for more"), (5, "try 5"), (16, "try 7")])
def test_no_more_workers_are_advised_than_there_are_cores(cores: int, advice: str) -> None:
    (one,) = found(cores, 4)
    assert advice in one.advice
