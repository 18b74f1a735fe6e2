"""Two places of a report that show one number show the same: over the project's own recordings."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from broad import broad
from kinetoscope.analysis.replay.what_if import asked
from kinetoscope.comparison.counts import counts
from kinetoscope.document import Report
from kinetoscope.document.collect.findings import listing
from kinetoscope.document.collect.kernels import listing as by
from kinetoscope.document.collect.replay import what_if_listing
from kinetoscope.document.collect.report import build
from kinetoscope.document.collect.timeline import timeline
from kinetoscope.render.blocks import plain
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.views import findings, headline

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDINGS = [
    *sorted((FIXTURES / "h200").glob("*.json.gz")),
    *sorted((FIXTURES / "h200_breaks").glob("*.json.gz")),
    *sorted((FIXTURES / "h200-dist").glob("*warm*.json.gz")),
    FIXTURES / "h100_everyday" / "host-bound",
]


# Programs of which another recording is tried each time: by another way to time, mode, size or rank.
BY_HAND = {
    *("forum_eager", "forum_noreturn_first", "forum_return_second", "llama_train_eager", "breaks", "whole"),
    *("mm_4096_warm_compile", "mm_4096_warm_compile_max-autotune", "mm_64_cold_eager", "mm_64_warm_eager"),
    *("mm_4096_warm_eager", "fsdp_warm_none_rank1"),
}
QUICK = [path for path in RECORDINGS if path.name.removesuffix(".json.gz") not in BY_HAND]


@pytest.fixture(scope="module", params=broad(RECORDINGS, QUICK), ids=lambda path: path.name)
def loaded(request: pytest.FixtureRequest) -> LoadedRun:
    return load(request.param)


@pytest.fixture(scope="module")
def report(loaded: LoadedRun) -> Report:
    return build(loaded)


def test_kernels_and_their_time_are_as_many_in_every_table(report: Report) -> None:
    launches = sum(row.launches for row in report.kernels)
    assert launches == sum(row.launches for row in report.categories)
    assert launches >= sum(row.launches for row in report.steps)
    kernels = sum(row.launches for row in report.kernels if row.kind == "kernel")
    assert kernels == sum(row.kernel_launches for row in report.devices)
    time = sum(row.device_time_us for row in report.kernels)
    for rows in (report.categories, report.devices):
        assert sum(row.device_time_us for row in rows) == pytest.approx(time)
    assert sum(op.launches for row in report.kernels for op in row.ops) == launches


def test_the_verbs_count_what_the_report_counts(loaded: LoadedRun, report: Report) -> None:
    if not report.devices:
        pytest.skip("no device worked")
    by_kernel, by_category = (by(loaded, key, None) for key in ("kernel", "category"))
    assert [(row.name, row.short_name, row.launches) for row in by_kernel.rows] == [
        (row.name, row.short_name, row.launches) for row in report.kernels
    ]
    assert {row.name: row.launches for row in by_category.rows} == {
        row.category: row.launches for row in report.categories
    }
    assert by_kernel.device_time_us == pytest.approx(sum(row.device_time_us for row in report.kernels))


def test_counts_of_check_and_history_are_those_of_the_steps(loaded: LoadedRun, report: Report) -> None:
    counted = counts(loaded)
    shown = {
        rank: [step.launches for step in report.steps if step.rank == rank]
        for rank in {step.rank for step in report.steps}
    }
    if shown:
        assert counted["launches"] == max(statistics.median_low(each) for each in shown.values())
    if report.compilation is not None:
        assert counted["graph_breaks"] == len(report.compilation.graph_breaks)
        assert counted["recompilations"] == len(report.compilation.recompilations)


def test_the_title_and_the_launches_below_it_add_up(report: Report) -> None:
    titles = [row.title for row in report.findings if row.rule == "overhead-bound"]
    for title in titles:
        said = re.search(r"launching ([\d,]+) \w.*? each(?: and ([\d,]+) copies)?", title)
        assert said is not None
        kernels, others = (int((number or "0").replace(",", "")) for number in said.groups())
        launched = sum(row.launches * row.work_per_launch for row in report.launching)
        assert kernels + others == pytest.approx(launched / max(1, len(report.steps)), abs=1)


def test_one_step_has_one_time(loaded: LoadedRun, report: Report) -> None:
    if not report.steps or report.replay is None or report.as_it_runs is not None:
        pytest.skip("no steps as they were recorded")
    times = [step.duration_us for step in report.steps]
    assert min(times) <= report.replay.recorded_us <= max(times)
    assert report.replay.savings_of_us == pytest.approx(statistics.fmean(times), rel=0.001)
    found = what_if_listing(loaded, asked())
    assert found is not None
    assert found.replay.step_us == pytest.approx(report.replay.step_us)


def test_idle_time_by_cause_is_the_devices_idle_time(report: Report) -> None:
    for device in report.devices:
        rows = [row for row in report.idle if (row.rank, row.device) == (device.rank, device.device)]
        assert sum(row.idle_us for row in rows) == pytest.approx(device.idle_us, abs=1.0)
    shown = headline.idle_causes(report)
    assert sum(row.idle_us for row in shown) == pytest.approx(sum(row.idle_us for row in report.idle))


def test_a_break_is_a_place_everywhere(report: Report) -> None:
    facts = report.compilation
    if facts is None:
        pytest.skip("nothing was compiled")
    number = len(facts.graph_breaks)
    words = f"{number} graph break" + ("" if number == 1 else "s")
    assert words in (headline.compilation(report) or "")


def test_the_report_and_the_verb_promise_the_same_in_the_same_words(
    loaded: LoadedRun, report: Report
) -> None:
    verb = listing(loaded)
    assert [row.rule for row in verb.findings] == [row.rule for row in report.findings]
    for row, other in zip(report.findings, verb.findings, strict=True):
        assert findings.saving(report, row) == findings.saving(verb, other)
    claimed = sum(row.saving_us for row in report.findings)
    if report.replay is not None and report.replay.joint_saving_us:
        assert claimed == pytest.approx(report.replay.joint_saving_us, rel=1e-6, abs=1.0)


def test_what_stands_below_one_that_saves_less_says_why(report: Report) -> None:
    least = float("inf")
    for row in report.findings:
        if row.saving_us > 1.01 * least:
            assert row.stands_below, row.rule
        if not row.saving_bytes and row.saving_us > 0:
            least = min(least, row.saving_us)


def test_no_title_promises_a_time_of_its_own(report: Report) -> None:
    for row in report.findings:
        if row.affected_us:
            assert plain([row.title]).count(" ms") == 0, row.title


@pytest.mark.parametrize(
    "path", [FIXTURES / "h200_breaks", *sorted((FIXTURES / "compile-logs").glob("*.log.gz"))]
)
def test_compiling_is_counted_the_same_by_gates_and_reports(path: Path) -> None:
    run = load(path)
    facts, counted = build(run).compilation, counts(run)
    assert facts is not None
    assert counted["graph_breaks"] == len(facts.graph_breaks)
    assert counted["recompilations"] == len(facts.recompilations)
    assert counted["compile_failures"] == len(facts.failures)


def test_the_page_draws_the_work_that_its_tables_count(loaded: LoadedRun, report: Report) -> None:
    drawn = timeline(loaded, ())
    if drawn is None or drawn.left_out:
        pytest.skip("the page does not draw all events")
    work = sum(lane.count for lane in drawn.lanes if lane.kind == "stream")
    assert work == sum(row.launches for row in report.kernels)
    length = next(column.length for column in drawn.columns if column.name == "start")
    assert length == sum(lane.count for lane in drawn.lanes)
    assert {row.cause for row in report.idle} <= set(drawn.causes)


def test_the_critical_path_is_the_step_in_the_report_and_the_verb(loaded: LoadedRun, report: Report) -> None:
    found = what_if_listing(loaded, asked())
    if report.replay is None or found is None:
        pytest.skip("nothing was recorded that replays")
    parts = report.replay.critical_path
    assert sum(part.us for part in parts) == pytest.approx(report.replay.step_us)
    assert [(part.text, part.lines) for part in found.replay.critical_path] == [
        (part.text, part.lines) for part in parts
    ]
    for part in parts:
        assert sum(line.us for line in part.lines or ()) <= part.us * (1 + 1e-6)
