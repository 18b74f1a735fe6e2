"""In which lines of the program the thread that steps was, from samples made by hand."""

from __future__ import annotations

import pytest

from kinetoscope.analysis.passes.thread_lines import ThreadLine
from sampled import Run

STEP_US = 30_000


def lines(run: Run) -> dict[str, ThreadLine]:
    found = run.divided()
    assert found is not None
    assert sum(line.share for line in found.lines) == pytest.approx(1)
    assert sum(line.time_us for line in found.lines) == pytest.approx(STEP_US)
    return {" ".join(filter(None, (line.line, line.library, line.calls))): line for line in found.lines}


def test_a_sample_counts_for_the_innermost_line_of_the_program_and_names_what_that_calls() -> None:
    run = Run().sample("before", "<module> 3", times=9)
    run.sample("timed", "<module> 20 train 40 step 33 torchmetrics/metric.py!Metric.forward 12", times=30)
    run.sample("timed", "<module> 20 train 40 step 34 {backward}", times=20)
    run.sample("timed", "<module> 20 train 40 step 35 Net.forward 95", times=10)
    run.sample("after", "<module> 20 train 40 step 35 Net.forward 95", times=40)
    found = lines(run)
    assert {name: line.share for name, line in found.items()} == pytest.approx(
        {"train.py:33 torchmetrics Metric.forward": 0.3, "train.py:34 backward": 0.2, "train.py:95": 0.5}
    )
    metrics = found["train.py:33 torchmetrics Metric.forward"]
    assert (metrics.library, metrics.function, metrics.samples) == ("torchmetrics", "step", 30)
    assert found["train.py:95"].function == "Net.forward"


def test_a_library_s_loop_is_divided_by_the_program_s_lines_that_it_calls() -> None:
    loop = "<module> 20 lightning/trainer.py!Trainer.run 50"
    run = Run().sample("timed", f"{loop} {{optimizer}} lightning/loop.py!closure 9 train 33", times=30)
    run.sample("timed", f"{loop} lightning/fetch.py!fetch 61 {{loading_data}} Set.get 12", times=20)
    run.sample("timed", f"{loop} lightning/fetch.py!move 70", times=10)
    found = lines(run)
    assert {name: line.share for name, line in found.items()} == pytest.approx(
        {"train.py:33": 1 / 2, "train.py:12": 1 / 3, "lightning/fetch.py:70": 1 / 6}
    )
    assert [line.line for line in found.values() if line.loads] == ["train.py:12"]


def test_a_progress_bar_around_a_loader_does_not_log_while_batches_load() -> None:
    bar = "<module> 20 train 40 step 16 tqdm/std.py!tqdm.__iter__ 1186"
    run = Run().sample("timed", f"{bar} {{loading_data}}", times=30)
    run.sample("timed", bar, times=10).sample("timed", "<module> 20 train 40 step 33", times=20)
    assert {name: line.library for name, line in lines(run).items()} == {
        "train.py:16 loading data": "", "train.py:16 tqdm tqdm.__iter__": "tqdm", "train.py:33": ""
    }  # fmt: skip


def test_a_thread_that_waits_for_requests_is_no_work() -> None:
    run = Run().sample("timed", "<module> 20 serve 40 take 70 {waiting}", times=80)
    run.sample("timed", "<module> 20 serve 41 Net.forward 95", times=20)
    found = lines(run)
    assert {name: line.waits for name, line in found.items()} == {
        "train.py:70 waiting": True, "train.py:95": False
    }  # fmt: skip


def test_other_phases_of_the_run_are_no_lines_of_the_steps() -> None:
    run = Run().sample("timed", "<module> 20 train 40 step 33", times=30)
    run.sample("after", "<module> 20 train 44 evaluate 61", times=500)
    assert list(lines(run)) == ["train.py:33"]


def test_few_samples_of_later_steps_are_joined_by_those_while_their_time_settled() -> None:
    run = Run().sample("settling", "<module> 20 train 40 step 33", times=15)
    run.sample("timed", "<module> 20 train 40 step 34", times=5)
    assert {name: line.samples for name, line in lines(run).items()} == {"train.py:33": 15, "train.py:34": 5}
