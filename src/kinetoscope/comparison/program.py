"""What the program did otherwise, where many rows are of one doing: it waits for the device more often, its
tensors lie otherwise in memory. Counts tell it, which no noise moves; the rows are its parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.idle.gaps import SILENT
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.comparison.account import LAUNCH_BOUND, Account
from kinetoscope.comparison.changes import IDLE, KERNEL, OFTEN, SYNC, Change, is_structural
from kinetoscope.comparison.compiler import Fact, standing_for
from kinetoscope.comparison.counts import counts, waits
from kinetoscope.findings.rules.layout_conversion import CONVERTS

LAYOUT = "layout"
BY_FORMAT = re.compile(rf"{CONVERTS}|(?i:channels_last|nhwc|nchw)")

Belongs = Callable[[Change], bool]


def gathered(changes: Sequence[Change], base: Account, new: Account) -> list[Change]:
    """The changes, with the rows of one doing as its parts. The sum stays."""
    left = list(changes)
    for find in (_layouts, _waits):
        if (found := find(base, new)) is None:
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
    name = f"memory format: {often} a step {'added' if now > before else 'removed'}"
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
    name = f"{often} a step {'added' if added else 'removed'}: {', '.join(map(short_name, askers[:3]))}"

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
