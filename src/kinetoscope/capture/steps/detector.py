"""Which of a program's sources of ticks its steps are taken from, and at which ticks they begin or end.

A leader's ticks are not always whole steps: several calls may make one round of a loop (`call_sites`), a
loop around it may be the author's (`loops`), several optimizers step in turn, and a program that acts and
then trains has iterations of many steps (`iterations`). A leader that ticks no more is replaced.

Pure: ticks in, boundaries out. Whoever needs steps (`run` to record them, `tune` to time them) feeds a
detector with what :mod:`sources` sees, and decides for itself what a boundary is good for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Literal, NamedTuple, get_args

from kinetoscope.capture.steps.call_sites import KEPT, UNKNOWN_STACK, CallLoop, CallStack, period
from kinetoscope.capture.steps.iterations import Iterations
from kinetoscope.capture.steps.loops import UNSHOWN, Loop, OuterLoop, Position, Site

# The kinds of sources, the surest sign of a step first.
Kind = Literal["user", "iteration", "optimizer", "request", "module", "compiled", "graph", "range", "loop"]
# What a source calls its tick; a module in training is one whose optimizer may be about to step, one that
# acts could be trained and is called without gradients, "fed" where a data loader gave a batch since the call
# before. An idle one is in training mode, and its gradients are not recorded. What comes between, a value of
# the host's that is read or a batch that is taken, is no step, but shows where a pass of a loop ends.
Signal = Literal[
    Kind,
    "training module",
    "closure's module",
    "optimizer's module",
    "acting module",
    "fed acting module",
    "early loop",
    "closure's loop",
    "range end",
    "idle module",
    "between",
]
Source = tuple[Kind, Hashable]  # a kind, and which of its kind: one optimizer, one module, one range's name

SOURCES_WATCHED = 500  # ranges named after a running number would otherwise be remembered for ever


class SignalMeaning(NamedTuple):
    kind: Kind
    needed: int  # how often it must come before its source leads: the surer a sign of a step, the fewer
    begins: bool  # a step begins here; otherwise one ends here


SIGNALS: dict[Signal, SignalMeaning] = {
    "user": SignalMeaning("user", 1, begins=False),
    # Found by the calls of modules that act.
    "iteration": SignalMeaning("iteration", 1, begins=True),
    "optimizer": SignalMeaning("optimizer", 1, begins=False),
    # Leads with the first, before the calls of modules inside it can: those are its parts.
    "request": SignalMeaning("request", 1, begins=True),
    "module": SignalMeaning("module", 3, begins=True),
    # Waits for its optimizer, through as many calls as gradients are commonly accumulated over.
    "training module": SignalMeaning("module", 17, begins=True),
    # Called while an optimizer steps, whose end is the better sign: LBFGS calls its closure up to 25 times a
    # step, and with ``max_iter=100`` up to 125 times. One that is made to take a single step never ends it.
    "closure's module": SignalMeaning("module", 126, begins=True),
    # It is initialised, calibrated or warmed up before it is switched to evaluation, or never is.
    "idle module": SignalMeaning("module", 17, begins=True),
    # An optimizer has been made: its steps are the program's, after a rollout or a sequence of any length.
    "optimizer's module": SignalMeaning("module", 100_000, begins=True),
    "acting module": SignalMeaning("module", 100_000, begins=True),
    "fed acting module": SignalMeaning("module", 100_000, begins=True),
    "compiled": SignalMeaning("compiled", 5, begins=True),
    "graph": SignalMeaning("graph", 5, begins=True),
    "range": SignalMeaning("range", 6, begins=True),
    # A call that waits for the device: steps are what lies between them, once they repeat in a loop.
    "early loop": SignalMeaning("loop", 100_000, begins=True),
    "closure's loop": SignalMeaning("loop", 126, begins=True),
    "loop": SignalMeaning("loop", 6, begins=True),
    "range end": SignalMeaning("range", 0, begins=False),
}
SURENESS = {kind: -place for place, kind in enumerate(get_args(Kind))}


def surer(kind: Kind, other: Kind) -> bool:
    """Whether ticks of one kind are a surer sign of steps than those of another."""
    return SURENESS[kind] > SURENESS[other]


class Boundary(NamedTuple):
    """A tick that matters."""

    source: Source
    # candidate: its source does not lead; leads: it takes the lead with this; step: it leads already; end:
    # the leader's step ends here, and the next has not begun; left: the loop whose passes are the steps is
    # over, within what would have been one; again: it has been entered again
    role: Literal["candidate", "leads", "step", "end", "left", "again"]
    ticks: int  # how often its source has ticked, with this one


# An optimizer that steps once while another steps so often ends a round, as a generator's does; at every
# other step it only lags, as a delayed policy's does.
ROUND = 3
# Sources whose calls the program makes itself, so that places in it tell them apart.
CALLED: tuple[Kind, ...] = ("request", "module", "compiled", "graph", "range", "loop")
ACTING: tuple[Signal, ...] = ("acting module", "fed acting module")
ITERATION: Source = ("iteration", 0)
# A leader is over once another source has ticked so often since, and so many times as often as ever between
# two ticks of the leader's. Only replays, of a training step that was captured once warm, and other
# optimizers end an optimizer.
SILENT: dict[Kind, int] = {"graph": 16, "loop": 512}
SILENT_OTHERS, LONGER = 64, 3
# An optimizer that steps so often in a row, from where the leader did before, carries on its steps.
IN_A_ROW = 3
# So many steps of others from there, and none of its own, and each optimizer is made for a step or two.
MANY_OTHERS = 64
THREADS = 8  # threads whose calls that wait are looked at
# Calls of the leader from other threads, with none from its own in between: a model that was warmed up in one
# thread serves in others, of which the first to have so many of these calls has the steps from then on. It
# takes twice as many each time: threads that share a lock may call in bursts.
MOVED, OF_ONE = 16, 3


class StepDetector:
    """The source that steps are taken from: the first to tick as often as needed, until a surer one does.

    Only the thread in which it took the lead has steps, until its calls come from others alone. A source
    less sure than the leader is not heard.
    """

    def __init__(
        self,
        *,
        may_lead: bool = True,  # False where all sources stay candidates
        rounds: bool = True,  # several calls of a source may make one step
        # a kind of sources, or the name of one; no other is to lead but the program's own
        wanted: str | None = None,
        loads: Callable[[], int] = lambda: 0,  # grows where the program takes a batch from a data loader
    ) -> None:
        self.may_lead, self.rounds, self.wanted, self.loads = may_lead, rounds, wanted, loads
        # Set by who follows it: no other source may take over now, nor are steps understood otherwise.
        self.fixed = False
        self.leader: Source | None = None  # that steps are taken from
        self.index = 0  # of the step that the leader's latest tick begins, counted from its first tick
        self.iterations = Iterations()  # of the leading optimizer
        self.iterations.looking = wanted in (None, "iteration")
        self.loop = CallLoop()  # the leader's calls, where it is called
        self.outer = OuterLoop(())  # the loop around the one of these
        self.around: list[Loop] = []  # the loops around the leader's first call
        self._acted_at: Site = ()  # from where the model was first called without gradients
        self.passes_lead = False  # the passes of ``outer`` are the steps
        self.waits: dict[int, CallLoop] = {}  # of threads, until a source leads
        self.over: set[Source] = set()  # they led, and ticked no more
        self._silence = Counter[Source]()  # ticks of others since the leader's latest
        self._usual = Counter[Source]()  # the most of them that there were
        self.turns: deque[Source] = deque(maxlen=KEPT)  # of optimizers
        self._succession = Succession(None)
        self._made = MadeAnew()
        self._asked: Counter[tuple[Source | None, Source]] = Counter()
        self._thread = 0
        self._elsewhere = Counter[int]()  # by thread, the leader's calls since the latest in its own
        self._to_move = MOVED
        self._passing = 0
        self._counts: dict[Source, int] = {}
        self._whole = False  # the leading optimizer ends a round of several
        self._anew = False  # the leader's steps are other ones from the next on
        self._left = False  # the loop whose passes are the steps is over, until it is entered again

    def tick(
        self, signal: Signal, key: Hashable, thread: int, name: str = "", stack: CallStack = UNKNOWN_STACK
    ) -> Boundary | None:
        """The boundary at a source's tick; None: there is none."""
        if signal == "between":
            if thread == self._thread:
                self.outer.called_elsewhere(str(key), stack.site)
            return None
        meaning = SIGNALS[signal]
        source = (meaning.kind, key)
        if signal == "optimizer" and thread == self._thread:
            source = self._carried_on(source, stack)
        if self.leader is not None and self.leader[0] == "optimizer" and thread == self._thread:
            if (boundary := self._between_updates(signal, source, stack)) is not None:
                return boundary
        elif signal in ACTING and not self.fixed:
            self._acted_at = self._acted_at or stack.site()
            self.iterations.acted(key, fed=signal == "fed acting module")
        if source == self.leader:
            return self._leader_ticked(signal, source, thread, stack)
        if signal == "range end":
            return None
        if self.leader is not None:
            if thread == self._thread:
                self.outer.called_elsewhere(source[0], stack.site)
            # A recording that runs can end in its own thread alone.
            if not (self.fixed and thread != self._thread) and self._replaces(source):
                return self._lead(source, thread, stack, 0)
            if source in self.over or not self._may_yield(meaning.kind):
                return None
        if meaning.kind == "loop" and self.leader is None and not self._repeats(source, thread, stack):
            return None
        return self._count(source, self._needed(meaning, name), thread, stack)

    def _carried_on(self, source: Source, stack: CallStack) -> Source:
        """The leader, where this optimizer carries on its steps; else the one that it is of a kind with."""
        leader = self.leader
        if leader is None or leader[0] != "optimizer":
            return source
        if self._succession.leader != leader:
            self._succession = Succession(leader)
        if self._succession.stepped(source, stack):
            return leader
        return self._made.stepped(source, stack.position(0))

    def sign(self, source: Source) -> Source:
        return self._made.first.get(source, source)

    def _replaces(self, source: Source) -> bool:
        """Whether this source takes the place of a leader that ticks no more."""
        leader = self.leader
        if leader is None or not self.may_lead or self.wanted is not None or source in self.over:
            return False
        called = leader[0] in CALLED
        if source[0] not in ("graph", "optimizer") and (not called or source[0] not in CALLED):
            return False
        since = self._silence[source] = self._silence[source] + 1
        most = SILENT.get(source[0], SILENT_OTHERS) * (1 if called else LONGER)
        if since <= max(most, LONGER * self._usual[source]):
            return False
        self.over.add(leader)
        return True

    def _moves(self, source: Source, thread: int) -> bool:
        """Whether the leader's calls come from this thread from now on; no other source leads then."""
        self._silence.clear()
        if self.fixed or source[0] not in ("request", "module", "compiled"):
            return False
        self._elsewhere[thread] += 1
        if self._elsewhere[thread] < OF_ONE or self._elsewhere.total() < self._to_move:
            return False
        self._to_move *= 2
        return True

    def _repeats(self, source: Source, thread: int, stack: CallStack) -> bool:
        """Whether this call that waits begins a pass of a loop in which such calls repeat."""
        if thread not in self.waits and len(self.waits) >= THREADS:
            return False
        loop = self.waits.setdefault(thread, CallLoop(together=True))
        loop.called(stack.site())
        first = loop.length is not None and loop.at_first(stack)
        loop.pass_by(first=first)
        return first

    def _leader_ticked(
        self, signal: Signal, source: Source, thread: int, stack: CallStack
    ) -> Boundary | None:
        if thread != self._thread:
            return self._lead(source, thread, stack, 0) if self._moves(source, thread) else None
        self._elsewhere.clear()
        if signal == "range end":
            return Boundary(source, "end", self.index + 1)
        if self._looks():
            self._anew = self.loop.called(stack.site()) or self._anew
        if source[0] == "loop" and not self._anew and self.around and not stack.within(self.around[-1]):
            return self._waits_outside(source, thread, stack)
        first = self.loop.at_first(stack)
        self.loop.pass_by(first=first)
        if not first:
            return None
        for other, ticks in self._silence.items():
            self._usual[other] = max(self._usual[other], ticks)
        self._silence.clear()
        if self.outer.looking or self.outer.found:
            first = self.outer.called()
            if self.outer.found and first and not self.passes_lead and not self.fixed:
                self.passes_lead = self._anew = True
            if self.passes_lead and not first:
                return None
        if self._anew:
            self._anew, self.index, self._left = False, 0, False
            if source[0] == "loop":
                self.around = self._around_the_round(stack)
            return Boundary(source, "leads", self._counts.get(source, 0) + self.loop.calls)
        if self._left:
            self._left = False
            return Boundary(source, "again", self.index + 1)
        self.index += 1
        return Boundary(source, "step", self.index + 1)

    def _waits_outside(self, source: Source, thread: int, stack: CallStack) -> Boundary | None:
        """A call waits outside of the loop whose passes are the steps; in another loop, if that goes on."""
        if not self._left:
            self._left = True
            return Boundary(source, "left", self.index + 1)
        since = self._silence[source] = self._silence[source] + 1
        usual = max(SILENT["loop"], LONGER * self._usual[source])
        if since <= usual or self.fixed or not self._repeats(source, thread, stack):
            return None
        return self._lead(source, thread, stack, 0) if since > usual + SIGNALS["loop"].needed else None

    def _between_updates(self, signal: Signal, source: Source, stack: CallStack) -> Boundary | None:
        """Where another source turns out to be that of the steps, while an optimizer leads."""
        if self.fixed or not self.may_lead or self.wanted not in (None, "iteration"):
            return None
        if signal in ACTING:
            if self.iterations.looking and self.iterations.acted(
                source[1],
                fed=signal == "fed acting module",
                between=lambda: bool(self.around) and self.around[-1].holds(stack.site()),
            ):
                # The two that were similar came before.
                self.leader, self.index, self._passing = ITERATION, 2, 0
                return Boundary(ITERATION, "leads", 3)
        elif signal == "optimizer":
            self.iterations.stepped(
                source, between=lambda: bool(self.around) and self.around[-1].holds(self._acted_at)
            )
            since = next((at for at, turn in enumerate(reversed(self.turns)) if turn == source), 0)
            self.turns.append(source)
            if self.wanted is not None or self._whole or source == self.leader:
                return None
            if source == self._rarest(source) or (since > 1 and self._surrounds(source, stack)):
                self.leader, self.index, self._passing, self._whole = source, 0, 0, True
                return Boundary(source, "leads", self._counts.get(source, 0) + len(self.turns))
        return None

    def _surrounds(self, source: Source, stack: CallStack) -> bool:
        """Whether what steps here does so in the body of a loop around the one that the leader steps in."""
        self._asked[self.leader, source] += 1
        if self._asked[self.leader, source] > UNSHOWN:
            return False
        own, inner = stack.loops(), self.around
        return bool(own and inner and len(own) < len(inner) and own == inner[: len(own)])

    def _rarest(self, source: Source) -> Source | None:
        """The optimizer that steps once in a round in which another steps more often, as ``source`` may."""
        steps = Counter(self.turns)
        if max(steps.values()) < ROUND * (steps[source] - 1):
            return None
        length = period(self.turns)
        if length is None:
            return None
        turns = Counter(list(self.turns)[-length:])
        rarest = min(turns, key=turns.__getitem__)
        return rarest if turns[rarest] == 1 and max(turns.values()) >= ROUND else None

    @property
    def undecided(self) -> bool:
        """Whether the next ticks may show that steps are longer than they seem to be."""
        if self.leader is None or self.wanted not in (None, "iteration"):
            return False
        if self.leader[0] == "optimizer":
            in_turn = len(set(self.turns)) > 1 and not self._whole
            return self.iterations.looking or (
                in_turn and len(self.turns) < KEPT and period(self.turns) is None
            )
        return self.leader[0] in CALLED and (self.loop.undecided or self.outer.undecided)

    @property
    def provisional(self) -> bool:
        """Whether other steps than the leader's may show later: calls that wait are the least sure sign of
        steps, and passes of a loop around the leader's calls may still turn out to be similar."""
        outer = self.outer
        may_show = (outer.looking and outer.passes > 0) or (outer.found and not self.passes_lead)
        return self.leader is not None and (self.leader[0] == "loop" or may_show)

    @property
    def turn(self) -> Counter[Source]:
        """How often each optimizer steps in a round that the leading one ends; empty where it has none."""
        turns = list(self.turns)
        ends = [at for at, source in enumerate(turns) if source == self.leader]
        return Counter(turns[ends[-2] + 1 : ends[-1] + 1]) if self._whole and len(ends) > 1 else Counter()

    def inner_leads(self) -> None:
        """Take steps from the leader's own calls: the passes of the loop around them are too long."""
        self.outer.stop()
        self.passes_lead = False

    def decline(self, leader: Source | None) -> None:
        """Take steps from another source again: those that were found are too long, or come too late."""
        if leader is not None and self.leader == ITERATION:
            self.leader, self.index = leader, self._counts.get(leader, 0)
        self.iterations.looking = False

    def pass_over(self, steps: int) -> None:
        """Let so many of the leader's next boundaries pass: they are not needed."""
        self._passing = steps

    def passes(self, signal: Signal, key: Hashable, stack: CallStack = UNKNOWN_STACK) -> bool:
        """Whether this is a boundary that is passed over, or a call within a step: cheaper than `tick`."""
        if self._passing <= 0 and self.loop.round is None:
            return self._within_pass(signal, key)
        if (signal, key) != self.leader or self._looks() or self.outer.looking or self.passes_lead:
            return self._within_pass(signal, key)
        if signal == "loop" and (self._left or (self.around and not stack.within(self.around[-1]))):
            return False
        first = self.loop.at_first(stack)
        if first and self._passing <= 0:
            return False
        self._silence.clear()
        self.loop.pass_by(first=first)
        if first:
            self._passing -= 1
            self.index += 1
        return True

    def _within_pass(self, signal: Signal, key: Hashable) -> bool:
        """Whether this is in the middle of a pass that is a step, or after its end, and shows nothing new."""
        if signal == "between" and self.outer.ended:
            return True
        within = self.passes_lead and self.loop.round is None and not self.outer.ended
        if within and (signal, key) == self.leader:
            self.outer.called()
            return True
        return False

    def _looks(self) -> bool:
        """Whether the places of the leader's calls are still looked at."""
        called = self.leader is not None and self.leader[0] in CALLED
        return called and self.rounds and self.wanted is None and not self.fixed and self.loop.looking

    @property
    def ticks_of_a_step(self) -> int:
        """How often what leads ticks in a step of several calls; of an iteration, its optimizers' steps."""
        if self.leader == ITERATION:
            return self.iterations.found.updates if self.iterations.found else 1
        calls = self.loop.round.calls if self.loop.round else 1
        return calls * self.outer.calls if self.passes_lead else calls

    def count(self, source: Source) -> int:
        return self.index + 1 if source == self.leader else self._counts.get(source, 0)

    def best(self, ticks: int) -> Source | None:
        """The leader; until there is one, the surest source that ticked so often, the busiest of its kind."""
        ready = [source for source, count in self._counts.items() if count >= ticks]
        return self.leader or max(ready, key=lambda s: (SURENESS[s[0]], self._counts[s]), default=None)

    def leads_in(self, thread: int) -> bool:
        return self.leader is not None and thread == self._thread

    def leads_at_beginnings(self) -> bool:
        """Whether a running step began at the leader's latest tick, and ends only with the next."""
        return self.leader is not None and SIGNALS[self.leader[0]].begins

    def _may_yield(self, kind: Kind) -> bool:
        return not self.fixed and self.leader is not None and surer(kind, self.leader[0])

    def _needed(self, meaning: SignalMeaning, name: str) -> int | None:
        """How often a source must tick before it leads; None: it never does."""
        if not self.may_lead:
            return None
        if self.wanted is None or meaning.kind == "user":
            return meaning.needed
        if self.wanted == "iteration":
            return 1 if meaning.kind == "optimizer" else None
        return 1 if self.wanted in (meaning.kind, name) else None

    def _count(self, source: Source, needed: int | None, thread: int, stack: CallStack) -> Boundary | None:
        if source not in self._counts and len(self._counts) >= SOURCES_WATCHED:
            return None
        count = self._counts[source] = self._counts.get(source, 0) + 1
        if needed is None or count < needed:
            return Boundary(source, "candidate", count)
        return self._lead(source, thread, stack, count - 1)

    def _lead(self, source: Source, thread: int, stack: CallStack, index: int) -> Boundary:
        """This source takes the lead, with the tick of this number."""
        self.leader, self._thread, self._passing, self.index, self._left = source, thread, 0, index, False
        self.loop = self.waits.get(thread, CallLoop()) if source[0] == "loop" else CallLoop()
        self.waits.clear()
        self._elsewhere.clear()
        self._silence.clear()
        self._usual.clear()
        self.around = self._around_the_round(stack) if source[0] == "loop" else stack.loops()
        looks = self._looks() and source[0] not in ("loop", "graph")
        self.outer, self.passes_lead = OuterLoop(self.around if looks else (), self.loads), False
        if self._looks() and source[0] != "loop":
            self.loop.called(stack.site())
        if source[0] == "optimizer":
            self._succession = Succession(source, stack.position(0))
            self.iterations.stepped(source)
            self.turns.append(source)
        return Boundary(source, "leads", index + 1)

    def _around_the_round(self, stack: CallStack) -> list[Loop]:
        calls = list(self.loop.sites)[-(self.loop.length or 1) :]
        return [loop for loop in stack.loops() if all(map(loop.holds, calls))]


class Succession:
    """Tells an optimizer that carries on the leader's steps, as one that is made anew for each fold, round or
    client does, from one that steps in turn with it."""

    def __init__(self, leader: Source | None, place: Position | None = None) -> None:
        self.leader = self.latest = leader
        self.place = place  # from which the leader steps
        self.heirs: set[Source] = set()
        self.anew = False  # whatever steps from there carries on
        self.row = self.before = 1  # steps of the latest in a row; of the leader and its heirs before these
        self.others = 0  # steps of others from there since

    def stepped(self, source: Source, stack: CallStack) -> bool:
        """Whether this optimizer, which has stepped, is the leader or carries on its steps."""
        own = source == self.leader or source in self.heirs
        if source == self.latest:
            self.row += 1
        else:
            was_own = self.latest == self.leader or self.latest in self.heirs
            self.latest, self.before, self.row = source, self.row if was_own else 0, 1
        if own:
            self.others = 0
            if self.row == IN_A_ROW or self.place is None:
                self.place = stack.position(0)
            return True
        if self.place is None or stack.position(0) != self.place:
            return False
        self.others += 1
        self.anew = self.anew or self.others >= MANY_OTHERS
        enough = self.row >= IN_A_ROW or bool(self.heirs)  # the first time it could be one that steps rarely
        if self.anew or (enough and self.before >= IN_A_ROW):
            self.heirs.add(source)
        return source in self.heirs


class MadeAnew:
    """Optimizers that step in a row one after the other at one place of the program, each made for a sample:
    none of them steps for long, and together they are one sign of steps."""

    def __init__(self) -> None:
        self.first: dict[Source, Source] = {}  # of those that are of a kind with this one
        self.latest: dict[Position, Source] = {}  # that stepped there
        self.row = Counter[Position]()  # how often in a row

    def stepped(self, source: Source, place: Position | None) -> Source:
        """The first optimizer of the row that this one is in, which has stepped."""
        if place is None:
            return self.first.get(source, source)
        before = self.latest.get(place)
        if source not in self.first:
            if len(self.first) >= SOURCES_WATCHED:
                return source if before is None else self.first[before]
            follows = before is not None and self.row[place] >= IN_A_ROW
            self.first[source] = self.first[before] if follows and before is not None else source
        self.row[place] = self.row[place] + 1 if before == source else 1
        self.latest[place] = source
        return self.first[source]


class Evaluation:
    """Tells an evaluation from a step of training, by the calls of the model that is trained.

    An evaluation lies between an optimizer's step and the next call that trains. One in every step is a part
    of the step, as a policy's or a teacher's is.
    """

    def __init__(self) -> None:
        self.running = False  # an evaluation is
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
