"""What `kinetoscope run` calls a step, of programs whose authors count steps in different ways."""

from __future__ import annotations

import re

import pytest

from broad import broad
from command import kinetoscope
from programs import OPTIMIZERS, Programs, Run
from step_programs import EXPECTED, script

# One of each kind, with that of the last test; the others are tried where time does not matter.
ALWAYS = ("heun", "dqn", "pipeline", "replays", "estimates", "normalized", "by_hand")


@pytest.mark.parametrize("name", broad(EXPECTED, ALWAYS))
def test_a_step_is_what_the_author_calls_one(programs: Programs, name: str):
    expected = EXPECTED[name]
    run = programs.record(str(programs.write(script(name), f"{name}.py")))
    assert run.status == 0, run.err
    assert run.steps["found_by"] == expected.found_by
    assert re.fullmatch(expected.step, levels(run)[0]), levels(run)
    event, each = expected.of
    assert counted(run, event) == each * len(run.steps["profiled_s"])
    made = re.search(r"steps: (\d+)", run.out)
    assert made is not None
    timed = sum(len(run.steps[part]["step_s"]) for part in ("before", "recorded"))
    assert timed <= run.steps["first_step"] + len(run.steps["profiled_s"]) <= int(made[1])


def levels(run: Run) -> list[str]:
    return [level["name"] for level in run.steps["levels"]]


def counted(run: Run, event: str) -> int:
    return sum(
        one["name"] == event for one in run.events() if one.get("cat") in ("cpu_op", "user_annotation")
    )


@pytest.mark.parametrize(
    ("name", "step", "event"),
    [
        pytest.param("cleanrl", "optimizer", "Optimizer.step#Adam.step", marks=pytest.mark.slow),
        pytest.param("wgan", "RMSprop", "Optimizer.step#RMSprop.step", marks=pytest.mark.slow),
        ("rl_games", "a2c_network", "aten::tanh"),  # by the name of an attribute
        pytest.param("heun", "Sequential", "aten::tanh", marks=pytest.mark.slow),
    ],
)
def test_another_step_may_be_chosen(programs: Programs, name: str, step: str, event: str):
    run = programs.record("--step", step, str(programs.write(script(name))))
    assert counted(run, event) == len(run.steps["profiled_s"])
    assert len(levels(run)) == 1


def test_what_was_chosen_and_is_not_there_is_said(programs: Programs):
    run = programs.record("--step", "Transformer", str(programs.write(script("gan"))))
    assert any("--step Transformer: no such steps were seen" in note for note in run.steps["notes"])
    assert any("Adam" in note for note in run.steps["notes"])


def test_the_levels_of_a_step_and_its_rivals_are_listed(programs: Programs):
    run = programs.record(str(programs.write(script("cleanrl"))))
    assert re.fullmatch(EXPECTED["cleanrl"].step.replace("cleanrl", "prog"), levels(run)[0])
    listed = kinetoscope("steps", str(run.folder)).stdout
    assert "--step iteration" in listed
    assert "--step optimizer" in listed
    assert re.search(r"Adam\.step\(\) +4", listed)
    said = " ".join(kinetoscope("report", str(run.folder)).stdout.split())
    assert "A step is one iteration of 8 calls of Sequential without gradients" in said


def test_a_step_of_many_calls_of_the_model_says_so(programs: Programs):
    """Cells grow for eight steps before the rule that they follow is corrected."""
    programs.write(OPTIMIZERS, "optimizers.py")
    script = programs.write(
        """
        import optimizers, torch
        import torch.nn.functional as F
        torch.set_num_threads(1)
        rule = torch.nn.Conv2d(4, 4, 3, padding=1)
        optimizer = torch.optim.Adam(rule.parameters())
        for iteration in range(60):
            states = torch.rand(2, 4, 8, 8)
            for _ in range(8):
                states = states + rule(states)
            loss = F.mse_loss(states, torch.zeros_like(states))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """
    )
    whole, part = programs.record(str(script)).steps["levels"]
    assert whole["name"] == "one Adam.step()"
    assert (part["name"], part["calls"]) == ("call of Conv2d in the loop at prog.py:9", 8)
