"""The optimizers that a step's updates are of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kinetoscope.capture.steps.updates import LOOKED_AT, Updates
from kinetoscope.recording.manifest import OptimizerStep


class Optimizer:
    def __init__(self, *gradients: object) -> None:
        self.param_groups = [{"params": [SimpleNamespace(grad=gradient)]} for gradient in gradients]


ONE, TWO, THREE = Optimizer(1.0), Optimizer(1.0, None, 2.0), Optimizer(1.0, 1.0, 1.0)
COUNTS = {ONE: 1, TWO: 2, THREE: 3}


@pytest.mark.parametrize(
    ("order", "leader", "expected"),
    [
        ([ONE] * 4, ONE, [1]),
        ([ONE, TWO] * 3, ONE, [2, 1]),
        ([ONE, TWO] * 3, TWO, [1, 2]),
        ([ONE, ONE, ONE, TWO] * 2, TWO, [1, 1, 1, 2]),
        ([ONE, TWO, THREE], ONE, []),  # not yet twice
        ([ONE, ONE, TWO, TWO, ONE], ONE, []),  # in no order
        ([ONE] * 4, None, []),
        ([ONE] * 4, TWO, []),
    ],
)
def test_updates_of_a_step_end_with_the_leader_s(
    order: list[Optimizer], leader: Optimizer | None, expected: list[int]
) -> None:
    updates = Updates()
    for optimizer in order:
        updates.stepped(optimizer)
    source = None if leader is None else ("optimizer", id(leader))
    assert updates.of_a_step(source) == tuple(OptimizerStep("Optimizer", count, 1) for count in expected)


def test_calls_of_the_model_are_counted_from_one_update_of_the_leader_s_to_the_next() -> None:
    updates = Updates()
    for calls in (3, 80, 82, 84):  # the first were not all heard
        for _ in range(calls):
            updates.called("Rule")
        updates.stepped(ONE)
    assert updates.calls_of_a_step(("optimizer", id(ONE))) == 82
    assert updates.calls_of_a_step(("optimizer", id(TWO))) == 0


def test_only_the_first_updates_are_looked_at() -> None:
    updates = Updates()
    for _ in range(2 * LOOKED_AT):
        updates.stepped(ONE)
    updates.stepped(object())  # a class of its own, without groups
    assert len(updates.seen) == LOOKED_AT
    assert not updates.looking


def test_a_mode_of_the_program_hears_of_no_look_at_gradients() -> None:
    torch = pytest.importorskip("torch")
    from torch.overrides import TorchFunctionMode

    heard: list[object] = []

    class Hears(TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None):
            heard.append(func)
            return func(*args, **(kwargs or {}))  # type: ignore[operator, misc]

    updates, optimizer = Updates(), torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with Hears():
        updates.stepped(optimizer)
    assert not heard
    assert updates.seen[0].step == OptimizerStep("SGD", 0, 1)


def test_groups_that_differ_in_their_names_alone_are_counted_once() -> None:
    optimizer, rates = Optimizer(1.0, 1.0, 1.0, 1.0), (1e-3, 1e-3, 1e-4, 1e-3)
    for number, (group, rate) in enumerate(zip(optimizer.param_groups, rates, strict=True)):
        group |= {"lr": rate, "betas": (0.9, 0.99), "weight_decay": None, "name": f"layer {number}"}
    updates = Updates()
    updates.stepped(optimizer)
    assert updates.seen[0].step == OptimizerStep("Optimizer", 4, 2)
