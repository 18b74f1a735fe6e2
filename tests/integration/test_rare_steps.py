"""A notebook that collects garbage every twentieth batch, recorded on an H200 with and without."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from msgspec.structs import replace

import kinetoscope
from kinetoscope.capture.process.whole_run import Tree
from kinetoscope.findings import registry
from kinetoscope.recording.whole_run import WholeRun
from kinetoscope.sources.run import load

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "h200_rare_steps"


def steps_us(side: str) -> list[float]:
    """Every step timed without the profiler, from the manifest alone."""
    (rank,) = json.loads((FOLDER / side / "manifest.json").read_text())["ranks"]
    return [1e6 * seconds for when in ("before", "after") for seconds in rank["steps"][when]["step_s"]]


def test_the_collections_are_the_first_finding_and_save_what_leaving_them_out_saved() -> None:
    first = kinetoscope.load(FOLDER / "collecting").findings()[0]
    saved = statistics.mean(steps_us("collecting")) - statistics.mean(steps_us("not-collecting"))
    assert first.rule == "rare-long-steps"
    assert "garbage collector" in first.title
    assert "gc.collect()" in first.advice
    assert first.saving_us == pytest.approx(saved, rel=0.1)
    assert "rare-long-steps" not in {
        row.rule for row in kinetoscope.load(FOLDER / "not-collecting").findings()
    }


def test_the_report_says_the_mean_next_to_the_median() -> None:
    report = kinetoscope.load(FOLDER / "collecting").report()
    times = steps_us("collecting")
    assert report.as_it_runs is not None
    assert report.as_it_runs.mean_us == pytest.approx(statistics.mean(times))
    assert report.as_it_runs.step_us.median == pytest.approx(statistics.median(times))
    rare = report.as_it_runs.rare_steps
    assert rare is not None
    assert (rare.count, rare.of) == (sum(us > 2 * statistics.median(times) for us in times), len(times))
    assert "at the mean: 2 of 40 take up to 96.7 ms, garbage collection" in " ".join(
        kinetoscope.load(FOLDER / "collecting").to_markdown().split()
    )


def test_no_saving_is_more_than_the_mean_step() -> None:
    report = kinetoscope.load(FOLDER / "collecting").report()
    assert sum(row.saving_us for row in report.findings) <= statistics.mean(steps_us("collecting"))


def test_a_comparison_says_the_means_where_either_side_has_rare_steps() -> None:
    difference = kinetoscope.diff(FOLDER / "collecting", FOLDER / "not-collecting")
    means = statistics.mean(steps_us("collecting")), statistics.mean(steps_us("not-collecting"))
    assert difference.step is not None
    assert difference.step.mean_us == pytest.approx(means)
    assert "7.62 ms → 3.06 ms at the mean with rare long steps" in " ".join(str(difference).split())
    usual = kinetoscope.diff(FOLDER / "not-collecting", FOLDER / "not-collecting")
    assert usual.step is not None
    assert usual.step.mean_us is None


def test_savings_are_of_the_mean_step() -> None:
    report = kinetoscope.load(FOLDER / "collecting").report()
    assert report.replay is not None
    assert report.replay.savings_of_us == pytest.approx(statistics.mean(steps_us("collecting")))


@pytest.mark.parametrize(("samples", "is_named"), [(4, True), (40, False)])  # 80 and 800 ms each time
def test_what_the_whole_run_shows_is_named_where_nothing_that_was_timed_is_the_cause(
    samples: int, is_named: bool
) -> None:
    """Of two steps that take 94 ms more than the others: what takes that long each time is their cause, and
    what takes far longer is not."""
    run = load(FOLDER / "collecting")
    assert run.manifest is not None
    (rank,) = run.manifest.ranks
    steps = rank.steps
    assert steps.before is not None
    assert steps.after is not None
    unknown = replace(
        steps,
        before=replace(steps.before, gc_s=(), data_s=(), sync_s=()),
        after=replace(steps.after, gc_s=(), data_s=(), sync_s=()),
    )
    tree, now_s = Tree(), 0.0
    for _epoch in range(4):
        for _ in range(60):
            now_s += 0.02
            tree.add([("train.py", "train", 3), ("", "", 5)], "timed", now_s, 0.02)
        for _ in range(samples):
            now_s += 0.02
            tree.add(
                [("train.py", "train", 3), ("", "", 9), ("train.py", "evaluate", 20)], "after", now_s, 0.02
            )
    places, nodes = tree.written()
    known = replace(
        run,
        manifest=replace(run.manifest, ranks=(replace(rank, steps=unknown),)),
        watched={rank.rank: WholeRun(places=places, nodes=nodes)},
    )
    (found,) = [one for one in registry.find(known) if one.rule == "rare-long-steps"]
    assert ("probably evaluate (train.py:20)" in found.title) == is_named
    assert ("4 times or more" in found.advice) == is_named
    assert (found.saving.us > 0) == is_named
    unwatched = registry.find(replace(known, watched={}))
    assert not any("evaluate" in one.title for one in unwatched)
