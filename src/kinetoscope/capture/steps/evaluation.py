"""Evaluation inside training: where a training loop calls its model not to train it."""

from __future__ import annotations

from typing import Literal


class Evaluation:
    """Tells an evaluation from a step of training, by the calls of the model that is trained.

    An evaluation lies between an optimizer's step and the next call that trains. One in every step is a part
    of the step, as a policy's or a teacher's is.

    Attributes:
        running: an evaluation is.
    """

    def __init__(self) -> None:
        self.running = False
        self._trained = False  # the model has been, since the optimizer's last step
        self._evaluated = False  # and so for an evaluation
        self._usual = False  # there was one in the step before

    def called(self, training: bool) -> Literal["begins", "ends"] | None:
        """The model is called: whether an evaluation begins or ends with that."""
        if training:
            self._trained, ended = True, self.running
            self.running = False
            return "ends" if ended else None
        if self._trained or self._evaluated:
            return None
        self._evaluated, self.running = True, not self._usual
        return "begins" if self.running else None

    def stepped(self) -> bool:
        """The optimizer has stepped: whether an evaluation was still running."""
        self._usual, ended = self._evaluated, self.running
        self.running = self._trained = self._evaluated = False
        return ended
