"""One quantity, one value: the parts of every report sum to their whole, whatever was recorded."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from kinetoscope.analysis.run import load
from kinetoscope.report.collect.report import build
from kinetoscope.report.document import Report

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = [
    *sorted((ROOT / "fixtures").rglob("*.json.gz")),
    *(
        ROOT / "cases" / case / "before.json.gz"
        for case in ("cold-start-step", "data-loading-stall", "hotspot")
    ),
]


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def report(request: pytest.FixtureRequest) -> Report:
    return build(load(request.param))


def test_steps_sum_to_the_window(report: Report) -> None:
    for device in report.devices:
        steps = [step for step in report.steps if step.rank == device.rank]
        if steps and device.window_basis == "steps":
            gaps = [after.start_us - step.start_us - step.duration_us for step, after in pairwise(steps)]
            assert min(gaps, default=0.0) >= -0.01
            assert sum(step.duration_us for step in steps) + sum(gaps) == pytest.approx(device.window_us)


def test_categories_and_kernels_sum_to_the_device_time(report: Report) -> None:
    total = sum(device.device_time_us for device in report.devices)
    assert sum(row.device_time_us for row in report.categories) == pytest.approx(total)
    assert sum(row.device_time_us for row in report.kernels) == pytest.approx(total)
    assert sum(row.share_of_device_time for row in report.categories) == pytest.approx(1 if total else 0)


def test_idle_causes_sum_to_idle_and_busy_and_idle_to_the_window(report: Report) -> None:
    for device in report.devices:
        causes = [
            row.idle_us for row in report.idle if (row.rank, row.device) == (device.rank, device.device)
        ]
        assert sum(causes) == pytest.approx(device.idle_us, abs=0.01)
        assert device.busy_fraction * device.window_us + device.idle_us == pytest.approx(device.window_us)


def test_the_program_s_own_step_is_its_busy_and_its_idle_time(report: Report) -> None:
    own = report.as_it_runs
    if own is not None and own.busy_fraction is not None:
        idle = sum(row.idle_us for row in own.idle)
        assert own.busy_fraction * own.step_us.median + idle == pytest.approx(own.step_us.median)
