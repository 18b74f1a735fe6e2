"""Which kernel, op, call or line made a gate fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.comparison.account import Account
from kinetoscope.comparison.changes import OP, Change
from kinetoscope.comparison.compiler import Fact
from kinetoscope.comparison.counts import waits
from kinetoscope.comparison.difference import Difference
from kinetoscope.comparison.gates import STEP_TIME, Gate, Judgement, judge
from kinetoscope.comparison.places import source, source_of_change

COPY = "Memcpy"
# What of the compiler's is counted under which name.
FACTS = {
    "graph_breaks": "graph_break",
    "recompilations": "recompilation",
    "compile_failures": "compile_failure",
    "graphs": "graph_break",
    "graph_calls": "graph_break",
}


@dataclass(frozen=True)
class Culprit:
    words: str
    source: str | None = None


def judged(found: Difference, gates: Sequence[Gate]) -> list[Judgement]:
    """Every gate held to the difference; those that failed name who did it."""
    step = None if found.step is None else (found.step.base_us, found.step.ratio)
    judgements = [judge(gate, found.counts, step, found.lost) for gate in gates]
    return [_with_culprit(found, one) if one.failed and one.known else one for one in judgements]


def _with_culprit(found: Difference, judgement: Judgement) -> Judgement:
    culprit = _culprit(found, judgement.name)
    return (
        judgement
        if culprit is None
        else msgspec.structs.replace(judgement, culprit=culprit.words, source=culprit.source)
    )


def _culprit(found: Difference, name: str) -> Culprit | None:
    if name in FACTS and (fact := _added(found.facts, FACTS[name])):
        return Culprit(fact.name, fact.source)
    if found.accounts is None:
        return None
    if name == STEP_TIME:
        slower = next((change for change in found.changes if change.delta_us > 0), None)
        return None if slower is None else _of_change(slower, found.accounts)
    if name == "syncs":
        return _of_waits(*found.accounts)
    return _of_launches(found, _WANTED[name]) if name in _WANTED else None


def _added(facts: Iterable[Fact], kind: str) -> Fact | None:
    return next((fact for fact in facts if fact.kind == kind and fact.what == "added"), None)


_WANTED: dict[str, Callable[[Change], bool]] = {
    "launches": lambda change: True,
    "copies": lambda change: _has_copies(change),
    "pageable_copies": lambda change: _has_copies(change),
    "copied_bytes": lambda change: _has_copies(change),
    "eager_kernels": lambda change: not change.graphs,
    "generated_kernels": lambda change: bool(change.graphs),
    "ops": lambda change: change.kind == OP,
}


def _has_copies(change: Change) -> bool:
    return any(work.name.startswith(COPY) for work in change.new)


def _of_launches(found: Difference, wanted: Callable[[Change], bool]) -> Culprit | None:
    """The change with most launches more; of as many, what is called first: it may have called the others."""
    assert found.accounts is not None
    leaves = [part for change in found.changes for part in (change.parts or (change,))]
    more = [one for one in leaves if one.launches[1] > one.launches[0] and wanted(one)]
    more.sort(key=lambda one: one.events[1] or 0)
    most = max(more, key=lambda one: round(one.launches[1] - one.launches[0], 2), default=None)
    return None if most is None else _of_change(most, found.accounts)


def _of_change(change: Change, accounts: tuple[Account, Account]) -> Culprit:
    words = change.name
    if change.launches[1] != change.launches[0]:
        words += f", {change.launches[0]:g} → {change.launches[1]:g} per step"
    if callers := [op for op in change.ops if op != change.name]:
        words += f", called by {', '.join(callers[:3])}"
    return Culprit(words, source_of_change(change, *accounts))


def _of_waits(base: Account, new: Account) -> Culprit | None:
    """The op whose waits for the device have become more."""
    before, after = waits(base.trace), waits(new.trace)
    asked_by, (times, op) = max(
        after.items(),
        key=lambda item: item[1][0] - before.get(item[0], (0.0, None))[0],
        default=("", (0.0, None)),
    )
    if times <= before.get(asked_by, (0.0, None))[0]:
        return None
    return Culprit(
        f"{short_name(asked_by)} waits for the device {times:g} times per step", source(new, "", op)
    )
