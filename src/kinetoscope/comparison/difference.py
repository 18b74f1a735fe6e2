"""Two versions of a program compared: by how much the step differs, because of what, and by which gates."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from kinetoscope import numbers
from kinetoscope.analysis.idle.gaps import SILENT
from kinetoscope.comparison import changes as parts
from kinetoscope.comparison.account import LAUNCH_BOUND, Account, account, recorded_account
from kinetoscope.comparison.changes import (
    IDLE,
    KERNEL,
    OFTEN,
    SYNC,
    Change,
    SumChange,
    is_structural,
    ranked,
    summed,
)  # fmt: skip
from kinetoscope.comparison.comparability import Surroundings, incomplete, surroundings
from kinetoscope.comparison.compiler import Fact, claimed, facts, standing_for
from kinetoscope.comparison.contributors import contributors, described, grown
from kinetoscope.comparison.counts import COUNTED, Counts, counts
from kinetoscope.comparison.findings import changed_findings
from kinetoscope.comparison.gates import DEVICE_TIME, STEP_TIME, TIMES, Gate, Judgement, judge
from kinetoscope.comparison.memory import MemoryChange, memory_change
from kinetoscope.comparison.places import by_line, code_difference, line_that_grew, source_of_change
from kinetoscope.comparison.programs import other_programs
from kinetoscope.comparison.step_change import StepChange, device_change, step_change
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rules.layout_conversion import CONVERTS
from kinetoscope.sources.run import LoadedRun

LAYOUT = "layout"
PRODUCT = re.compile(r"(?i)mm$|matmul|linear|conv|attention")
BY_FORMAT = re.compile(rf"{CONVERTS}|(?i:channels_last|nhwc|nchw)")

Belongs = Callable[[Change], bool]


def gathered(changes: Sequence[Change], base: Account, new: Account) -> list[Change]:
    """The changes, where those with one cause are parts of one: the program waits for the device more often,
    or its tensors have another memory format. Counts show it, which noise does not change. The sum stays."""
    left = list(changes)
    for cause in (_layouts, _waits):
        if (known := cause(base, new)) is None:
            continue
        fact, belongs = known
        parts = tuple(sorted(filter(belongs, left), key=lambda change: -abs(change.delta_us)))
        if parts:
            whole = replace(standing_for([fact], parts), calls=parts[0].calls)
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

    def belongs(change: Change) -> bool:
        works = (*change.base, *change.new)
        return is_structural(change) and any(BY_FORMAT.search(work.name) for work in works)

    return fact, belongs


def _waits(base: Account, new: Account) -> tuple[Fact, Belongs] | None:
    """The host waits for the device more or less often. A wait empties the queue: until the host is ahead
    again the device waits for it, whatever the host does; and the host mostly waits for a copy."""
    before, now = (counts(one.run)["syncs"] for one in (base, new))
    if before is None or now is None or before == now:
        return None
    waits = [contributors(one.run, "syncs") for one in (base, new)]
    more = {
        who: sum(sign * side[who].amount for sign, side in zip((-1, 1), waits, strict=True) if who in side)
        for who in {**waits[0], **waits[1]}
    }
    added = now > before
    callers = sorted((who for who in more if more[who] * (now - before) > 0), key=lambda who: -abs(more[who]))
    if not callers:
        return None
    often = numbers.count(round(abs(now - before)), "synchronization")
    name = f"{often} per step {'added' if added else 'removed'}: {', '.join(callers[:3])}"

    def belongs(change: Change) -> bool:
        if change.kind == SYNC:
            return change.who in callers
        if (change.delta_us > 0) != added:
            return False
        if change.kind == IDLE:
            return change.cause == LAUNCH_BOUND or (change.cause == "unexplained" and change.who == SILENT)
        exchanged = change.what == "replaced"  # by kernels without a wait: a change of its own
        return (
            change.kind == KERNEL and not exchanged and bool(change.ops) and set(change.ops) <= set(callers)
        )

    return Fact(SYNC, "added" if added else "removed", name), belongs


RUNS = "runs"
LOCATED = 40  # changes whose line is looked up
BY = {"category": "category", "op": "op_name", "module": "module", "graph": "graph"}


class RunDifference(Struct, frozen=True, eq=False):
    """All that changed from ``base`` to ``new``, and the accounts that show it; times are µs per step."""

    surroundings: Surroundings
    step: StepChange | None  # None where one of them recorded nothing but its compiling
    device_time: StepChange | None  # the device's work in a step; None where no device worked
    changes: tuple[Change, ...]  # largest first; they sum to ``step.delta_us``
    facts: tuple[Fact, ...]  # how compiling differs, which changes may stand for
    counts: tuple[Counts, Counts]
    # busy time by category, op, module, graph, line; ``idle`` time by cause. All sums of busy time differ by
    # as much, and with the idle time's by ``step.delta_us``
    by: dict[str, list[SumChange]]
    idle: list[SumChange]
    # gone, come: findings that only the base, or only the new run has
    gone: tuple[Finding, ...]
    come: tuple[Finding, ...]
    code: str  # the unified diff of the generated kernel of the first change that has one
    # the runs whose parts are shown: of repeated ones, those nearest to the mean
    accounts: tuple[Account, Account] | None
    runs: tuple[LoadedRun, LoadedRun]
    # sentences on missing parts of either recording: nothing can be judged by them
    lost: tuple[str, ...] = ()
    # what the peaks differ by; None where the allocator's history was not recorded
    memory: MemoryChange | None = None


def difference(base: Sequence[LoadedRun], new: Sequence[LoadedRun]) -> RunDifference:
    """Compare the runs of two versions; several of one are repetitions."""
    sides = _accounts(base, new)
    chosen = None if sides is None else (_middle(sides[0]), _middle(sides[1]))
    runs = (base[0], new[0]) if chosen is None else (chosen[0].run, chosen[1].run)
    counted = counts(runs[0]), counts(runs[1])
    compiled = tuple(facts(*runs, *counted))
    step = None if sides is None else step_change(*sides)
    device = None if sides is None else device_change(*sides)
    changed = [] if chosen is None or step is None else _changes(chosen, compiled, step, device)
    found = changed_findings(runs, chosen)
    code = (code_difference(change, *runs) for one in changed for change in (one.parts or (one,)))
    lost = incomplete(base, new)
    return RunDifference(
        surroundings=_around(runs, chosen, lost),
        step=step,
        device_time=device,
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
        memory=memory_change(*runs),
    )


def _around(
    runs: tuple[LoadedRun, LoadedRun], chosen: tuple[Account, Account] | None, lost: tuple[str, ...]
) -> Surroundings:
    """The surroundings of both runs; neither an incomplete nor a whole recording is compared with steps."""
    known = surroundings(*runs)
    if lost:
        return Surroundings("none", (*lost, *known.why))
    if chosen is not None and (other := _other_shapes(*chosen)) is not None:
        limited = "limited" if known.comparability == "good" else known.comparability
        known = Surroundings(limited, (other, *known.why))
    if chosen is None or chosen[0].unit == chosen[1].unit:
        return known
    which = "base" if chosen[1].unit == "step" else "new one"
    why = f"in the {which} no steps are marked: all of its recording stands for one"
    return Surroundings("none", (why, *known.why))


def _other_shapes(base: Account, new: Account) -> str | None:
    """A sentence where most ops that both call have tensors of other shapes, as with another batch: most
    products, where there are any, since an optimizer's ops are of parameters."""
    before, now = (_shapes(one) for one in (base, new))
    both = [op for op in before if op in now]
    both = [op for op in both if PRODUCT.search(op)] or both
    other = [op for op in both if not before[op] & now[op]]
    if not other or len(other) <= len(both) / 2:
        return None
    op = max(other, key=lambda op: len(max(before[op])))
    return f"the tensors have other shapes, as of {op}: {max(before[op])} and {max(now[op])}"


def _shapes(one: Account) -> dict[str, set[str]]:
    shape = pl.col("shape").str.split("|").list.first()
    known = one.launches.select("op_name", shape=shape).filter(pl.col("shape") != "").unique()
    return {op: set(shapes) for op, shapes in known.group_by("op_name").agg("shape").iter_rows()}


def _accounts(
    base: Sequence[LoadedRun], new: Sequence[LoadedRun]
) -> tuple[list[Account], list[Account]] | None:
    """Accounts of the program as it runs, if all runs have them, else as recorded; None where nothing ran."""
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


def _changes(
    chosen: tuple[Account, Account], compiled: Sequence[Fact], step: StepChange, device: StepChange | None
) -> list[Change]:
    of_program = gathered(claimed(parts.changes(*chosen), compiled), *chosen)
    known = any(one is not None and one.verdict in ("faster", "slower") for one in (step, device))
    found = ranked(of_program, time_known=known)
    located = [
        replace(change, source=source_of_change(change, *chosen)) if place < LOCATED else change
        for place, change in enumerate(found)
    ]
    other_us = step.delta_us - (chosen[1].step_us - chosen[0].step_us)
    if abs(other_us) <= parts.NOTHING_DIFFERS_US:
        return located
    words = "how the shown runs differ from the mean"
    rest = Change(kind=RUNS, what="more" if other_us > 0 else "less", name=words, delta_us=other_us)
    return [*located, rest]


def _sums(base: Account, new: Account) -> dict[str, list[SumChange]]:
    return {key: parts.by(base, new, column) for key, column in BY.items()} | {"line": by_line(base, new)}


def _idle(base: Account, new: Account) -> list[SumChange]:
    sums: dict[str, list[float]] = {}
    for side, one in enumerate((base, new)):
        for cause, us in one.idle.select("cause", "us").iter_rows():
            sums.setdefault(cause, [0.0, 0.0])[side] += us
        sums.setdefault(parts.LAUNCH_BOUND, [0.0, 0.0])[side] += float(one.launches["idle_us"].sum())
    return summed({cause: us for cause, us in sums.items() if any(us)})


def judged(found: RunDifference, gates: Sequence[Gate]) -> list[Judgement]:
    """The difference judged by every gate; those that failed name the kernel, op, call or line that did
    it. None can be judged of different programs, nor times where they say nothing of the program."""
    timed = {STEP_TIME: found.step, DEVICE_TIME: found.device_time}
    times = {
        name: None if change is None else (change.base_us, change.ratio) for name, change in timed.items()
    }
    around = found.surroundings
    apart = around.why[:1] if around.comparability == "none" else ()
    other = [one for one in (other_programs(*found.runs),) if one]
    judgements = [
        judge(gate, found.counts, times, found.lost or other or (apart if gate.name in TIMES else ()))
        for gate in gates
    ]
    return [_with_culprit(found, one) if one.failed and one.known else one for one in judgements]


def most_changed(found: RunDifference, count: str) -> str:
    """The part of a count that grew most, or shrank most where the count did: its name, its amount before and
    now. Empty where it did not change, or the recordings do not show what it consists of."""
    before, after = (side[count] for side in found.counts)
    if before is None or after is None or before == after:
        return ""
    less, more = (contributors(run, count) for run in (found.runs if before < after else found.runs[::-1]))
    one = grown({key: part.amount for key, part in less.items()}, more)
    if one is None:
        return ""
    amounts = [less[one.key].amount if one.key in less else 0.0, one.amount]
    unit = COUNTED[count].unit
    shown = (numbers.quantity(amount, unit) for amount in (amounts if before < after else amounts[::-1]))
    return f"{one.key}, {' → '.join(shown)}"


def _with_culprit(found: RunDifference, judgement: Judgement) -> Judgement:
    if judgement.name in TIMES:
        return _with_slower(found, judgement)
    base, new = found.runs
    if judgement.name == "peak_memory" and found.memory is not None:
        return _with_owner(found.memory, judgement)
    before = {key: one.amount for key, one in contributors(base, judgement.name).items()}
    one = grown(before, contributors(new, judgement.name))
    if one is None:
        return judgement
    of_steps = found.step is None or found.step.unit == "step"
    culprit = described(judgement.name, before.get(one.key, 0.0), one, of_steps=of_steps)
    return replace(judgement, culprit=culprit, source=line_that_grew(base, new, judgement.name, one))


def _with_owner(memory: MemoryChange, judgement: Judgement) -> Judgement:
    """The judgement of the peak with the owner whose memory grew most; where that has no line, as what is
    older than the history, also with the one that has."""
    rows = sorted(memory.owners, key=lambda row: row.base_bytes - row.new_bytes)
    with_line = next((row for row in rows if row.line and row.new_bytes > row.base_bytes), rows[0])
    named = (
        f"{row.owner} ({row.role}), {numbers.size(row.base_bytes)} → {numbers.size(row.new_bytes)}"
        for row in dict.fromkeys((rows[0], with_line))
    )
    return replace(judgement, culprit="; ".join(named), source=with_line.line)


def _with_slower(found: RunDifference, judgement: Judgement) -> Judgement:
    """The judgement of a time with the first change that is slower; of the device's time, of its work."""
    slower = (
        change
        for change in found.changes
        if (change.busy_us if judgement.name == DEVICE_TIME else change.delta_us) > 0
    )
    change = next(slower, None)
    if change is None or found.accounts is None:
        return judgement
    before, after = change.launches
    words = change.name + (f", {before:g} → {after:g} per step" if before != after else "")
    if callers := [op for op in change.ops if op != change.name]:
        words += f", called by {', '.join(callers[:3])}"
    return replace(judgement, culprit=words, source=source_of_change(change, *found.accounts))
