"""Two versions of a program beside each other: by how much the step differs, and because of what."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.idle.gaps import SILENT
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.comparison import changes as parts
from kinetoscope.comparison.account import LAUNCH_BOUND, Account, account, recorded_account
from kinetoscope.comparison.changes import IDLE, KERNEL, OFTEN, SYNC, Change, is_structural, ranked
from kinetoscope.comparison.comparability import Surroundings, incomplete, surroundings
from kinetoscope.comparison.compiler import Fact, claimed, facts, standing_for
from kinetoscope.comparison.counts import Counts, counts, waits
from kinetoscope.comparison.places import by_line, code_difference, source_of_change
from kinetoscope.comparison.step_time import StepTime, step_time
from kinetoscope.findings.model import Finding
from kinetoscope.findings.registry import find
from kinetoscope.findings.rules.layout_conversion import CONVERTS
from kinetoscope.sources.run import Run

LAYOUT = "layout"
BY_FORMAT = re.compile(rf"{CONVERTS}|(?i:channels_last|nhwc|nchw)")

Belongs = Callable[[Change], bool]


def gathered(changes: Sequence[Change], base: Account, new: Account) -> list[Change]:
    """The changes, with those that have one cause as its parts: the program waits for the device more often,
    or its tensors lie in memory in another order. Counts tell it, which no noise moves. The sum stays."""
    left = list(changes)
    for cause in (_layouts, _waits):
        if (found := cause(base, new)) is None:
            continue
        fact, belongs = found
        parts = tuple(sorted(filter(belongs, left), key=lambda change: -abs(change.delta_us)))
        if parts:
            whole = replace(standing_for([fact], parts), events=parts[0].events)
            left = [whole, *(change for change in left if change not in parts)]
    return left


def _layouts(base: Account, new: Account) -> tuple[Fact, Belongs] | None:
    """Layouts are converted more or less often: kernels for one memory format are there for the other's."""
    before, now = (
        float(one.launches.filter(pl.col("name").str.contains(CONVERTS))["launches"].sum())
        for one in (base, new)
    )
    if abs(now - before) <= max(0.5, OFTEN * max(before, now)):
        return None
    often = numbers.count(round(abs(now - before)), "layout conversion")
    name = f"memory format: {often} per step {'added' if now > before else 'removed'}"
    fact = Fact(LAYOUT, "added" if now > before else "removed", name)
    return (
        fact,
        lambda change: (
            is_structural(change) and any(BY_FORMAT.search(work.name) for work in (*change.base, *change.new))
        ),
    )


def _waits(base: Account, new: Account) -> tuple[Fact, Belongs] | None:
    """The host waits for the device more or less often. A wait empties the queue: until the host is ahead
    again the device waits for it, whatever the host does; and what is waited for is mostly a copy."""
    before, now = (counts(one.run)["syncs"] for one in (base, new))
    if before is None or now is None or before == now:
        return None
    asked = [waits(one.trace) for one in (base, new)]
    more = {
        who: sum(sign * side.get(who, (0.0, 0))[0] for sign, side in zip((-1, 1), asked, strict=True))
        for who in {**asked[0], **asked[1]}
    }
    added = now > before
    askers = sorted((who for who in more if more[who] * (now - before) > 0), key=lambda who: -abs(more[who]))
    if not askers:
        return None
    often = numbers.count(round(abs(now - before)), "synchronization")
    name = f"{often} per step {'added' if added else 'removed'}: {', '.join(map(short_name, askers[:3]))}"

    def belongs(change: Change) -> bool:
        if change.kind == SYNC:
            return change.who in askers
        if (change.delta_us > 0) != added:
            return False
        if change.kind == IDLE:
            return change.cause == LAUNCH_BOUND or (change.cause == "unexplained" and change.who == SILENT)
        exchanged = change.what == "replaced"  # by what waits no more: a change of its own
        return change.kind == KERNEL and not exchanged and bool(change.ops) and set(change.ops) <= set(askers)

    return Fact(SYNC, "added" if added else "removed", name), belongs


RUNS = "runs"
LOCATED = 40  # changes whose line is looked up
BY = {"category": "category", "op": "op_name", "module": "module", "graph": "graph"}

Sums = list[tuple[str, float, float]]


@dataclass(frozen=True, eq=False)
class Difference:
    """What changed from ``base`` to ``new``; times are µs per step.

    Args:
        step: None where one of them recorded nothing but its compiling.
        changes: largest first; they sum to ``step.delta_us``.
        facts: how compiling differs, which changes may stand for.
        by: busy time by category, op, module, graph, line; ``idle`` time by cause. All sums of busy time
            differ by as much, and with the idle time's by ``step.delta_us``.
        gone, come: findings that only the base, or only the new run has.
        code: what became of the generated kernel of the first change that has one.
        lost: sentences on what is missing of either recording: nothing can be judged by them.
        accounts: the runs whose parts are shown: of repeated ones, those nearest to the mean.
    """

    surroundings: Surroundings
    step: StepTime | None
    unit: str
    changes: tuple[Change, ...]
    facts: tuple[Fact, ...]
    counts: tuple[Counts, Counts]
    by: dict[str, Sums]
    idle: Sums
    gone: tuple[Finding, ...]
    come: tuple[Finding, ...]
    code: str
    accounts: tuple[Account, Account] | None
    runs: tuple[Run, Run]
    lost: tuple[str, ...] = ()


def difference(base: Sequence[Run], new: Sequence[Run]) -> Difference:
    """Compare the runs of two versions; several of one are repetitions."""
    sides = _accounts(base, new)
    chosen = None if sides is None else (_middle(sides[0]), _middle(sides[1]))
    runs = (base[0], new[0]) if chosen is None else (chosen[0].run, chosen[1].run)
    counted = counts(runs[0]), counts(runs[1])
    compiled = tuple(facts(*runs, *counted))
    step = None if sides is None else step_time(*sides)
    changed = [] if chosen is None or step is None else _changes(chosen, compiled, step)
    found = _findings(runs)
    code = (code_difference(change, *runs) for one in changed for change in (one.parts or (one,)))
    lost = incomplete(base, new)
    return Difference(
        surroundings=_around(runs, chosen, lost),
        step=step,
        unit=chosen[0].unit if chosen else "step",
        changes=tuple(changed),
        facts=compiled,
        counts=counted,
        by={} if chosen is None else _sums(*chosen),
        idle=[] if chosen is None else _idle(*chosen),
        gone=found[0],
        come=found[1],
        code=next(filter(None, code), ""),
        accounts=chosen,
        runs=runs,
        lost=lost,
    )


def _around(
    runs: tuple[Run, Run], chosen: tuple[Account, Account] | None, lost: tuple[str, ...]
) -> Surroundings:
    """Where they ran; and neither what is incomplete nor a whole recording is held against steps."""
    found = surroundings(*runs)
    if lost:
        found = Surroundings("none", (*lost, *found.why))
    if chosen is None or chosen[0].unit == chosen[1].unit:
        return found
    which = "base" if chosen[1].unit == "step" else "new one"
    why = f"in the {which} no steps are marked: all of its recording stands for one"
    return Surroundings("none", (why, *found.why))


def _accounts(base: Sequence[Run], new: Sequence[Run]) -> tuple[list[Account], list[Account]] | None:
    """Of the program as it runs where all runs tell it; else as recorded. None where nothing ran."""
    for find_account in (account, recorded_account):
        sides = [[found for run in runs if (found := find_account(run))] for runs in (base, new)]
        if not all(sides):
            return None
        if len({found.basis for side in sides for found in side}) == 1:
            return sides[0], sides[1]
    return None


def _middle(accounts: Sequence[Account]) -> Account:
    mean = sum(one.step_us for one in accounts) / len(accounts)
    return min(accounts, key=lambda one: abs(one.step_us - mean))


def _changes(chosen: tuple[Account, Account], compiled: Sequence[Fact], step: StepTime) -> list[Change]:
    of_program = gathered(claimed(parts.changes(*chosen), compiled), *chosen)
    found = ranked(of_program, time_known=step.verdict in ("faster", "slower"))
    located = [
        replace(change, source=source_of_change(change, *chosen)) if place < LOCATED else change
        for place, change in enumerate(found)
    ]
    shown = chosen[1].step_us - chosen[0].step_us
    beside = step.delta_us - shown
    if abs(beside) <= parts.NOTHING_DIFFERS_US:
        return located
    words = "how the shown runs differ from the mean"
    rest = Change(kind=RUNS, what="more" if beside > 0 else "less", name=words, delta_us=beside)
    return [*located, rest]


def _sums(base: Account, new: Account) -> dict[str, Sums]:
    found = {key: parts.by(base, new, column) for key, column in BY.items()}
    return {**found, "line": by_line(base, new)}


def _idle(base: Account, new: Account) -> Sums:
    sums: dict[str, list[float]] = {}
    for side, one in enumerate((base, new)):
        for cause, us in one.idle.select("cause", "us").iter_rows():
            sums.setdefault(cause, [0.0, 0.0])[side] += us
        sums.setdefault(parts.LAUNCH_BOUND, [0.0, 0.0])[side] += float(one.launches["idle_us"].sum())
    rows = [(cause, us[0], us[1]) for cause, us in sums.items() if any(us)]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))


def _findings(runs: tuple[Run, Run]) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Those of either run alone, by rule and subject; numbers inside of a subject are not distinguished."""
    found = [[one for one in find(run) if one.severity != "info"] for run in runs]
    known = [{_key(one) for one in side} for side in found]
    gone = tuple(one for one in found[0] if _key(one) not in known[1])
    return gone, tuple(one for one in found[1] if _key(one) not in known[0])


def _key(finding: Finding) -> tuple[str, str]:
    return finding.rule, re.sub(r"\d+", "#", finding.subject)
