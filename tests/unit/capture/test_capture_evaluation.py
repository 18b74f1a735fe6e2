"""What is evaluation inside training, and what a part of every step."""

from __future__ import annotations

import pytest

from fake_program import FakeDevice, Program
from kinetoscope.capture.recorder.phases import RecordSteps, TimeBefore
from kinetoscope.capture.steps.detector import Evaluation
from kinetoscope.statistics.rounds import rounds


def test_calls_between_a_step_and_the_next_training_call_are_an_evaluation() -> None:
    evaluation = Evaluation()
    assert evaluation.called(True) is None
    assert not evaluation.stepped()
    assert [evaluation.called(training) for training in (False, False, True, True)] == [
        "begins",
        None,
        "ends",
        None,
    ]
    assert not evaluation.stepped()


def test_after_a_training_call_it_is_a_part_of_the_step() -> None:
    evaluation = Evaluation()
    evaluation.called(True)
    assert evaluation.called(False) is None


def test_one_in_every_step_is_a_part_of_the_step() -> None:
    evaluation = Evaluation()
    found: list[str | None] = []
    for _ in range(3):
        found += [evaluation.called(False), evaluation.called(True)]
        evaluation.stepped()
    assert found == ["begins", "ends", None, None, None, None]


def test_an_optimizer_s_step_ends_it_where_nobody_saw_training_go_on() -> None:
    evaluation = Evaluation()
    evaluation.called(False)
    assert evaluation.stepped()
    assert not evaluation.running


def evaluate(program: Program, seconds: float) -> None:
    """An evaluation before the next step's calls."""
    for _ in range(2):
        program.recorder.model_called(False)
        program.now += seconds
    program.recorder.model_called(True)


def test_steps_that_are_timed_hold_no_evaluation() -> None:
    program = Program()
    program.until(TimeBefore, 0.1)
    for index in range(80):
        if index % 5 == 0:
            evaluate(program, 7.0)
        program.recorder.model_called(True)
        program.step(0.1)
    timings = program.recorder.timings()
    for steps in (timings.before, timings.recorded, timings.after):
        assert steps is not None
        assert max(steps.step_s) < 0.11
    assert timings.before is not None
    assert timings.after is not None
    between = [*timings.before.between_s, *timings.after.between_s]
    numbers = [
        number
        for steps in (timings.before, timings.after)
        for number in range(steps.first or 0, (steps.first or 0) + len(steps.step_s))
    ]
    found = rounds(between, numbers)
    assert found is not None
    assert (found.size, found.between) == (5, pytest.approx(14))


def test_what_came_between_steps_is_by_the_clock_of_the_device_where_it_has_one() -> None:
    program = Program()
    program.device.clock = lambda: 2 * program.now
    program.until(TimeBefore, 0.1)
    for index in range(80):
        if index % 5 == 0:
            evaluate(program, 7.0)
        program.recorder.model_called(True)
        program.step(0.1)
    timings = program.recorder.timings()
    assert timings.before is not None
    assert timings.before.clock == "device"
    assert set(map(round, timings.before.between_s)) == {0, 28}


def test_an_evaluation_is_recorded_as_a_step_of_its_own() -> None:
    program = Program(device=FakeDevice())
    program.until(RecordSteps, 0.1)
    first = program.recorder.measured.first_step
    assert first is not None
    program.recorder.model_called(True)
    program.step(0.1)
    evaluate(program, 7.0)
    program.steps(30, 0.1)
    log = program.device.log
    recorded = log[log.index(f"full2 mark {first}") : log.index("full2 stop")]
    assert recorded == [
        f"full2 mark {first}",
        f"full2 mark {first + 1}",
        "full2 part evaluate",
        f"full2 mark {first + 2}",
        f"full2 mark {first + 3}",
        "synchronize",
        "full2 mark None",
    ]
    assert max(program.recorder.timings().profiled_s) < 0.11
