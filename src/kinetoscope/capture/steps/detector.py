"""Which of a program's sources of ticks its steps are taken from, and at which ticks they begin or end.

Pure: ticks in, boundaries out. Whoever needs steps (`run` to record them, `tune` to time them) feeds a
detector with what :mod:`sources` sees, and decides for itself what a boundary is good for.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, NamedTuple, get_args

# The kinds of sources, the surest sign of a step first.
Kind = Literal["user", "optimizer", "request", "module", "compiled", "range"]
# What a source calls its tick; a module in training is one whose optimizer may be about to step.
Signal = Literal[Kind, "training module", "optimizer's module", "range end"]
# A kind, and which of its kind: one optimizer, one module, one range's name.
Source = tuple[Kind, Hashable]

# Ranges named after a running number would otherwise be remembered for ever.
SOURCES_WATCHED = 500


class SignalMeaning(NamedTuple):
    """The meaning of a signal.

    Attributes:
        needed: how often it must come before its source leads: the surer a sign of a step, the fewer.
        begins: a step begins here; otherwise one ends here.
    """

    kind: Kind
    needed: int
    begins: bool


SIGNALS: dict[Signal, SignalMeaning] = {
    "user": SignalMeaning("user", 1, begins=False),
    "optimizer": SignalMeaning("optimizer", 1, begins=False),
    # Leads with the first, before the calls of modules inside it can: those are its parts.
    "request": SignalMeaning("request", 1, begins=True),
    "module": SignalMeaning("module", 3, begins=True),
    # Waits for its optimizer, through as many calls as gradients are commonly accumulated over.
    "training module": SignalMeaning("module", 17, begins=True),
    # An optimizer has been made: its steps are the program's, after a rollout or a sequence of any length.
    "optimizer's module": SignalMeaning("module", 100_000, begins=True),
    "compiled": SignalMeaning("compiled", 5, begins=True),
    "range": SignalMeaning("range", 6, begins=True),
    "range end": SignalMeaning("range", 0, begins=False),
}
SURENESS = {kind: -place for place, kind in enumerate(get_args(Kind))}


def surer(kind: Kind, other: Kind) -> bool:
    """Whether ticks of one kind are a surer sign of steps than those of another."""
    return SURENESS[kind] > SURENESS[other]


class Boundary(NamedTuple):
    """A tick that matters.

    Attributes:
        role: candidate: its source does not lead; leads: it takes the lead with this; step: it leads already;
            end: the leader's step ends here, and the next has not begun.
        ticks: how often its source has ticked, with this one.
    """

    source: Source
    role: Literal["candidate", "leads", "step", "end"]
    ticks: int


class StepDetector:
    """The source that steps are taken from: the first to tick as often as needed, until a surer one does.

    Only the thread in which it took the lead has steps. A source less sure than the leader is not heard.

    Args:
        may_lead: False where all sources stay candidates.

    Attributes:
        leader: the source that steps are taken from; None before one is found.
        index: the number of the step that the leader's latest tick begins, counted from its first tick.
        fixed: no other source may take over from the leader now; set by who follows it.
    """

    def __init__(self, *, may_lead: bool = True) -> None:
        self.may_lead, self.fixed = may_lead, False
        self.leader: Source | None = None
        self.index = 0
        self._thread = 0
        self._passing = 0
        self._counts: dict[Source, int] = {}

    def tick(self, signal: Signal, key: Hashable, thread: int) -> Boundary | None:
        """The boundary at a source's tick; None: there is none."""
        meaning = SIGNALS[signal]
        source = (meaning.kind, key)
        if source == self.leader:
            if thread != self._thread:
                return None
            if signal == "range end":
                return Boundary(source, "end", self.index + 1)
            self.index += 1
            return Boundary(source, "step", self.index + 1)
        if signal == "range end" or (self.leader is not None and not self._may_yield(meaning.kind)):
            return None
        return self._count(source, meaning.needed, thread)

    def pass_over(self, steps: int) -> None:
        """Let so many of the leader's next boundaries pass: they are not needed."""
        self._passing = steps

    def passes(self, signal: Signal, key: Hashable) -> bool:
        """Whether this is a boundary that is passed over: cheaper than `tick`."""
        if self._passing <= 0 or (signal, key) != self.leader:
            return False
        self._passing -= 1
        self.index += 1
        return True

    def count(self, source: Source) -> int:
        """How often a source has ticked."""
        return self.index + 1 if source == self.leader else self._counts.get(source, 0)

    def best(self, ticks: int) -> Source | None:
        """The leader; until there is one, the surest source that ticked so often, the busiest of its kind."""
        ready = [source for source, count in self._counts.items() if count >= ticks]
        return self.leader or max(ready, key=lambda s: (SURENESS[s[0]], self._counts[s]), default=None)

    def leads_in(self, thread: int) -> bool:
        """Whether a source leads, and this is the thread that has its steps."""
        return self.leader is not None and thread == self._thread

    def leads_at_beginnings(self) -> bool:
        """Whether a running step began at the leader's latest tick, and ends only with the next."""
        return self.leader is not None and SIGNALS[self.leader[0]].begins

    def _may_yield(self, kind: Kind) -> bool:
        return not self.fixed and self.leader is not None and surer(kind, self.leader[0])

    def _count(self, source: Source, needed: int, thread: int) -> Boundary | None:
        if source not in self._counts and len(self._counts) >= SOURCES_WATCHED:
            return None
        count = self._counts[source] = self._counts.get(source, 0) + 1
        if not self.may_lead or count < needed:
            return Boundary(source, "candidate", count)
        self.leader, self._thread, self._passing = source, thread, 0
        self.index = count - 1
        return Boundary(source, "leads", count)


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
