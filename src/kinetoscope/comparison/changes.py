"""Changes of the step between two runs: rows that sum to the difference of the two accounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal

import msgspec
import polars as pl

from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.origins.attribution import OUTSIDE, UNATTRIBUTED
from kinetoscope.comparison.account import LAUNCH_BOUND, OUTSIDE_OF_OPS, Account
from kinetoscope.comparison.comparability import has_stacks
from kinetoscope.comparison.matching import Pair, Unmatched, match

What = Literal["replaced", "added", "removed", "slower", "faster", "more often", "less often", "more", "less"]

OF_TIMES = ("slower", "faster", "more", "less")
KERNEL, OP, IDLE, SYNC = "kernel", "op", "idle", "sync"
NOTHING_DIFFERS_US = 1e-9
OFTEN = 0.02  # launches of one name that differ by more are more or fewer, not slower or faster
SHOWN_NAMES = 12
OPTIMIZER = "optimizer"
ALLOCATOR = "allocator"  # a cause of idle time
EXCHANGED = ("exchange", OPTIMIZER, OPTIMIZER)


class Work(msgspec.Struct, frozen=True):
    """Kernels (or ops) of one name in a change: launches and busy time (µs), per step."""

    name: str
    short_name: str
    launches: float
    us: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that changed, and its part of the step's difference: all changes sum to it."""

    # kernel, op, idle, sync, layout, compiled, graph_break, recompilation, compile_failure, cudagraphs,
    # graph_calls, or runs (how the runs that are shown differ from the mean of all)
    kind: str
    what: What
    name: str  # the change in one line
    # per step; ``busy_us`` of it is device time, ``waiting_us`` the device's waiting for the host before the
    # launches in it
    delta_us: float
    busy_us: float = 0.0
    waiting_us: float = 0.0
    # base, new: the work before and now, most time first
    base: tuple[Work, ...] = ()
    new: tuple[Work, ...] = ()
    ops: tuple[str, ...] = ()  # the callers of that work
    graphs: tuple[str, ...] = ()
    launches: tuple[float, float] = (0.0, 0.0)  # how many per step, before and now
    # time of one launch before and now, where the same work was done
    per_launch_us: tuple[float, float] | None = None
    source: str | None = None  # ``file.py:12``, where it is known
    # the changes that a log or a count explains, where this one stands for them
    parts: tuple[Change, ...] = ()
    # cause, who: why the device idled, and for what, of idle time
    cause: str = ""
    who: str = ""
    # the first call before and now, as ``id`` of the table ``host_events``; where some calls are in one of
    # them alone, the first of those
    calls: tuple[int | None, int | None] = (None, None)


class SumChange(msgspec.Struct, frozen=True):
    """Time under one name before and now, µs per step."""

    name: str
    base_us: float
    new_us: float
    delta_us: float


def summed(sums: Mapping[str, Sequence[float]]) -> list[SumChange]:
    """Times before and now by name, the largest difference first."""
    rows = [SumChange(name, base_us, new_us, new_us - base_us) for name, (base_us, new_us) in sums.items()]
    return sorted(rows, key=lambda row: -abs(row.delta_us))


def changes(base: Account, new: Account) -> list[Change]:
    """Everything that differs between two steps, largest first: their sum is the steps' difference."""
    pairs, unmatched = match(base.launches, new.launches)
    steps = Steps(base, new)
    every = [*_of_launches(steps, pairs, unmatched), *_of_idle(steps, pairs)]
    return ranked([change for change in every if abs(change.delta_us) > NOTHING_DIFFERS_US])


def is_structural(change: Change) -> bool:
    """Whether other kernels run, or the device waits otherwise for their launches."""
    if change.kind == IDLE:
        return change.cause == LAUNCH_BOUND
    return change.kind == KERNEL and change.what not in ("slower", "faster")


def ranked(found: Sequence[Change], *, time_known: bool = True) -> list[Change]:
    """Largest first; but the first one has the sign of the step's difference. ``time_known``: whether the
    step's time is known to differ. If not, what is known stands first: the changes that a count or a log
    explains, then those of what ran, and last those of times alone."""
    if not time_known:
        return sorted(
            found, key=lambda change: (not change.parts, change.what in OF_TIMES, -abs(change.delta_us))
        )
    total = sum(change.delta_us for change in found)
    ordered = sorted(found, key=lambda change: -abs(change.delta_us))
    first = next((change for change in ordered if change.delta_us * total > 0), None)
    return ordered if first is None else [first, *(change for change in ordered if change is not first)]


class Steps:
    """Both accounts' launches as columns of plain values."""

    def __init__(self, base: Account, new: Account) -> None:
        self.accounts = base, new
        self.on_device = base.on_device or new.on_device
        self.columns = tuple(account.launches.to_dict(as_series=False) for account in self.accounts)
        self.names = tuple(set(columns["name"]) for columns in self.columns)

    def sum(self, side: int, column: str, rows: Iterable[int]) -> float:
        values = self.columns[side][column]
        return sum(values[row] for row in rows)

    def values(self, side: int, column: str, rows: Iterable[int]) -> list[str]:
        """Different ones, in order."""
        values = self.columns[side][column]
        return list(dict.fromkeys(values[row] for row in rows))

    def graphs(self, side: int, rows: Iterable[int]) -> list[str]:
        return [
            name for name in self.values(side, "graph", rows) if name not in (OUTSIDE["graph"], UNATTRIBUTED)
        ]


class _Changed(msgspec.Struct):
    """Rows of both sides that are one change; ``pairs`` are launches that are in both."""

    what: What
    base: list[int] = msgspec.field(default_factory=list[int])
    new: list[int] = msgspec.field(default_factory=list[int])
    pairs: list[Pair] = msgspec.field(default_factory=list[Pair])


def _of_launches(steps: Steps, pairs: Sequence[Pair], unmatched: Sequence[Unmatched]) -> Iterable[Change]:
    groups: dict[tuple[object, ...], _Changed] = {}
    for pair in pairs:
        name = steps.columns[0]["name"][pair.base]
        groups.setdefault(("same", name), _Changed("slower")).pairs.append(pair)
    for block in sorted(unmatched, key=lambda block: not (block.base and block.new)):
        if block.base and block.new:
            group = groups.setdefault(_exchange(steps, block.base, block.new), _Changed("replaced"))
            group.base += block.base
            group.new += block.new
        else:
            for side, rows in enumerate((block.base, block.new)):
                _group_by_name(steps, groups, side, rows)
    for group in groups.values():
        yield _change(steps, group)


def _group_by_name(
    steps: Steps, groups: dict[tuple[object, ...], _Changed], side: int, rows: Iterable[int]
) -> None:
    """Put launches that are gone or new to those of their name; an optimizer's kernels are one change."""
    for row in rows:
        name = steps.columns[side]["name"][row]
        if steps.columns[side]["category"][row] == OPTIMIZER and EXCHANGED in groups:
            (groups[EXCHANGED].base, groups[EXCHANGED].new)[side].append(row)
            continue
        key = "same" if name in steps.names[1 - side] else "other"
        group = groups.setdefault(
            (key, name), _Changed("slower" if key == "same" else ("removed", "added")[side])
        )
        (group.base, group.new)[side].append(row)


def _exchange(steps: Steps, base: tuple[int, ...], new: tuple[int, ...]) -> tuple[object, ...]:
    """The key of exchanges that are one change: of eager code for a compiled graph, of one kernel kind."""
    compiled = bool(steps.graphs(0, base)), bool(steps.graphs(1, new))
    if compiled[0] != compiled[1]:
        return ("exchange", compiled)
    return ("exchange", *(_category(steps, side, rows) for side, rows in enumerate((base, new))))


def _category(steps: Steps, side: int, rows: Iterable[int]) -> str:
    columns = steps.columns[side]
    return columns["category"][max(rows, key=lambda row: columns["us"][row])]


def _change(steps: Steps, group: _Changed) -> Change:
    unpaired = (group.base, group.new)
    sides = ([pair.base for pair in group.pairs] + group.base, [pair.new for pair in group.pairs] + group.new)
    us = [steps.sum(side, "us", rows) for side, rows in enumerate(sides)]
    launches = [steps.sum(side, "launches", rows) for side, rows in enumerate(sides)]
    # The waiting for the host of unchanged launches is no change of theirs: it is counted with the idle time.
    idle = [float(steps.sum(side, "idle_us", rows)) for side, rows in enumerate(unpaired)]
    busy, waiting = us[1] - us[0], idle[1] - idle[0]
    work = [_work(steps, side, rows) for side, rows in enumerate(sides)]
    ops = chain(steps.values(1, "op_name", sides[1]), steps.values(0, "op_name", sides[0]))
    each = [of / count if count else 0.0 for of, count in zip(us, launches, strict=True)]
    # Of work that is done more or less often, the calls that only one side has.
    first = [
        steps.columns[side]["op"][min(own or rows)] if own or rows else None
        for side, (own, rows) in enumerate(zip(unpaired, sides, strict=True))
    ]
    return Change(
        kind=KERNEL if steps.on_device else OP,
        what=_what(group.what, launches, busy + waiting),
        name=_named(work[0], work[1]),
        delta_us=busy + waiting,
        busy_us=busy if steps.on_device else 0.0,
        waiting_us=waiting,
        base=tuple(work[0]),
        new=tuple(work[1]),
        ops=tuple([op for op in dict.fromkeys(ops) if op != UNATTRIBUTED][:SHOWN_NAMES]),
        graphs=tuple(dict.fromkeys([*steps.graphs(0, sides[0]), *steps.graphs(1, sides[1])])),
        launches=(launches[0], launches[1]),
        per_launch_us=(each[0], each[1]) if group.pairs and _same_shapes(steps, group.pairs) else None,
        calls=(first[0], first[1]),
    )


def _what(what: What, launches: Sequence[float], delta_us: float) -> What:
    if what != "slower":
        return what
    more = launches[1] - launches[0]
    if abs(more) > OFTEN * max(launches) and more * delta_us > 0:
        return "more often" if more > 0 else "less often"
    return "slower" if delta_us > 0 else "faster"


def _same_shapes(steps: Steps, pairs: Iterable[Pair]) -> bool:
    shapes = [columns["shape"] for columns in steps.columns]
    return all(shapes[0][pair.base] == shapes[1][pair.new] for pair in pairs)


def _work(steps: Steps, side: int, rows: Sequence[int]) -> list[Work]:
    columns = steps.columns[side]
    return work_by_name((columns["name"][row], columns["launches"][row], columns["us"][row]) for row in rows)


def work_by_name(works: Iterable[tuple[str, float, float]]) -> list[Work]:
    """Launches and busy time (µs) summed by name, most time first."""
    sums: dict[str, list[float]] = {}
    for name, launches, us in works:
        of_name = sums.setdefault(name, [0.0, 0.0])
        of_name[0] += launches
        of_name[1] += us
    rows = (Work(name, short_name(name), launches, us) for name, (launches, us) in sums.items())
    return sorted(rows, key=lambda work: -work.us)


def _named(base: Sequence[Work], new: Sequence[Work]) -> str:
    if base and new and [work.name for work in base] == [work.name for work in new]:
        return base[0].short_name
    return " → ".join(_some(works) for works in (base, new) if works)


def _some(works: Sequence[Work]) -> str:
    first = works[0].short_name
    return first if len(works) == 1 else f"{first} and {len(works) - 1} more"


def _of_idle(steps: Steps, pairs: Sequence[Pair]) -> Iterable[Change]:
    """Waiting before launches that are the same, and idle time of every other cause."""
    before = steps.sum(0, "idle_us", (pair.base for pair in pairs))
    after = steps.sum(1, "idle_us", (pair.new for pair in pairs))
    yield _idle(LAUNCH_BOUND, "the launches that both have", before, after)
    sums: dict[tuple[str, str], list[float]] = {}
    events: dict[tuple[str, str], list[int | None]] = {}
    in_functions = all(has_stacks(account.trace) for account in steps.accounts)
    for side, account in enumerate(steps.accounts):
        for cause, who, event, us in account.idle.select("cause", "who", "host_event", "us").iter_rows():
            key = cause, who if in_functions or cause != OUTSIDE_OF_OPS else ""
            sums.setdefault(key, [0.0, 0.0])[side] += us
            events.setdefault(key, [None, None])[side] = event
    _together(ALLOCATOR, sums)
    for (cause, who), (base_us, new_us) in sums.items():
        yield _idle(cause, who, base_us, new_us, events[cause, who])


def _together(cause: str, sums: dict[tuple[str, str], list[float]]) -> None:
    """Put idle times of one cause under the name that differs most: the allocator's are any op's."""
    of_cause = [key for key in sums if key[0] == cause]
    most = max(of_cause, key=lambda key: abs(sums[key][1] - sums[key][0]), default=None)
    if most is not None:
        parts = [sums.pop(key) for key in of_cause]
        sums[most] = [sum(part[side] for part in parts) for side in (0, 1)]


def _idle(
    cause: str, who: str, base_us: float, new_us: float, events: Sequence[int | None] = (None, None)
) -> Change:
    what: What = (
        "added" if not base_us else "removed" if not new_us else "more" if new_us > base_us else "less"
    )
    return Change(
        kind=SYNC if cause == "synchronization" else IDLE,
        what=what,
        name=f"{cause}: {who}" if who else cause,
        delta_us=new_us - base_us,
        waiting_us=new_us - base_us,
        cause=cause,
        who=who,
        calls=(events[0], events[1]),
    )


def by(base: Account, new: Account, key: str) -> list[SumChange]:
    """Busy µs per step under each value of a column of ``launches``, before and now; differing most first."""
    # The order is kept, since sums that threads make in parts differ in their last digit.
    sums = [
        {
            str(name): us
            for name, us in a.launches.group_by(key, maintain_order=True).agg(pl.col("us").sum()).iter_rows()
        }
        for a in (base, new)
    ]
    names = sorted({**sums[0], **sums[1]})
    return summed({name: [side.get(name, 0.0) for side in sums] for name in names})
