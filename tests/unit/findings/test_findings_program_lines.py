"""Lines of the program that findings name: by samples of its thread, and by the lines of its ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kinetoscope.findings.program_lines import never_waits, of_loader, that_launch, waits_at
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import (
    new_shapes,
    python_overhead,
    rare_long_steps,
    scoring_in_loop,
    unexplained_idle,
)
from kinetoscope.recording.manifest import (
    Environment,
    Manifest,
    Program,
    RankRecord,
    StepTimings,
    TimedSteps,
)
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from sampled import FILE, Run
from traces import Event, call, event, host, kernel, noted, step, trace

STEP_US, STEP_S = 10_000.0, 1e-2
STEP = "<module> 20 train 40 step 34"
METRIC = "<module> 20 train 40 step 33 torchmetrics/metric.py!Metric.forward 12"


def view_of(
    samples: Run,
    *more: Event,
    busy_us: float = 2500,
    timed: TimedSteps | None = None,
    grids: Sequence[int] = (1, 1, 1),
) -> RankView:
    """Three steps of 10 ms, timed at that pace or otherwise, each with a kernel of its own."""
    events = [
        event
        for i in range(3)
        for event in (
            step(i, i * STEP_US, STEP_US),
            host("aten::mm", i * STEP_US + 10, 20),
            call("cudaLaunchKernel", i * STEP_US + 15, 5, i + 1),
            kernel("gemm", i * STEP_US + 30, busy_us, i + 1, grid=[grids[i], 1, 1]),
        )
    ]
    timed = timed or TimedSteps(step_s=(STEP_S,) * 20, host_s=(STEP_S,) * 20)
    timings = StepTimings(before=timed, profiled_s=(STEP_S,) * 3, steps_after=20, passed=20)
    records = (RankRecord(rank=0, steps=timings),)
    found = trace(*events, *more)
    return RankView(LoadedRun((found,), Manifest(ranks=records), watched={0: samples.written()}), found)


def test_metrics_of_each_step_are_promised_as_far_as_the_device_is_idle() -> None:
    samples = Run().sample("timed", METRIC, times=40).sample("timed", STEP, times=60)
    (found,) = scoring_in_loop.find(view_of(samples))
    assert found.title == (
        "The program scores in every step: 4.00 ms of it pass in torchmetrics, called by step (train.py:33)"
    )
    assert found.saving.us == pytest.approx(4000 * (1 - 2500 / 10_000), rel=0.01)
    assert found.source == "train.py:33"


@pytest.mark.parametrize(
    "path",
    [
        "<module> 20 train 40 {loading_data} Set.get 12 PIL/Image.py!open 9",  # a data set reads pictures
        "<module> 20 train 40 step 33 transformers/modeling.py!forward 9",
        "<module> 20 train 40 step 33",
    ],
)
def test_what_is_no_metric_is_none(path: str) -> None:
    assert not list(scoring_in_loop.find(view_of(Run().sample("timed", path, times=50))))


def test_few_samples_say_nothing_of_metrics() -> None:
    samples = Run().sample("timed", METRIC, times=4).sample("timed", STEP, times=40)
    assert not list(scoring_in_loop.find(view_of(samples)))


def test_an_evaluation_between_steps_that_most_of_the_run_passes_in_is_a_finding_with_its_line() -> None:
    samples = Run().sample("timed", STEP, times=40)
    evaluation = "<module> 20 train 45 evaluate 61"
    samples.sample("after", f"{evaluation} transformers/trainer_pt_utils.py!nested_numpify 165", times=50)
    samples.sample("after", f"{evaluation} Net.forward 95", times=10)
    (found,) = rare_long_steps.find(view_of(samples))
    each = 60 * 0.02 / 40  # seconds of the evaluation, for each of the program's steps
    assert found.title == (
        f"evaluate (train.py:60) takes 60.0 % of the run after its setup, {each * 1e3:.1f} ms for each step, "
        "and is part of none: most of it passes in nested_numpify "
        "(transformers/trainer_pt_utils.py:165)"
    )
    assert (found.saving.us, found.saving.most_us) == (0, pytest.approx(each * 1e6))
    assert "preprocess_logits_for_metrics" in (found.snippet or "")


@pytest.mark.parametrize("device", [True, False])
def test_advice_for_an_evaluation_names_the_device_where_there_is_one(device: bool) -> None:
    samples = Run().sample("timed", STEP, times=40)
    view = view_of(samples.sample("after", "<module> 20 train 45 evaluate 61 Net.forward 95", times=60))
    if not device:
        found = replace(view.trace, device_events=view.trace.device_events.clear())
        view = RankView(LoadedRun((found,), view.run.manifest, watched=view.run.watched), found)
    (finding,) = rare_long_steps.find(view)
    assert ("device" in finding.advice) == device
    assert "less often" in finding.advice


@pytest.mark.parametrize(("busy_us", "idle"), [(2500, 0.75), (9000, 0.0)])
def test_a_recorded_evaluation_tells_how_long_the_device_is_idle_in_all(busy_us: float, idle: float) -> None:
    samples = Run().sample("timed", STEP, times=40)
    samples.sample("after", "<module> 20 train 45 evaluate 61 Net.forward 95", times=60)
    marked = event("user_annotation", "evaluate", STEP_US + 5, STEP_US - 10)
    (found,) = rare_long_steps.find(view_of(samples, marked, busy_us=busy_us))
    each = 1e6 * 60 * 0.02 / 40
    assert found.saving.us == pytest.approx(idle * each)
    assert found.saving.condition == ("no batch needs another's answer" if idle else "")
    assert ("larger batches" in found.advice) == (idle > 0)


SCORED = """import torch

def overlap(one, other):
    return torch.min(one, other).sum()

def kept(boxes):
    waiting = list(boxes)
    while waiting:
        first = waiting.pop(0)
        waiting = [
            box for box in waiting if overlap(torch.tensor(first), torch.tensor(box)) < 1
        ]
"""


def scored(folder: Path, source: str = SCORED, times: int = 40) -> RankView:
    """An evaluation after 40 steps, of 60 samples, of which so many are in a comprehension in a loop."""
    samples = Run().sample("timed", STEP, times=40)
    evaluation = "<module> 20 train 45 evaluate 61"
    samples.sample("after", f"{evaluation} kept 11", f"{evaluation} kept 11 overlap 4", times=times // 2)
    samples.sample("after", f"{evaluation} Net.forward 95", times=60 - times)
    view = view_of(samples)
    (folder / "kept.json").write_bytes(msgspec.json.encode(Program(files={FILE: source})))
    record = replace(view.run.records[0], program="kept.json")
    run = LoadedRun(view.run.traces, Manifest(ranks=(record,)), folder=folder, watched=view.run.watched)
    return RankView(run, view.trace)


def test_what_an_evaluation_computes_item_by_item_on_the_host_is_promised(tmp_path: Path) -> None:
    (found,) = rare_long_steps.find(scored(tmp_path))
    assert "most of it passes in kept (train.py:11)" in found.title
    assert found.saving.us == pytest.approx(40 * 0.02 / 40 * 1e6)
    assert found.saving.most_us == pytest.approx(60 * 0.02 / 40 * 1e6)
    assert found.saving.condition == "no item needs what was computed of another"
    assert "train.py:10 computes it one by one" in found.advice


@pytest.mark.parametrize(
    "program",
    [
        {"source": ""},  # which is not known
        {"source": SCORED.replace("torch.tensor(box)", "torch.tensor(box, device=device)")},
        {"source": SCORED.replace("torch.tensor(box)", "torch.tensor(box).cuda()")},
        {"source": SCORED.replace("torch.tensor", "tokenizer.tensor")},
        {"source": SCORED.replace("while waiting:", "with device:")},
        {"source": SCORED.replace("while waiting:", "if waiting:")},  # once for each call: a batch, maybe
        {"source": f"{SCORED}torch.set_default_device('cuda')"},
    ],
)
def test_of_what_else_an_evaluation_computes_nothing_is_promised(tmp_path: Path, program: Any) -> None:
    (found,) = rare_long_steps.find(scored(tmp_path, **program))
    assert (found.saving.us, found.saving.condition) == (0, "")


def test_an_evaluation_that_takes_little_of_the_run_is_none() -> None:
    samples = Run().sample("timed", STEP, times=90)
    samples.sample("after", "<module> 20 train 45 evaluate 61 Net.forward 95", times=10)
    assert not list(rare_long_steps.find(view_of(samples)))


SAVING = "<module> 20 train 44 save_checkpoint 81 {saving}"
SCORING = "<module> 20 train 45 score 52"


def long_steps(
    path: str, waits_s: float = 0.0, grids: Sequence[int] = (1, 1, 1), loads_s: float = 0.0
) -> RankView:
    """Each tenth of 40 steps of 10 ms takes 400 ms more, of which it waits so long for the device, and so
    long for loaders. The kernel of each recorded step has a grid of so many blocks."""
    samples = Run().ticked(STEP)
    for _ in range(4):
        samples.sample("timed", STEP, times=5).sample("timed", path, times=20)
    usual, none = (STEP_S,) * 9, (0.0,) * 9
    timed = TimedSteps(
        step_s=(*usual, 0.41) * 4, host_s=(*usual, 0.41) * 4, sync_s=(*none, waits_s) * 4,
        data_s=(*none, loads_s) * 4, gc_s=(0.0,) * 40,
    )  # fmt: skip
    return view_of(samples, timed=timed, grids=grids)


@pytest.mark.parametrize("waits_s", [0.0, 0.3])  # a state that is saved is copied from the device first
def test_the_function_of_long_steps_is_named_and_promised_for_each_step(waits_s: float) -> None:
    (found,) = rare_long_steps.find(long_steps(SAVING, waits_s))
    assert found.title == (
        "1 of 10 steps takes 400 ms more than the others (10.0 ms), in save_checkpoint (train.py:7): "
        "writing files"
    )
    assert found.saving.us == pytest.approx(40_000, rel=0.02)
    assert found.saving.us <= found.saving.most_us == pytest.approx(40_000)
    assert "in another thread" in found.advice
    assert "torch.save" in (found.snippet or "")


def test_what_is_no_saving_is_advised_to_be_done_less_often() -> None:
    (found,) = rare_long_steps.find(long_steps(SCORING))
    assert found.title.endswith("in score (train.py:7)")
    assert found.advice.startswith("Let score (train.py:7) run less often")
    assert found.snippet is None


def test_an_evaluation_that_waits_for_a_loader_of_its_own_is_named() -> None:
    (found,) = rare_long_steps.find(long_steps(f"{SCORING} {{loading_data}}", loads_s=0.39))
    assert found.title == (
        "1 of 10 steps takes 400 ms more than the others (10.0 ms), in score (train.py:7): "
        "waiting for the data loader"
    )
    assert found.saving.us == pytest.approx(40_000, rel=0.02)
    assert found.advice == (
        "Let score (train.py:7) run less often, or let workers make its batches ahead of time."
    )
    # The loop's own loader, which usual steps wait for as well.
    (found,) = rare_long_steps.find(long_steps("<module> 20 train 39 {loading_data}", loads_s=0.39))
    assert found.title == "4 of 40 steps take up to 410 ms, the others 10.0 ms: waiting for the data loader"


def with_lines(view: RankView, lines: Trace) -> RankView:
    return RankView(replace(view.run, lines={0: lines}), view.trace)


def test_what_usual_steps_run_as_well_cannot_run_less_often() -> None:
    usual = noted(("aten::mm", "train.py(52): score"))
    view = with_lines(long_steps(SCORING), usual)
    (found,) = rare_long_steps.find(view)
    assert "in score (train.py:7), which usual steps run as well" in found.title
    assert (found.saving.us, found.saving.most_us) == (0, pytest.approx(40_000))
    assert not list(new_shapes.find(view))  # the kernel's grid is the same in each step
    (found,) = rare_long_steps.find(
        with_lines(long_steps(SAVING), noted(("aten::mm", "train.py(81): save_checkpoint")))
    )
    assert found.title.endswith("in save_checkpoint (train.py:7): writing files")


def test_long_steps_of_a_function_whose_shapes_vary_are_those_in_which_a_library_plans() -> None:
    usual = noted(("aten::mm", "train.py(52): score"))
    view = with_lines(long_steps(SCORING, grids=(1, 2, 3)), usual)
    (found,) = new_shapes.find(view)
    assert found.title == (
        "4 of 40 steps take 400 ms more than the others (10.0 ms): probably aten::mm plans anew for sizes "
        "that it has not met"
    )
    assert found.saving.us == pytest.approx(40_000)
    assert not list(rare_long_steps.find(view))
    elsewhere = noted(("aten::mm", "train.py(34): score"))  # not at the line at which the thread is
    assert not list(new_shapes.find(with_lines(view, elsewhere)))
    (found,) = rare_long_steps.find(with_lines(view, noted(("aten::mm", "train.py(52): step"))))
    assert "Let score (train.py:7) run less often" in found.advice


EARLIER = "<module> 20 train 45 first_phase 52"


def test_what_takes_much_more_than_long_steps_add_is_not_why_they_are_long() -> None:
    """Phases that were over before steps were timed."""
    view = long_steps(STEP)
    samples = Run().ticked(STEP).sample("timed", STEP, times=20)
    for _ in range(2):
        samples.sample("after", STEP, times=10).sample("after", EARLIER, times=100)
    (found,) = rare_long_steps.find(RankView(replace(view.run, watched={0: samples.written()}), view.trace))
    assert "unknown" in found.title
    assert found.saving.us == 0


CHOOSING = "<module> 20 train 40 rays 12"


def choosing(samples: Run, us: float) -> RankView:
    """Three steps of 10 ms without a device, with so long of Python or NumPy between two ops."""
    events = [
        event
        for i in range(3)
        for event in (
            step(i, i * STEP_US, STEP_US),
            host("aten::select", i * STEP_US + 10, 20),
            host("aten::index", i * STEP_US + 30 + us, 20),
            host("aten::mm", i * STEP_US + 60 + us, 9_900 - us),
        )
    ]
    timings = StepTimings(before=TimedSteps(step_s=(STEP_S,) * 20, host_s=(STEP_S,) * 20))
    found = trace(*events)
    lines = noted(
        ("aten::select", "train.py(41): train"),
        *(("", "train.py(12): rays") for _ in range(9)),
        ("aten::index", "train.py(41): train"),
        ("aten::mm", "train.py(42): train"),
    )
    run = LoadedRun((found,), Manifest(ranks=(RankRecord(rank=0, steps=timings),)))
    run = replace(run, watched={0: samples.written()}, lines={0: lines})
    return RankView(run, found)


def test_without_a_device_a_function_that_runs_no_op_is_named() -> None:
    samples = Run().sample("timed", CHOOSING, times=40).sample("timed", STEP, times=60)
    (found,) = python_overhead.find(choosing(samples, 4_000))
    assert found.title == (
        "rays (train.py:12) runs no op for 4.00 ms of each step, but Python or a library such as NumPy"
    )
    assert found.saving.us == 0
    assert found.saving.most_us == pytest.approx(4_000, rel=0.01)
    assert not list(python_overhead.find(choosing(samples, 400)))
    elsewhere = Run().sample("timed", STEP, times=100)
    assert not list(python_overhead.find(choosing(elsewhere, 4_000)))


BUSY = Environment(cpu_count=2, load_average=9.0)


def on_a_busy_machine(view: RankView, lines: Trace | None = None) -> RankView:
    assert view.run.manifest is not None
    run = replace(
        view.run,
        manifest=replace(view.run.manifest, environment=BUSY),
        lines={} if lines is None else {0: lines},
    )
    return RankView(run, view.trace)


def test_on_a_busy_machine_steps_are_long_by_chance() -> None:
    (found,) = rare_long_steps.find(on_a_busy_machine(long_steps(SAVING)))
    assert found.saving.us > 0
    usual = noted(("aten::mm", "train.py(52): score"))
    assert not list(rare_long_steps.find(on_a_busy_machine(long_steps(SCORING), usual)))
    assert not list(rare_long_steps.find(on_a_busy_machine(long_steps(STEP))))


def test_without_a_function_that_long_steps_are_about_waiting_promises_nothing() -> None:
    (found,) = rare_long_steps.find(long_steps(STEP, waits_s=0.3))
    assert found.saving.us == 0
    assert "calls that wait for the device" in found.title


def test_a_loader_s_slow_function_is_named_with_the_library_that_it_calls() -> None:
    row = "<module> 20 train 40 {loading_data} Table.row 44 pandas/series.py!Series.__getitem__ 9"
    samples = Run().sample("timed", row, times=30).sample("timed", "<module> 20 train 41", times=10)
    view = view_of(samples)
    assert of_loader(view) == " 100 % of it passes in Table.row (train.py:44), mostly in calls of pandas."
    assert of_loader(view_of(Run().sample("timed", row, times=9))) == ""


def test_where_ops_have_no_lines_samples_say_which_function_launches() -> None:
    samples = (
        Run().sample("timed", METRIC, times=40).sample("timed", "<module> 20 train 41 {backward}", times=50)
    )
    samples.sample("timed", "<module> 20 train 42 Net.forward 95", times=20)
    view = view_of(samples)
    named = that_launch(view, view.work["launch"].unique())
    assert named is not None
    assert named[1] == "train.py:33"
    assert "66.7 % passes in step (train.py:33), which calls torchmetrics Metric.forward" in named[0]


def test_a_loop_is_named_by_how_often_its_lines_run() -> None:
    called = [("aten::mm", "net.py(3): Net.forward")]
    called += [("aten::add", "net.py(8): Net.turn"), ("aten::mul", "net.py(9): Net.other")] * 60
    events: list[Event] = [step(1, 0, STEP_US)]
    for number, (name, _) in enumerate(called, 1):
        at = 20.0 * number
        events += [host(name, at, 10), call("cudaLaunchKernel", at + 2, 5, number)]
        events.append(kernel(name, at + 9, 2, number))
    found = trace(*events)
    view = RankView(LoadedRun((found,), lines={0: noted(*called)}), found)
    named = that_launch(view, view.work["launch"].unique())
    assert named is not None
    assert named[1] in ("net.py:8", "net.py:9")
    assert "99.2 % of the launches (120 per step) come from lines that run 60 times per step" in named[0]


def gap(samples: Run) -> RankView:
    """The thread does nothing for 9 ms of each step, and then sends what is no small state."""
    sent = [
        event
        for i in range(3)
        for event in (
            host("aten::copy_", i * STEP_US + 9000, 50),
            call("cudaMemcpyAsync", i * STEP_US + 9010, 30, i + 11),
            kernel("Memcpy HtoD (Pageable -> Device)", i * STEP_US + 9030, 5, i + 11, bytes=1 << 20)
            | {"cat": "gpu_memcpy"},
        )
    ]
    return view_of(samples, *sent, busy_us=50)


@pytest.mark.parametrize(
    ("path", "waits"), [("<module> 20 serve 70 {waiting}", True), ("<module> 20 serve 70", False)]
)
def test_a_line_that_samples_see_waiting_is_promised_nothing(
    path: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line: Callable[..., str] = lambda *_: "src/train.py:70 serve"  # noqa: E731
    monkeypatch.setattr(unexplained_idle, "_line_before", line)
    view = gap(Run().sample("timed", path, times=50))
    (found,) = unexplained_idle.find(view)
    assert (waits_at(view, "src/train.py:70") is not None) == waits
    assert ("waits for others in src/train.py:70 serve" in found.title) == waits
    assert (found.saving.us == 0) == waits
    assert found.source == "src/train.py:70"


FEATURES = "<module> 20 serve 70 features 33 numpy/fft.py!rfft 9"


@pytest.mark.parametrize("before", ["src/train.py:66 serve", None])
def test_the_function_that_samples_see_computing_is_named_where_the_device_waits(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    line: Callable[..., str | None] = lambda *_: before  # noqa: E731
    monkeypatch.setattr(unexplained_idle, "_line_before", line)
    sample = Run().sample("timed", "<module> 20 serve 66 {waiting_for_a_lock}", times=50)
    view = gap(sample.sample("timed", FEATURES, times=20))
    (found,) = unexplained_idle.find(view)
    says = "Of the thread's time in the program's own lines 100 % passes in features (train.py:33)"
    assert found.advice.startswith(f"Most of it passes in {before}. {says}" if before else says)
    assert found.saving.us > 0


@pytest.mark.parametrize(("waiting", "never"), [(0, True), (1, True), (20, False)])
def test_a_thread_that_waits_for_a_lock_of_its_like_waits_for_no_request(waiting: int, never: bool) -> None:
    samples = Run().sample("timed", "<module> 20 serve 66 {waiting_for_a_lock}", FEATURES, times=20)
    samples.sample("timed", "<module> 20 serve 64 {waiting}", times=waiting)
    assert never_waits(view_of(samples)) == never
    assert not never_waits(view_of(Run().sample("timed", FEATURES, times=9)))


EVALUATING = "<module> 20 train 45 evaluate 61 Net.forward {line}"


def with_rounds(
    between_s: float, path: str | None = None, pace: Sequence[float] = (STEP_S,), *more: Event
) -> RankView:
    """Steps of 10 ms, and after every ten so many seconds more, of which samples are at several lines."""
    samples = Run().ticked(STEP).sample("timed", STEP, times=40)
    for line in range(round(4 * between_s / 0.02)) if path is not None else ():
        samples.sample("after", path.format(line=line))
    between = ((0.0,) * 9 + (between_s,)) * 4
    step_s = tuple(pace) * (40 // len(pace))
    timed = TimedSteps(step_s=step_s, host_s=step_s, between_s=between, first=0)
    return view_of(samples, *more, timed=timed)


def test_a_recorded_evaluation_that_comes_after_every_so_many_steps_takes_what_was_measured() -> None:
    marked = event("user_annotation", "evaluate", STEP_US + 5, STEP_US - 10)
    (found,) = rare_long_steps.find(with_rounds(0.1, EVALUATING, (STEP_S,), marked))
    assert found.title.startswith("After every 10 steps evaluate (train.py:60) takes 100 ms")
    assert found.saving.us == pytest.approx(0.75 * 1e6 * 0.1 / 10)
    assert "larger batches" in found.advice


def test_an_evaluation_after_every_so_many_steps_is_a_finding_with_its_share() -> None:
    view = with_rounds(0.1, EVALUATING)
    (found,) = rare_long_steps.find(view)
    assert view.rare_us == pytest.approx(10_000)  # of each step of 20 ms at the mean
    assert found.saving.share == pytest.approx(1 / 4)
    assert found.title == (
        "After every 10 steps evaluate (train.py:60) takes 100 ms: 50.0 % of the time, 10.0 ms for each "
        "step, and is part of none"
    )
    assert found.saving.us == pytest.approx(1e6 * 0.1 / 10 / 2)
    assert found.saving.most_us == pytest.approx(1e6 * 0.1 / 10)
    assert found.saving.condition == "half of it is enough"
    assert "fewer batches. If it evaluates the model: without gradients. To see" in found.advice


def test_a_line_between_rounds_of_steps_is_what_comes_after_every_so_many() -> None:
    """As a rollout, after which some updates follow: it is no work of a step that is long now and then."""
    samples = Run().ticked(STEP)
    for _ in range(4):
        samples.sample("timed", STEP, times=5).sample("timed", "<module> 20 train 46", times=20)
    uneven = {1, 3, 12, 15, 23, 26, 34}
    step_s = tuple(0.41 if at % 10 == 9 else 0.03 if at in uneven else STEP_S for at in range(40))
    view = view_of(samples, timed=TimedSteps(step_s=step_s, host_s=step_s, first=0))
    assert view.watched is not None
    assert view.watched.long_steps is not None
    assert view.watched.long_steps.title == "line 46 of train (train.py)"
    (found,) = rare_long_steps.find(view)
    assert found.title.startswith("After every 10 steps something else takes 396 ms")


def test_what_comes_after_every_so_many_steps_is_not_what_long_steps_are_about() -> None:
    long = {0, 1, 3, 4, 11, 12, 15, 23, 26, 37}  # at no regular distance, as much in all
    view = with_rounds(0.1, EVALUATING, [0.05 if number in long else STEP_S for number in range(40)])
    assert view.as_it_runs is not None
    assert view.as_it_runs.timed.rare is not None
    assert [found.title.partition(" take")[0] for found in rare_long_steps.find(view)] == [
        "After every 10 steps evaluate (train.py:60)",
        "10 of 40 steps",
    ]


@pytest.mark.parametrize(("recorded", "said"), [((10, 21, 10), False), ((10, 11, 10), True)])
def test_what_every_other_step_does_is_no_finding_once_it_is_recorded(
    recorded: tuple[int, ...], said: bool
) -> None:
    """A policy that is updated every other time: another rule may find what is slow in that."""
    pace = (STEP_S, 0.019) * 20
    timed = TimedSteps(step_s=pace, host_s=pace, first=0)
    samples = Run().ticked(STEP).sample("timed", STEP, times=40)
    records = (RankRecord(rank=0, steps=StepTimings(before=timed, profiled_s=(STEP_S,) * 3, passed=20)),)
    starts = [1000 * sum(recorded[:number]) for number in range(3)]
    events = [step(number, starts[number], 1000 * recorded[number]) for number in range(3)]
    found = trace(*events, *(host("aten::mm", at + 10, 20) for at in starts))
    run = LoadedRun((found,), Manifest(ranks=records), watched={0: samples.written()})
    titles = [one.title for one in rare_long_steps.find(RankView(run, found))]
    assert bool(titles) == said
    assert all(title.startswith("After every 2 steps") for title in titles)


def test_what_comes_after_every_so_many_steps_may_have_no_name() -> None:
    (found,) = rare_long_steps.find(with_rounds(0.1))
    assert found.title.startswith("After every 10 steps something else takes 100 ms")
    assert found.source is None


def test_what_comes_after_every_so_many_steps_and_takes_less_than_a_tenth_is_no_finding() -> None:
    assert not list(rare_long_steps.find(with_rounds(0.01, EVALUATING)))


def test_files_that_are_written_after_every_so_many_steps_have_advice_of_their_own() -> None:
    (found,) = rare_long_steps.find(with_rounds(0.1, "<module> 20 train 45 save_state {line}"))
    assert found.advice.startswith("Write one file, less often")
