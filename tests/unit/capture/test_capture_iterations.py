"""Iterations of acting and training: what is one, and what only looks like it."""

from __future__ import annotations

import pytest

from fake_program import Program
from kinetoscope.capture.options import Options
from kinetoscope.capture.recorder.phases import ITERATION_PATIENCE_S, Settle, TimeBefore
from kinetoscope.capture.steps.detector import ITERATION, StepDetector
from kinetoscope.capture.steps.iterations import Iteration, Iterations


def iterate(found: Iterations, *rounds: tuple[int, int], fed: bool = False) -> bool:
    """Act and train so often; whether an iteration was found."""
    for acts, updates in rounds:
        for _ in range(acts):
            found.acted(fed=fed)
        for _ in range(updates):
            found.stepped()
    found.acted(fed=fed)
    return found.found is not None


@pytest.mark.parametrize(
    "rounds",
    [[(128, 16), (128, 16)], [(20, 8), (20, 6)], [(90, 16), (128, 16)], [(2, 2), (2, 2)]],
    ids=["ppo", "stops-early", "episodes", "least"],
)
def test_two_alike_are_iterations(rounds: list[tuple[int, int]]) -> None:
    found = Iterations()
    assert iterate(found, *rounds)
    assert found.found == Iteration(*rounds[-1])
    assert not found.looking


@pytest.mark.parametrize(
    "rounds",
    [[(0, 12), (4, 12), (4, 12)], [(300, 1), (4, 1), (4, 1)], [(1, 8), (1, 8)], [(128, 16), (3, 16)]],
    ids=["evaluation", "dqn", "one-call", "unlike"],
)
def test_what_is_none(rounds: list[tuple[int, int]]) -> None:
    assert not iterate(Iterations(), *rounds)


def test_calls_with_batches_of_a_loader_are_evaluation() -> None:
    found = Iterations()
    assert not iterate(found, (4, 12), (4, 12), fed=True)
    assert not found.looking


def test_calls_in_the_loop_that_an_optimizer_steps_in_are_evaluation() -> None:
    found = Iterations()
    for _ in range(3):
        for _ in range(10):
            found.acted(between=lambda: True)
        for _ in range(60):
            found.stepped()
    assert found.found is None
    assert not found.looking


def test_calls_before_the_first_step_in_the_loop_that_an_optimizer_steps_in_are_evaluation() -> None:
    """``for step in range(10000): if step % 500 == 0: estimate_loss()`` of nanoGPT."""
    found = Iterations()
    for _ in range(20):
        found.acted()
    found.stepped(between=lambda: True)
    assert found.looking  # each iteration may have one step
    found.stepped(between=lambda: True)
    assert not found.looking


def test_each_of_two_optimizers_may_step_once_in_the_loop_that_acts() -> None:
    found = Iterations()
    for _ in range(3):
        for _ in range(10):
            found.acted(between=lambda: True)
        found.stepped("actor")
        found.stepped("critic")
    assert found.found == Iteration(10, 2)


def test_modules_that_act_once_for_every_few_updates_are_a_part_of_each_step() -> None:
    """Agents that learn in turn, each from what all of them would do next."""
    found = Iterations()
    for _ in range(2):
        for agent in range(12):
            found.acted(agent)
        found.stepped("critic")
        found.stepped("actor")
        assert found.looking  # an actor may have been tried out once
    found.acted(0)
    assert found.found is None
    assert not found.looking


def test_the_calls_of_an_iteration_are_those_of_the_module_that_begins_it() -> None:
    found = Iterations()
    for _ in range(3):
        for _ in range(8):
            found.acted("actor")
            found.acted("critic")
        found.acted("critic")
        for _ in range(4):
            found.stepped()
    assert found.found == Iteration(8, 4)


def test_the_iteration_leads_from_the_call_on_that_begins_the_third() -> None:
    detector = StepDetector()
    roles = list[str | None]()
    for _ in range(3):
        ticks = [detector.tick(*tick, 7) for tick in [("acting module", 1)] * 3 + [("optimizer", 2)] * 2]
        roles += [boundary and boundary.role for boundary in ticks]
    assert roles[10:] == ["leads", None, None, None, None]
    assert detector.leader == ITERATION
    assert detector.leads_at_beginnings()


def test_what_is_wanted_leads_and_nothing_else() -> None:
    detector = StepDetector(wanted="Block")
    boundaries = [detector.tick("optimizer", 1, 7, "Adam"), detector.tick("module", 2, 7, "Block")]
    assert [boundary and boundary.role for boundary in boundaries] == ["candidate", "leads"]
    assert not detector.undecided


def test_the_optimizer_that_steps_once_a_round_has_the_steps() -> None:
    detector = StepDetector()
    for _ in range(3):
        for key in (1, 1, 1, 2):
            detector.tick("optimizer", key, 7, "Adam")
    assert detector.leader == ("optimizer", 2)
    detector = StepDetector()
    for key in (1, 2) * 9:
        detector.tick("optimizer", key, 7, "Adam")
    assert detector.leader == ("optimizer", 1)


def test_an_optimizer_that_lags_by_a_step_is_no_round() -> None:
    detector = StepDetector()
    for key in (1, 1, 2) * 9:
        detector.tick("optimizer", key, 7, "Adam")
    assert detector.leader == ("optimizer", 1)


def play(program: Program, acts: int, updates: int, seconds: float) -> None:
    for _ in range(acts):
        program.step(seconds, "acting module", 5)
    for _ in range(updates):
        program.step(seconds)


def test_first_steps_before_iterations_that_were_found_too_late_are_not_said_to_be_none() -> None:
    program = Program()
    for _ in range(3):
        play(program, 4, 3, 0.01)
    program.recorder.end()
    said = program.recorder.timings().notes
    assert any("a step is one iteration of" in note for note in said)
    assert not any("no steps were found" in note for note in said)


def test_steps_are_whole_iterations_once_these_are_found() -> None:
    program = Program()
    for _ in range(3):
        play(program, 4, 6, 0.01)
    for _ in range(80):
        program.step(0.1, "iteration", 0)
    timings = program.recorder.timings()
    assert timings.found_by == "iteration"
    assert (
        timings.levels[0].name == "one iteration of 4 calls of AdamW without gradients, then 6 AdamW.step()"
    )
    assert [level.calls for level in timings.levels] == [1, 6, 4]
    assert timings.levels[1].seconds == pytest.approx(0.01)
    assert timings.before is not None
    assert timings.before.step_s == pytest.approx([0.1] * 20)


def test_iterations_too_long_to_be_recorded_leave_the_inner_step_and_say_so() -> None:
    program = Program(Options(budget_mb=10))
    for _ in range(20):
        play(program, 4, 6, 0.01)
    timings = program.recorder.timings()
    assert (timings.found_by, timings.levels[0].name) == ("optimizer", "one AdamW.step()")
    assert any("--budget" in note for note in timings.notes)
    assert timings.recorded is not None


def test_iterations_are_not_waited_for_for_ever() -> None:
    program = Program()
    play(program, 4, 10, 0.1)
    assert isinstance(program.recorder.phase, Settle)
    program.steps(round(ITERATION_PATIENCE_S / 0.1), 0.1)
    assert isinstance(program.recorder.phase, TimeBefore)
    assert any("--step iteration" in note for note in program.recorder.timings().notes)


def test_without_acting_nothing_is_waited_for() -> None:
    program = Program()
    program.until(TimeBefore, 0.1)
    assert len(program.recorder.timings().warmup_s) <= 3
