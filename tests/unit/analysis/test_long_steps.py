"""The function that rare long steps are about, from samples made by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kinetoscope.analysis.passes.long_steps import LongSteps
from kinetoscope.recording.manifest import TimedSteps
from sampled import EVERY_S, Run

# A step of 60 ms, three samples; every tenth takes 600 ms more.
STEP_S, LONG_S, EVERY = 0.06, 0.66, 10
PASS = "<module> 5 train 33 step 41 Net.forward 91"
STEP = (PASS, "<module> 5 train 33 step 42 {backward}", "<module> 5 train 33 step 43 {optimizer}")
SAVE = "<module> 5 train 34 save_checkpoint 72"
TIMED = TimedSteps(step_s=((STEP_S,) * 9 + (LONG_S,)) * 4, host_s=((STEP_S,) * 9 + (LONG_S,)) * 4)


def steps(*long: str, of: Run | None = None, usual: tuple[str, ...] = STEP) -> Run:
    """Forty timed steps, and the samples of what each tenth does besides."""
    run = of or Run().ticked(STEP[2])
    for _ in range(4):
        run.sample("timed", *usual, times=EVERY)
        run.sample("timed", *long, times=30 // len(long))
    return run


def found(run: Run, timed: TimedSteps = TIMED) -> LongSteps | None:
    divided = run.divided(step_s=STEP_S, before=timed)
    assert divided is not None
    return divided.long_steps


def test_the_function_of_long_steps_is_named_with_its_time_per_step() -> None:
    row = found(steps(f"{SAVE} {{saving}}"))
    assert row is not None
    assert (row.title, row.does, row.times) == ("save_checkpoint (train.py:7)", "saving", 4)
    assert (row.count, row.of) == (4, 40)
    assert row.more_us == pytest.approx(1e6 * (LONG_S - STEP_S))
    assert row.step_us == pytest.approx(1e6 * (LONG_S - STEP_S) / EVERY, rel=0.01)


def test_a_library_that_calls_the_program_s_own_function_only_passes_it_on() -> None:
    row = found(steps("<module> 5 train 34 lib/hooks.py!Hooks.fire 9 Mine.on_step_end 55 lib/np.py!write 7"))
    assert row is not None
    assert (row.function, row.does, row.called) == ("Mine.on_step_end", "", "")


def test_of_a_library_the_innermost_function_that_has_all_of_it() -> None:
    trainer = "<module> 5 train 34 lib/trainer.py!Trainer._maybe 9 lib/trainer.py!Trainer._save"
    row = found(steps(f"{trainer} 11 lib/safe.py!write 5", f"{trainer} 12 {{saving}}"))
    assert row is not None
    assert (row.title, row.does) == ("Trainer._save (lib/trainer.py:7), called at train.py:34", "saving")
    assert row.at == "train.py:34"


def test_a_line_of_the_loop_itself_is_named_where_no_function_is_it() -> None:
    """As ``found = logits.argmax(1)`` on the CPU, once for all windows of a volume."""
    row = found(steps("<module> 5 train 36", "<module> 5 train 36 {computing}"))
    assert row is not None
    assert (row.title, row.is_line) == ("line 36 of train (train.py)", True)
    assert row.step_us == pytest.approx(1e6 * (LONG_S - STEP_S) / EVERY, rel=0.01)
    assert replace(row, function="train.py").title == "line 36 of train.py"


def test_what_is_in_every_step_is_not_it() -> None:
    # All of a step passes in functions that are seen for long in a row, as long as nothing comes in between.
    assert found(steps(*STEP)) is None
    assert found(steps(PASS)) is None
    # A short call of each step's takes as much of all steps, and is never seen twice in a row.
    logs = (*STEP, "<module> 5 train 34 log 66", STEP[1], "<module> 5 train 34 log 66")
    assert found(steps(*logs, usual=logs)) is None


def test_what_a_loader_does_in_the_thread_that_steps_is_not_it() -> None:
    """Its waiting is measured in each step: on a busy machine it is as long as anything else now and then."""
    assert found(steps("<module> 5 train 32 {loading_data} lib/transforms.py!Compose.__call__ 9")) is None


def test_what_takes_a_small_part_of_what_long_steps_add_is_not_it() -> None:
    run = Run().ticked(STEP[2])
    for _ in range(4):
        run.sample("timed", *STEP, times=EVERY).sample("timed", SAVE, times=10).sample(
            "timed", *STEP, times=7
        )
    assert found(run) is None


def test_what_is_seen_too_rarely_to_know_is_not_it() -> None:
    run = Run().ticked(STEP[2]).sample("timed", *STEP, times=40)
    assert found(run.sample("timed", SAVE, times=3)) is None


def test_without_long_steps_there_is_none() -> None:
    usual = TimedSteps(step_s=(STEP_S,) * 40, host_s=(STEP_S,) * 40)
    assert found(steps(f"{SAVE} {{saving}}"), usual) is None
    assert EVERY_S < STEP_S
