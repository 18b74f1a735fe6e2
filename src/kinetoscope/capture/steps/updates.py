"""The optimizers that update the weights of a step, how many parameters had gradients at each update, and how
often the model was called for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from statistics import mean
from typing import Any, NamedTuple

from kinetoscope.capture import torch_private
from kinetoscope.capture.steps.detector import Source
from kinetoscope.recording.manifest import OptimizerStep

# Calls of step() that are looked at, from the program's first: a look goes through all parameters.
LOOKED_AT = 16


class Update(NamedTuple):
    optimizer: int
    step: OptimizerStep
    calls: int


class Updates:
    """The program's first updates, in order."""

    def __init__(self) -> None:
        self.seen: deque[Update] = deque(maxlen=LOOKED_AT)
        self.looking = True  # at more of them
        # the class of the one that is trained; its calls to be trained, since the latest update
        self.model, self.calls = "", 0

    def called(self, model: str) -> None:
        self.model = model
        self.calls += 1

    def calls_of_a_step(self, leader: Source) -> float:
        """How often the model is called from one update of the leader's to the next, at the mean."""
        counts = [update.calls for update in self.seen if update.optimizer == leader[1]][1:]
        return mean(counts) if counts else 0.0

    def stepped(self, optimizer: Any) -> None:
        """Note an optimizer's step, which has just ended."""
        calls, self.calls = self.calls, 0
        if not self.looking:
            return
        with suppress(Exception):  # the program's own class of optimizers
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            with torch_private.asked_in_silence():
                count = sum(parameter.grad is not None for parameter in parameters)
            groups = {_options(group) for group in optimizer.param_groups}
            step = OptimizerStep(type(optimizer).__name__, count, len(groups))
            self.seen.append(Update(id(optimizer), step, calls))
            self.looking = len(self.seen) < LOOKED_AT

    def of_a_step(self, leader: Source | None) -> tuple[OptimizerStep, ...]:
        """Return the updates from behind one of the leader to its next, that included, where they come round
        again and again; none where they do not."""
        order: list[Hashable] = [update.optimizer for update in self.seen]
        periods = range(1, len(order) // 2 + 1)
        period = next((n for n in periods if order[n:] == order[:-n]), None)
        if period is None or leader is None or leader[1] not in order:
            return ()
        begins = order.index(leader[1]) + 1
        return tuple(update.step for update in list(self.seen)[begins : begins + period])


def _options(group: dict[str, Any]) -> Hashable:
    """The options that set a group of parameters apart: numbers and the like, by value, no names."""
    own = ((name, value) for name, value in group.items() if name not in ("params", "param_names"))
    return frozenset(
        (name, value if isinstance(value, (int, float, tuple, type(None))) else id(value))
        for name, value in own
        if not isinstance(value, str)
    )
