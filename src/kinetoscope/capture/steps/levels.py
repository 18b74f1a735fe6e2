"""A step in words, the parts it is made of, and the other sources that could have been it, each timed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from kinetoscope.capture.steps.detector import SOURCES_WATCHED, SURENESS, Kind, Source, StepDetector
from kinetoscope.capture.steps.loops import FEWEST, Loop
from kinetoscope.recording.manifest import StepCandidate, StepLevel

# What a step is, by the kind of source that it is taken from.
ONE_STEP: dict[Kind, str] = {
    "user": "what the program's own step() ends",
    "optimizer": "one {}.step()",
    "request": "one {}.generate()",
    "module": "one call of {}",
    "compiled": "one call of a compiled function",
    "graph": "one replay of a {}",
    "range": "one range {!r}",
    "loop": "one pass of a loop with {}",
}
# Of each source so many ticks are timed, and of so many sources: the surest, then the busiest.
LATEST, LISTED = 64, 20


@dataclass
class Ticks:
    name: str
    count: int = 0
    # when the latest were, seconds
    times: deque[float] = field(default_factory=lambda: deque[float](maxlen=LATEST))

    @property
    def seconds(self) -> float | None:
        return median(b - a for a, b in pairwise(self.times)) if len(self.times) > 1 else None


class Candidates:
    """The sources that ticked while steps were looked for."""

    def __init__(self) -> None:
        self.sources: dict[Source, Ticks] = {}

    def ticked(self, source: Source, name: str, now_s: float) -> None:
        found = self.sources.get(source)
        if found is None:
            if len(self.sources) >= SOURCES_WATCHED:
                return
            found = self.sources[source] = Ticks(name)
        found.count += 1
        found.times.append(now_s)

    def seconds(self, source: Source) -> float | None:
        """Seconds from one of its ticks to the next, at the median."""
        return self.sources[source].seconds if source in self.sources else None

    def name(self, source: Source) -> str:
        return self.sources[source].name if source in self.sources else ""

    def listed(self) -> tuple[StepCandidate, ...]:
        """The surest first, of one kind the busiest."""
        order = sorted(self.sources.items(), key=lambda item: (-SURENESS[item[0][0]], -item[1].count))
        return tuple(
            StepCandidate(kind=kind, name=ticks.name, ticks=ticks.count, seconds=ticks.seconds)
            for (kind, _), ticks in order[:LISTED]
        )


def levels(
    detector: StepDetector, candidates: Candidates, name: str, acting: Source | None = None, place: str = ""
) -> tuple[StepLevel, ...]:
    """A step of the source that leads, and what it is made of, outermost first.

    Args:
        name: of the leader.
        acting: the module whose calls begin an iteration.
        place: of the first call of a step.
    """
    leader = detector.leader
    if leader is None:
        return ()
    kind = leader[0]
    if kind == "iteration" and (found := detector.iterations.found) is not None:
        optimizers = [source for source in candidates.sources if source[0] == "optimizer"]
        names = {candidates.name(source) for source in optimizers}
        update = f"{names.pop()}.step()" if len(optimizers) == 1 else "steps of optimizers"
        seconds = [candidates.seconds(source) for source in optimizers]
        act = f"calls of {name} without gradients"
        return (
            StepLevel(
                kind=kind,
                name=f"one iteration of {found.acts} {act}, then {found.updates} {update}",
                option=kind,
            ),
            StepLevel(
                kind="optimizer",
                name=update,
                calls=found.updates,
                option="optimizer",
                seconds=min((one for one in seconds if one is not None), default=None),
            ),
            StepLevel(
                kind="module",
                name=act.replace("calls", "call"),
                calls=found.acts,
                option=name,
                seconds=candidates.seconds(acting) if acting is not None else None,
            ),
        )
    if kind == "optimizer" and detector.turn:
        parts: dict[str, StepLevel] = {}
        for source, count in detector.turn.most_common():
            part = candidates.name(source)
            again = parts.pop(part, None) if source != leader else None  # a task's, as the task's before
            parts[part if source != leader else ""] = StepLevel(
                kind=kind,
                name=f"{part}.step()",
                calls=count + (again.calls if again else 0),
                option=part,
                seconds=candidates.seconds(source),
            )
        whole = " and ".join(f"{part.calls:g} {part.name}" for part in parts.values())
        return StepLevel(kind=kind, name=f"one iteration of {whole} of another optimizer"), *parts.values()
    around, outer = detector.around, detector.outer
    if detector.passes_lead and outer.loop is not None:
        calls = (detector.loop.round.calls if detector.loop.round else 1) * outer.calls
        what = {"graph": "replay of a {}", "range": "entry of {!r}"}.get(kind, "call of {}").format(name)
        seconds = candidates.seconds(leader)
        return (
            StepLevel(kind=kind, name=f"one call of {outer.loop.calls} in the loop at {outer.loop.where}"),
            StepLevel(kind=kind, name=what, calls=calls, option=name, seconds=seconds),
        )
    if kind == "loop" and around:
        return (StepLevel(kind=kind, name=f"one pass of the loop at {around[-1].where}"),)
    if detector.loop.round is not None:
        what = {"module": f"{name}.forward", "request": f"{name}.generate"}.get(kind, name)
        calls = detector.loop.round.calls
        whole = f"{calls} {'entries' if kind == 'range' else 'calls'} of {what} {place}".rstrip()
        seconds = candidates.seconds(leader)
        return (
            StepLevel(kind=kind, name=whole),
            StepLevel(kind=kind, name=f"call of {what}", calls=calls, option=name, seconds=seconds),
        )
    where = f" {place}" if place and detector.loop.regular else ""
    return (StepLevel(kind=kind, name=ONE_STEP[kind].format(name) + where),)


def calls_in_a_loop(
    around: list[Loop], model: str, calls: float, loops: list[Loop] | None
) -> tuple[StepLevel, ...]:
    """The calls of the model that an optimizer's step follows, where they are made in a loop of their own: a
    time step, a batch of which gradients are accumulated.

    Args:
        around: the loops around the optimizer's step.
        calls: of the model, for each of these.
        loops: those around such a call; None: there was none.
    """
    inner = loops[len(around) :] if loops and loops[: len(around)] == around else []
    if calls < FEWEST or not inner:
        return ()
    name = f"call of {model} in the loop at {inner[0].where}"
    return (StepLevel(kind="module", name=name, calls=calls, option=model),)
