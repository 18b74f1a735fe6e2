"""The phases of whole runs, from samples made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from kinetoscope.analysis.passes.whole_run import RunPhase, WholeRunRow, phases
from kinetoscope.document import Report
from kinetoscope.recording.manifest import StepTimings, TimedSteps
from kinetoscope.recording.whole_run import WholeRun
from kinetoscope.render import markdown
from kinetoscope.views import whole_run
from sampled import EVERY_S, Run


def named(found: WholeRunRow | None) -> dict[str, RunPhase]:
    assert found is not None
    assert sum(row.time_us for row in found.phases) == pytest.approx(found.time_us)
    assert sum(row.share for row in found.phases) == pytest.approx(1)
    return {row.name: row for row in found.phases}


def kinds(found: WholeRunRow | None) -> dict[str, float]:
    """Seconds by kind."""
    rows = named(found).values()
    return {
        kind: pytest.approx(sum(row.time_us for row in rows if row.kind == kind) / 1e6)
        for kind in {row.kind for row in rows}
    }


STEP = (
    "<module> 5 main 12 train 33 {loading_data}",
    "<module> 5 main 12 train 34 Net.forward 91",
    "<module> 5 main 12 train 35 {backward}",
    "<module> 5 main 12 train 36 {optimizer}",
)
EVALUATE = "<module> 5 main 13 evaluate 62 Net.forward 91"
STEPS = "steps like the recorded ones"


def epochs() -> Run:
    run = Run().sample("before", "<module> 2 {importing}", times=50).sample("before", STEP[1], times=2)
    run.ticked(STEP[3]).sample("timed", *STEP, times=10)
    for _ in range(5):
        run.sample("after", *STEP, times=40).sample("after", EVALUATE, times=30)
        run.sample("after", "<module> 5 main 14 save 82 {saving}", times=10)
    return run


def test_how_long_a_phase_lasts_that_one_sample_shows_is_not_known():
    run = epochs()
    for _ in range(30):
        run.sample("after", *STEP, times=4).sample("after", "<module> 5 main 15 log 72")
    found = run.divided()
    assert named(found)["log"].longest_us == 0
    shown = markdown.render(whole_run.section(cast(Report, SimpleNamespace(whole_run=found)), 9))
    (row,) = (line for line in shown.splitlines() if line.startswith("| log "))
    assert row.endswith("| train.py:7 | 30 | – |")


def test_epochs_are_steps_and_evaluation_and_checkpoints():
    found = epochs().divided()
    rows = named(found)
    assert rows[STEPS].time_us / 1e6 == pytest.approx(EVERY_S * (2 + 40 + 5 * 160))
    assert rows["evaluate"].time_us / 1e6 == pytest.approx(EVERY_S * 150)
    assert (rows["evaluate"].where, rows["evaluate"].times) == ("train.py:60", 5)
    assert rows["evaluate"].longest_us / 1e6 == pytest.approx(EVERY_S * 29)
    assert rows["save"].kind == "phase"
    assert rows["importing"].kind == "importing"
    assert found is not None
    assert found.steps_in == "train (train.py:30)"
    assert found.about_steps == round(EVERY_S * 842 / 0.03)
    assert (found.timed_steps, found.recorded_steps) == (20, 3)


def test_slow_first_steps_are_counted_as_they_were_seen():
    run = Run().sample("before", STEP[1], times=100).ticked(STEP[3]).sample("settling", *STEP, times=200)
    run.sample("timed", *STEP, times=10).sample("after", *STEP, times=30)
    after = TimedSteps(step_s=(0.03,) * 20, host_s=(0.03,) * 20)
    found = run.divided(first_step=24, after=after)
    assert found is not None
    assert found.about_steps == 24 + 20 + round(EVERY_S * 120 / 0.03)


def test_steps_after_those_that_were_watched_are_counted():
    run = Run().sample("before", STEP[1], times=100).ticked(STEP[3]).sample("settling", *STEP, times=200)
    run.sample("timed", *STEP, times=10).sample("after", *STEP, times=300)
    found = run.divided(first_step=24, passed=50, steps_after=40)
    assert found is not None
    assert (found.about_steps, found.later_steps) == (50 + 40, 40)
    assert found.later_step_us == pytest.approx(1e6 * EVERY_S * 1200 / 40)
    found = run.divided(first_step=24, passed=50)
    assert found is not None
    assert (found.about_steps, found.later_steps) == (50 + round(EVERY_S * 1200 / 0.03), None)


def test_the_time_before_the_first_sample_is_importing():
    run = epochs()
    places, nodes = run.tree.written()
    watched = WholeRun(places=places, nodes=nodes, tick=run.tick, earlier_s=3.0)
    assert named(phases(watched, StepTimings()))["importing"].time_us / 1e6 == pytest.approx(3 + 50 * EVERY_S)


def test_a_rollout_that_was_recorded_leaves_the_learning_out():
    run = Run().sample("before", "<module> 5 main 11 prepare 8", times=30)
    run.ticked("<module> 5 main 20 rollout 15")
    run.sample("settling", "<module> 5 main 20 rollout 15 Net.forward 91", times=3)
    run.sample("timed", "<module> 5 main 20 rollout 16 environment 9", times=3)
    for _ in range(4):
        run.sample("after", "<module> 5 main 20 rollout 15 Net.forward 91", times=10)
        run.sample("after", "<module> 5 main 20 rollout 17", times=1)  # a line that no sample of steps showed
        run.sample("after", "<module> 5 main 21 learn 45 {backward}", times=40)
        run.sample("after", "<module> 5 main 21 learn 46 {optimizer}", times=9)
    found = run.divided(step_s=0.001, found_by="module")
    rows = named(found)
    assert rows[STEPS].time_us / 1e6 == pytest.approx(EVERY_S * (6 + 44))
    assert rows["learn"].time_us / 1e6 == pytest.approx(EVERY_S * 196)
    assert rows["prepare"].kind == "setup"
    assert found is not None
    assert found.first_optimizer_after == "learn (train.py:7)"
    assert found.steps_share_after_setup == pytest.approx(50 / 246)


def test_a_script_without_functions_is_divided_by_its_lines():
    run = Run().sample("before", "<module> 4", times=5).ticked("<module> 30 Net.forward 91")
    run.sample("timed", "<module> 30 Net.forward 91", "<module> 31", "<module> 33", times=8)
    for _ in range(6):
        run.sample("after", "<module> 30 Net.forward 91", times=18)
        run.sample("after", "<module> 32", "<module> 30 Net.forward 91")
        # The same model, called from lines that are none of the steps'.
        run.sample("after", "<module> 50 Net.forward 91", "<module> 52 {backward}", times=25)
        run.sample("after", "<module> 60 evaluate 62", times=10)
    found = run.divided(found_by="module")
    rows = named(found)
    assert rows["lines 50–52 of train.py"].time_us / 1e6 == pytest.approx(EVERY_S * 300)
    assert rows["lines 50–52 of train.py"].where == "train.py:50"
    assert rows["evaluate"].time_us / 1e6 == pytest.approx(EVERY_S * 60)
    assert rows[STEPS].time_us / 1e6 == pytest.approx(EVERY_S * (24 + 120))
    assert rows["other"].time_us / 1e6 == pytest.approx(EVERY_S * 5)


def test_what_every_step_calls_is_a_phase_where_it_does_now_and_then_what_steps_do_not():
    """A trainer's callback, called at each step, evaluates once in a while."""
    each = "<module> 5 train 40 log 96"
    forward = "<module> 5 train 34 Net.forward 91"
    run = Run().ticked("<module> 5 train 36 {optimizer}")
    run.sample("timed", forward, "<module> 5 train 36 {optimizer}", each, times=8)
    for _ in range(5):
        run.sample("after", forward, each, times=20)
        run.sample("after", "<module> 5 train 40 log 97 evaluate 62 Net.forward 91", times=20)
    rows = named(run.divided())
    assert rows["evaluate"].time_us / 1e6 == pytest.approx(EVERY_S * 100)
    assert rows[STEPS].time_us / 1e6 == pytest.approx(EVERY_S * (24 + 200))


def test_a_small_part_that_the_samples_of_steps_missed_is_theirs():
    run = Run().ticked("<module> 5 train 36 {optimizer}")
    run.sample("timed", "<module> 5 train 34 Net.forward 91", "<module> 5 train 36 {optimizer}", times=10)
    for _ in range(20):
        run.sample("after", "<module> 5 train 34 Net.forward 91", times=9)
        run.sample("after", "<module> 5 train 35 log 96")
        run.sample("after", "<module> 5 train 30 Net.forward 91")
    assert kinds(run.divided()) == {"steps": EVERY_S * 240}


def test_a_function_that_runs_what_it_is_given_names_no_phase():
    run = Run().ticked("<module> 5 timed 7 train 36 {optimizer}")
    run.sample("timed", *(path.replace("main 12", "timed 7") for path in STEP), times=10)
    run.sample("after", "<module> 6 timed 7 evaluate 62", "<module> 6 timed 7 evaluate 63", times=50)
    rows = named(run.divided())
    assert rows["evaluate"].time_us / 1e6 == pytest.approx(EVERY_S * 100)


def test_a_phase_in_a_library_is_named_by_the_function_that_does_it():
    run = epochs()
    hook = "<module> 5 lib/loops.py!Loop.on_advance_end 40 lib/decorated.py!_wrap.<locals>.wrapper 9"
    run.sample("after", f"{hook} lib/loops.py!Loop.evaluate 70 lib/loops.py!Loop.fetch 3", times=40)
    run.sample("after", f"{hook} lib/loops.py!Loop.evaluate 71 Net.validation_step 95", times=60)
    run.sample("after", "<module> 6 lib/decorated.py!wrapper 9 lib/predict.py!predict 8 score 90", times=50)
    rows = named(run.divided())
    assert (rows["Loop.evaluate"].where, rows["Loop.evaluate"].times) == ("lib/loops.py:7", 1)
    assert rows["score"].where == "train.py:7"
    assert not {"Loop.on_advance_end", "wrapper", "predict"} & set(rows)


def test_a_decorator_of_the_authors_only_hands_a_phase_on():
    run = epochs()
    run.sample("after", "<module> 6 eval_mode.<locals>.inner 9 generate 70 Net.forward 3", times=60)
    run.sample("after", "<module> 7 main 12 main.<locals>.score 9 Net.forward 3", times=40)
    rows = named(run.divided())
    assert rows["generate"].time_us / 1e6 == pytest.approx(60 * EVERY_S)
    assert rows["score"].time_us / 1e6 == pytest.approx(40 * EVERY_S)
    assert "inner" not in rows


def test_a_comprehension_is_the_line_that_it_is_written_in():
    run = epochs()
    run.sample("after", "<module> 6 main 15 main.<locals>.<genexpr> 15 Net.forward 3", times=60)
    row = named(run.divided())["line 15 of main"]
    assert (row.time_us / 1e6, row.where) == (pytest.approx(60 * EVERY_S), "train.py:15")


def test_handlers_that_a_library_calls_are_phases_of_their_own():
    run = epochs()
    fired = "<module> 5 lib/engine.py!Engine.run 40 lib/engine.py!Engine.fire 9"
    run.sample("after", f"{fired} log_training 8 lib/engine.py!Engine.run 40", times=60)
    run.sample("after", f"{fired} log_validation 9 lib/engine.py!Engine.run 40", times=40)
    run.sample("after", fired, times=2)
    rows = named(run.divided())
    assert rows["log_training"].time_us / 1e6 == pytest.approx(60 * EVERY_S)
    assert rows["log_validation"].time_us / 1e6 == pytest.approx(40 * EVERY_S)
    assert "Engine.fire" not in rows


def test_the_optimizer_of_steps_that_end_with_its_own_is_no_phase():
    run = Run().sample("before", STEP[1], times=2).ticked("<module> 5 main 12 train")
    usual = *STEP[:3], "<module> 5 main 12 train 37 Net.forward 91"
    run.sample("timed", *usual, times=30).sample("after", *usual, times=30)
    run.sample("after", STEP[3], times=20)
    assert set(named(run.divided())) == {STEPS}
    assert "line 36 of train" in named(run.divided(found_by="module"))


def test_a_library_s_file_is_named_by_its_path_in_the_library():
    run = Run().sample("before", "<module> 5 lib/train.py!Engine.run 9 {optimizer}", times=2)
    run.ticked("<module> 5 lib/train.py!Engine.run 9 {optimizer}")
    run.sample("timed", "<module> 5 lib/train.py!Engine.run 9 {optimizer}", times=30)
    found = run.divided()
    assert found is not None
    assert found.steps_in == "Engine.run (lib/train.py:7)"


def test_compiling_and_saving_are_named_wherever_they_are():
    run = epochs()
    run.sample("after", "<module> 5 main 12 train 34 {compiling}", times=60)
    run.sample("after", "<module> 5 main 12 train 38 {saving}", times=60)
    rows = named(run.divided())
    assert rows["compiling"].kind == "compiling"
    assert rows["compiling"].time_us / 1e6 == pytest.approx(EVERY_S * 60)
    assert (rows["saving"].kind, rows["saving"].where) == ("phase", "train.py:30")


def test_what_takes_a_hundredth_or_less_is_joined():
    run = epochs().sample("after", "<module> 5 main 15 a 1", "<module> 5 main 16 b 1", times=4)
    rows = named(run.divided())
    assert rows["other"].kind == "other"
    assert rows["other"].time_us / 1e6 == pytest.approx(EVERY_S * 8)
    assert "a" not in rows


def test_steps_in_a_thread_leave_what_the_main_thread_did_before_as_setup():
    run = Run().sample("before", "<module> 5 main 12", times=30).ticked("work 40 train 36 {optimizer}")
    run.sample("timed", "work 40 train 34 Net.forward 91", "work 40 train 36 {optimizer}", times=10)
    run.sample("after", "work 40 train 34 Net.forward 91", times=50)
    found = run.divided()
    assert kinds(found) == {"steps": EVERY_S * 70, "setup": EVERY_S * 30}


@pytest.mark.parametrize("tick", ["<module> 5 train 36 {optimizer}", ""])
def test_a_program_that_ends_while_steps_are_timed_has_its_phases(tick: str):
    run = Run().ticked(tick) if tick else Run()
    run.sample("timed", "<module> 5 train 34 Net.forward 91", "<module> 5 train 36 {optimizer}", times=20)
    run.sample("timed", "{importing}", times=10)  # as Python ends
    assert kinds(run.divided()) == {"steps": EVERY_S * 40, "importing": EVERY_S * 10}


def test_there_are_no_phases_without_steps_that_were_sampled():
    assert Run().sample("before", *STEP, times=20).divided() is None
    assert Run().sample("before", *STEP, times=20).sample("timed", STEP[0]).divided() is None
    # Steps of two threads have no function in common.
    run = Run().sample("timed", "one 5 train 35", "two 6 train 36", times=20)
    assert run.divided() is None


def test_an_optimizer_that_stepped_before_the_recording_is_no_news():
    run = epochs()
    found = run.divided(found_by="module")
    assert found is not None
    assert found.first_optimizer_after is None


def test_lines_that_a_few_samples_of_short_steps_missed_are_no_other_phase() -> None:
    """A step of ten lines, of which twenty samples show seven: each by itself may be missed."""
    run = Run()
    for line in range(41, 48):
        run.sample("timed", f"<module> 20 decode {line}", times=3 if line < 47 else 2)
    for line in range(41, 51):
        run.sample("after", f"<module> 20 decode {line}", times=13)
    found = named(run.divided())
    assert set(found) == {"steps like the recorded ones"}
    run.sample("after", "<module> 20 decode 46 evaluate 61", times=60)
    assert "evaluate" in named(run.divided())


TUNED = (
    "<module> 5 main 12 train 34 Other.forward 71",
    "<module> 5 main 12 train 35 {backward}",
    "<module> 5 main 12 train 36 {optimizer}",
)


def from_line(line: int, *paths: str) -> list[str]:
    return [path.replace("main 12", f"main {line}") for path in paths]


def test_steps_of_a_later_phase_with_another_function_are_no_work_between_steps():
    run = Run().ticked(STEP[3]).sample("timed", *STEP, times=10).sample("after", *STEP, times=30)
    run.sample("after", *from_line(13, *TUNED), times=60).sample("after", EVALUATE, times=30)
    rows = named(run.divided())
    assert {name: row.kind for name, row in rows.items()} == {
        STEPS: "steps",
        "steps with Other.forward": "other-steps",
        "evaluate": "phase",
    }
    assert rows["steps with Other.forward"].time_us / 1e6 == pytest.approx(EVERY_S * 180)
    assert rows["steps with Other.forward"].title == "steps with Other.forward (train.py:7)"
    assert rows[STEPS].time_us / 1e6 == pytest.approx(EVERY_S * 160)


def test_steps_of_a_later_phase_of_the_same_call_are_those_after_which_the_first_do_not_come_again():
    run = Run().ticked(STEP[3]).sample("timed", *STEP, times=10).sample("after", *STEP, times=30)
    rows = named(run.sample("after", *TUNED, times=60).divided())
    assert rows["steps with Other.forward"].kind == "other-steps"
    # The lines that both call are divided as what each calls alone.
    assert rows["steps with Other.forward"].time_us / rows[STEPS].time_us == pytest.approx(60 / 40)
    assert rows[STEPS].share + rows["steps with Other.forward"].share == pytest.approx(1)


def test_what_is_called_now_and_then_where_steps_call_what_they_need_is_no_other_step():
    run = Run().ticked(STEP[3]).sample("timed", *STEP, times=10)
    for _ in range(4):
        run.sample("after", *STEP, times=30).sample("after", TUNED[0], times=30)
    assert named(run.divided())["Other.forward"].kind == "phase"


def test_steps_of_the_same_loop_called_from_another_line_are_steps():
    run = Run().sample("before", *from_line(11, *STEP[1:]), times=5).ticked(STEP[3])
    run.sample("timed", *STEP, times=10).sample("after", *from_line(13, *STEP), times=60)
    assert {name: row.kind for name, row in named(run.divided()).items()} == {STEPS: "steps"}


def test_an_evaluation_by_the_function_of_the_loop_is_a_phase():
    run = Run().ticked(STEP[3]).sample("timed", *STEP, times=10).sample("after", *STEP, times=30)
    run.sample("after", *from_line(13, STEP[1]), times=60)
    assert {row.kind for row in named(run.divided()).values()} == {"steps", "phase"}


def test_a_phase_that_trains_in_another_function_is_steps_of_another_kind():
    run = Run().ticked(STEP[3]).sample("timed", *STEP, times=10).sample("after", *STEP, times=30)
    tuned = [path.replace("main 12 train", "main 13 tune") for path in TUNED]
    rows = named(run.sample("after", *tuned, times=60).divided())
    assert (rows["steps of tune"].kind, rows["steps of tune"].where) == ("other-steps", "train.py:7")
