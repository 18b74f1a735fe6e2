"""Settings, and a program under each of them: with made-up trials, and a real one on the CPU."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from kinetoscope.bench.tune import inject, program, results, settings, trial
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.bench.tune.trial import TrialRequest, TrialResult
from kinetoscope.capture.steps.detector import Source
from kinetoscope.errors import ProgramError

torch = pytest.importorskip("torch")


def test_the_grid_has_every_combination_once_eager_first() -> None:
    found = settings.grid(
        ["default", "max-autotune"], backends=["inductor", "aot_eager"], batches=["8", "16"]
    )
    labels = [setting.label for setting in found]
    assert labels[0] == "eager batch=8"
    assert len(labels) == len(set(labels)) == 2 * (1 + 2 + 1)
    assert "default backend=aot_eager batch=16" in labels
    assert [s.label for s in found if s.is_base] == ["eager batch=8", "eager batch=16"]


def test_the_line_to_write_is_python() -> None:
    assert Setting(mode="max-autotune", dynamic=True).lines("Net") == (
        'model = torch.compile(model, mode="max-autotune", dynamic=True)  # the Net',
    )
    assert Setting(mode="default").lines("Net") == ("model = torch.compile(model)  # the Net",)
    assert Setting(matmul_precision="high").lines() == ('torch.set_float32_matmul_precision("high")',)


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({}, Setting(mode="default")),
        ({"fullgraph": True, "backend": "inductor"}, Setting(mode="default")),
        ({"mode": "max-autotune", "dynamic": True}, Setting(mode="max-autotune", dynamic=True)),
        ({"backend": "aot_eager"}, Setting(mode="default", backend="aot_eager")),
        ({"options": {"max_autotune": True}}, Setting(as_written=True)),
        ({"backend": print}, Setting(as_written=True)),
    ],
)
def test_what_a_program_writes_is_a_setting_where_it_can_be_one(
    given: dict[str, object], own: Setting
) -> None:
    assert settings.written(given) == own


def test_the_program_as_written_is_tried_unless_it_is_tried_already() -> None:
    tried = settings.grid(["default"], precisions=["high"])
    assert settings.with_program(tried, []) == tried
    assert settings.with_program(tried, [Setting(mode="default")]) == tried
    more = settings.with_program(tried, [Setting(mode="max-autotune")])
    assert [s.label for s in more] == [
        "eager", "as written", "default", "eager matmul=high", "as written matmul=high", "default matmul=high"
    ]  # fmt: skip
    two = [Setting(mode="default"), Setting(mode="reduce-overhead")]
    assert len(settings.with_program(tried, two)) == 6
    assert [s.label for s in tried if settings.is_program(s, [])] == ["eager", "eager matmul=high"]
    inductor = Setting(mode="default", backend="inductor", batch="8")
    assert settings.is_program(inductor, [Setting(mode="default")])


def test_as_written_leaves_the_programs_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda model, **keywords: given.append(keywords) or model)
    injection = inject.Injection(Setting(as_written=True), lambda *_: None, lambda *_: None)
    injection.install()
    torch.compile(lambda x: x, options={"a": 1}, fullgraph=True)
    assert given == [{"options": {"a": 1}, "fullgraph": True}]
    assert list(injection.own) == [Setting(as_written=True)]


def test_torch_compile_is_injected_as_call_and_as_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda model, **keywords: given.append(keywords) or model)
    called: list[str] = []
    outputs: list[object] = []
    injection = inject.Injection(
        Setting(mode="reduce-overhead"),
        lambda number, name: called.append(f"{number} {name}"),
        lambda name, output: outputs.append((name, output)),
    )
    injection.install()

    @torch.compile(mode="default", fullgraph=True, options={"a": 1})
    def double(x):
        return 2 * x

    assert [double(3), double(4)] == [6, 8]
    assert given == [{"mode": "reduce-overhead", "fullgraph": True}]
    assert called == ["1 double", "1 double"]
    assert outputs == [("compiled 1", 6)]
    assert "options=" in injection.notes[0]
    net = torch.nn.Linear(2, 2)
    assert torch.compile(net) is net
    net(torch.ones(1, 2))
    net(torch.ones(1, 2))
    assert len(outputs) == 2


def test_eager_hands_back_what_it_is_given() -> None:
    injection = inject.Injection(Setting(), lambda *_: None, lambda *_: None)
    net = torch.nn.Linear(2, 2)
    assert injection.compile(net) is net
    assert injection.compile(lambda x: x + 1)(1) == 2


def test_the_difference_between_outputs() -> None:
    a = [torch.tensor([3.0, 4.0])]
    assert inject.difference(a, a) == 0
    assert inject.difference([torch.tensor([3.0, 4.5])], a) == pytest.approx(0.1)
    assert inject.difference([torch.tensor([3.0, float("nan")])], a) == float("inf")
    assert inject.difference([torch.ones(3)], a) is None
    assert inject.difference([], []) is None
    assert len(inject.tensors({"x": [a[0], (a[0], 5)], "y": None})) == 2


def made_up(step_s: Mapping[str, float], *, compile_calls: int = 1, seed: int = 0) -> program.RunTrial:
    """Trials of a program whose steps last so long, but for 1 % between rounds and 2 % within."""
    r = random.Random(seed)

    def launch(order: TrialRequest, words: Sequence[str], extra: Mapping[str, str]) -> TrialResult:
        usual = step_s[order.setting.label] * r.lognormvariate(0, 0.002)
        warm = 5.0 if order.setting.mode else 0.5
        return TrialResult(
            steps_by="optimizer",
            step_name="AdamW",
            module="Net",
            before_first_step_s=1.0,
            steps_s=(warm, *(usual * r.lognormvariate(0, 0.02) for _ in range(40))),
            compile_calls=compile_calls,
        )

    return launch


def test_the_winner_comes_with_its_break_even_and_its_line() -> None:
    times = {"eager": 0.100, "default": 0.080, "max-autotune": 0.070}
    found = program.tune_program(
        settings.grid(["default", "max-autotune"]), ["train.py"], launch=made_up(times, compile_calls=0)
    )
    rows = {row.label: row for row in found.rows}
    assert rows["default"].ratio == pytest.approx(0.8, rel=0.01)
    assert (rows["default"].low or 1) < 0.8 < (rows["default"].high or 0)
    assert rows["max-autotune"].verdict == "faster"
    assert rows["max-autotune"].compile_s == pytest.approx(4.5, rel=0.05)
    assert rows["max-autotune"].break_even_steps == pytest.approx(4.5 / 0.03, rel=0.1)
    assert found.recommendation.startswith("max-autotune: 1.4")
    assert found.lines == ('model = torch.compile(model, mode="max-autotune")  # the Net',)


def test_settings_of_several_batches_are_compared_by_the_sample() -> None:
    times = {
        "eager batch=32": 0.100,
        "default batch=32": 0.080,
        "eager batch=128": 0.320,
        "default batch=128": 0.200,
    }
    found = program.tune_program(
        settings.grid(["default"], batches=["32", "128"]), ["t.py", "{batch}"], launch=made_up(times)
    )
    rows = {row.label: row for row in found.rows}
    assert rows["eager batch=32"].ratio is None
    assert rows["eager batch=128"].ratio == pytest.approx(0.8, rel=0.01)
    assert rows["default batch=128"].ratio == pytest.approx(0.5, rel=0.01)
    assert rows["default batch=128"].samples_per_s == pytest.approx(640, rel=0.01)
    # Paid back by steps of its own batch: 4.5 s at 120 ms each.
    assert rows["default batch=128"].break_even_steps == pytest.approx(4.5 / 0.12, rel=0.1)
    assert found.recommendation.startswith("default batch=128: 2.0")
    assert "as many samples a second as eager batch=32" in found.recommendation


@pytest.mark.parametrize(
    ("error", "found"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", (16, 32)),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", (16, 32)),
        ("ValueError: 32 is no batch", None),
    ],
)
def test_a_batch_that_runs_out_of_memory_is_a_result(error: str, found: tuple[int, int] | None) -> None:
    rows = [
        results.SettingRow(
            setting=s, label=s.label, **({"error": error} if s.samples == 32 else {"step_s": 1.0})
        )
        for s in settings.grid(["default"], batches=["8", "16", "32"])
    ]
    fits = results.fits(rows)
    assert (fits and (fits.largest, fits.too_large)) == found
    # What fits eager, and not compiled, is too large as well.
    compiled = Setting(batch="16", mode="max-autotune")
    rows.append(results.SettingRow(setting=compiled, label=compiled.label, error=error))
    assert found is None or results.fits(rows) == results.BatchesThatFit(largest=8, too_large=16)
    named = results.SettingRow(setting=Setting(batch="small"), label="small", step_s=1.0)
    assert results.fits([*rows, named]) is None


def test_the_winner_is_also_compared_with_what_the_program_has() -> None:
    times = {"eager": 0.100, "as written": 0.090, "default": 0.080}
    launch = made_up(times)

    def compiles(order: TrialRequest, words: Sequence[str], extra: Mapping[str, str]) -> TrialResult:
        return msgspec.structs.replace(launch(order, words, extra), own=(Setting(as_written=True),))

    found = program.tune_program(settings.grid(["default"]), ["train.py"], launch=compiles)
    assert [row.label for row in found.rows if row.as_written] == ["as written"]
    assert "against what the program has (as written) 1.1" in found.recommendation
    slow = dict(times, **{"as written": 0.2, "default": 0.2})
    launch = made_up(slow)
    found = program.tune_program(settings.grid(["default"]), ["train.py"], launch=compiles)
    assert found.recommendation.startswith("Take torch.compile out")


def test_no_winner_no_advice() -> None:
    times = {"eager": 0.1, "default": 0.1}
    found = program.tune_program(settings.grid(["default"]), ["train.py"], launch=made_up(times, seed=3))
    assert found.rows[1].verdict == "cannot tell"
    assert found.recommendation.startswith("Stay with eager")
    assert found.lines == ()


def test_of_two_that_cannot_be_told_apart_the_cheaper_is_chosen() -> None:
    rows = [
        results.SettingRow(setting=Setting(), label="eager", step_s=1.0),
        results.SettingRow(
            setting=Setting(mode="default"),
            label="default",
            step_s=0.81,
            ratio=0.81,
            low=0.79,
            high=0.83,
            verdict="faster",
            compile_s=5.0,
        ),
        results.SettingRow(
            setting=Setting(mode="max-autotune"),
            label="max-autotune",
            step_s=0.80,
            ratio=0.80,
            low=0.78,
            high=0.82,
            verdict="faster",
            compile_s=65.0,
        ),
    ]
    text, lines = results.recommend(rows, None)
    assert text.startswith("default: 1.23×")
    assert "max-autotune cannot be distinguished from it and costs 60 s more" in text
    assert lines == ("torch.compile(…)",)


def test_a_faster_setting_with_other_output_is_left_out() -> None:
    row = results.SettingRow(
        setting=Setting(mode="default"),
        label="default",
        step_s=0.5,
        ratio=0.5,
        low=0.4,
        high=0.6,
        verdict="faster",
        agrees=False,
    )
    text, _ = results.recommend([row], None)
    assert "its output differs" in text
    assert text.startswith("Stay with eager")


def test_a_program_that_fails_or_has_no_steps_says_so() -> None:
    def fails(order: TrialRequest, words: Sequence[str], extra: Mapping[str, str]) -> TrialResult:
        return TrialResult(error="ValueError: no data")

    with pytest.raises(ProgramError, match="no data"):
        program.tune_program(settings.grid(["default"]), ["train.py"], launch=fails)
    with pytest.raises(ProgramError, match="no steps"):
        program.tune_program(
            settings.grid(["default"]), ["train.py"], launch=lambda *_: TrialResult(module="Net")
        )


def test_a_setting_that_fails_is_a_row_and_is_not_run_again() -> None:
    runs: list[str] = []
    good = made_up({"eager": 0.1, "default": 0.1, "max-autotune": 0.1})

    def launch(order: TrialRequest, words: Sequence[str], extra: Mapping[str, str]) -> TrialResult:
        runs.append(order.setting.label)
        return (
            TrialResult(error="BackendCompilerFailed")
            if order.setting.mode == "default"
            else good(order, words, extra)
        )

    found = program.tune_program(settings.grid(["default", "max-autotune"]), ["train.py"], launch=launch)
    assert runs.count("default") == 1
    assert runs.count("max-autotune") == 3
    assert found.rows[1].error == "BackendCompilerFailed"


def test_warm_up_is_what_comes_before_the_last_slow_step_of_the_first_half() -> None:
    slow = (9.0, 1.0, 1.0, 5.0, 1.0, 1.1, 1.0, 1.2, 1.0, 1.0)
    assert results.steady(TrialResult(steps_s=slow)) == [1.0, 1.1, 1.0, 1.2, 1.0, 1.0]
    assert results.steady(TrialResult(steps_s=(1.0, 1.0, 1.0, 1.0))) == [1.0, 1.0, 1.0]


def test_steps_of_which_every_module_was_watched_do_not_count() -> None:
    slowed = (1.9, 1.9, 1.9, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert results.steady(TrialResult(steps_s=slowed, watched=3)) == [1.0] * 5
    assert results.steady(TrialResult(steps_s=slowed[:4], watched=3)) == [1.9, 1.0]


def test_only_the_steps_are_watched_once_they_are_known() -> None:
    followed: list[Source] = []
    times = trial.StepClock(6, 60.0, followed.append)
    for _ in range(16):  # gradients are accumulated
        times.tick("training module", 1, "Net")
    assert followed == []
    for _ in range(6):
        times.tick("optimizer", 9, "SGD")
    with pytest.raises(trial.Enough):
        times.tick("optimizer", 9, "SGD")
    assert followed == [("optimizer", 9)]
    result = times.result()
    assert (result.steps_by, len(result.steps_s), result.watched) == ("optimizer", 6, 0)


def test_steps_before_their_source_was_known_count_and_were_watched() -> None:
    times = trial.StepClock(6, 60.0, lambda source: None)
    for _ in range(6):
        times.tick("module", 1, "Net")
    with pytest.raises(trial.Enough):
        times.tick("module", 1, "Net")
    result = times.result()
    assert (result.step_name, len(result.steps_s), result.watched) == ("Net", 6, 2)


def test_a_program_of_few_or_slow_steps_is_timed_by_the_best_there_is() -> None:
    times = trial.StepClock(40, 60.0, lambda source: None)
    for _ in range(4):
        times.tick("range", "work", "work")
        times.tick("training module", 1, "Net")
    result = times.result()
    assert (result.steps_by, len(result.steps_s), result.watched) == ("module", 3, 0)
    late = trial.StepClock(40, 0.0, lambda source: None)
    for _ in range(4):
        late.tick("training module", 1, "Net")
    with pytest.raises(trial.Enough):
        late.tick("training module", 1, "Net")
