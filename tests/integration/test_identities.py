"""One quantity, one value: the parts of every report sum to their whole, whatever was recorded."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

from kinetoscope.analysis.collectives.waiting import waits
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.idle.launches import launches
from kinetoscope.analysis.kernels.taxonomy import OTHER
from kinetoscope.analysis.time.window import window
from kinetoscope.document import Report
from kinetoscope.document.collect.report import build
from kinetoscope.sources.run import LoadedRun, load

ROOT = Path(__file__).resolve().parents[1]
# Like the others, and many: those run by hand.
BY_HAND = ("h200", "h200-dist")
RECORDINGS = [
    *(
        pytest.param(path, marks=[pytest.mark.slow] if path.parent.name in BY_HAND else [])
        for path in sorted((ROOT / "fixtures").rglob("*.json.gz"))
        if path.parent.name != "h200_memory"
    ),
    *(
        ROOT / "cases" / case / "before.json.gz"
        for case in ("cold-start-step", "data-loading-stall", "hotspot")
    ),
]


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def run(request: pytest.FixtureRequest) -> LoadedRun:
    return load(request.param)


@pytest.fixture(scope="module")
def report(run: LoadedRun) -> Report:
    return build(run)


def test_steps_sum_to_the_window(report: Report) -> None:
    for device in report.devices:
        steps = [step for step in report.steps if step.rank == device.rank]
        if steps and device.window_basis == "steps":
            gaps = [after.start_us - step.start_us - step.duration_us for step, after in pairwise(steps)]
            assert min(gaps, default=0.0) >= -0.01
            assert sum(step.duration_us for step in steps) + sum(gaps) == pytest.approx(device.window_us)
            if max(gaps, default=0.0) < 0.01:
                same = [row for row in report.devices if row.rank == device.rank]
                busy = sum(row.busy_fraction * row.window_us for row in same)
                assert sum(step.busy_us for step in steps) == pytest.approx(busy)


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


def test_every_table_gives_device_time_to_the_same_ops(report: Report) -> None:
    """The op table, and who launched each kernel: both go by the launching call."""
    launched: dict[str, float] = {}
    for op in (op for kernel in report.kernels for op in kernel.ops):
        name = re.sub("^ProfilerStep.*", "ProfilerStep*", op.name)
        launched[name] = launched.get(name, 0.0) + op.device_time_us
    table: dict[str, float] = {}
    for row in report.ops:
        if row.kind in ("cpu_op", "user_annotation"):
            table[row.name] = table.get(row.name, 0.0) + row.device_self_us
    known = launched.keys() - {"no op", "unattributed"}
    assert {name: table[name] for name in known} == pytest.approx({name: launched[name] for name in known})
    assert not any(us for name, us in table.items() if name not in known)


def test_each_count_of_launches_is_of_its_own_thing(report: Report) -> None:
    events = sum(device.device_events for device in report.devices)
    assert sum(row.launches for row in report.kernels) == events
    assert sum(row.launches for row in report.categories) == events
    kernels = sum(row.launches for row in report.kernels if row.kind == "kernel")
    assert sum(device.kernel_launches for device in report.devices) == kernels
    calls = {(row.rank, row.device): row for row in report.launching}
    for device in report.devices:
        answered = device.device_events - device.unattributed_kernels
        row = calls.get((device.rank, device.device))
        assert (row.launches * row.work_per_launch if row else 0) == pytest.approx(answered)
        assert row is None or row.on_idle_device <= row.launches


def test_a_launch_that_found_the_device_idle_ends_a_gap_of_its_own(run: LoadedRun, report: Report) -> None:
    for trace in run.traces:
        within = window(trace)
        found = launches(trace).filter(
            (pl.col("depth") == 1)
            & (pl.col("start_ns") >= within.start_ns)
            & (pl.col("first_start_ns") < within.end_ns)
        )
        pieces = gaps(run).filter(pl.col("rank") == trace.rank)
        ended = pieces.group_by("device", "next").agg(pl.min("start_ns"), until=pl.max("end_ns"))
        inside = found.join(ended, on="device", suffix="_of_gap").filter(
            pl.col("start_ns").is_between("start_ns_of_gap", "until", "left")
        )
        assert inside["next"].n_unique() == len(inside)
        assert len(inside) <= len(ended)
        assert len(inside) >= len(found) - len(trace.device_events.filter(pl.col("launch").is_null()))
        on_idle = sum(row.on_idle_device for row in report.launching if row.rank == trace.rank)
        assert len(found) <= on_idle


def test_waiting_inside_collectives_has_one_total(run: LoadedRun, report: Report) -> None:
    shown = sum(row.busy_inside_collectives_us for row in report.idle)
    assert shown * 1000 == pytest.approx(sum(waits(run, trace)["saved_ns"].sum() for trace in run.traces))


def test_hardly_a_kernel_is_of_an_unknown_family(report: Report) -> None:
    assert sum(row.share_of_device_time for row in report.categories if row.category == OTHER) <= 0.02
