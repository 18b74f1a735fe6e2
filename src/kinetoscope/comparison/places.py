"""Lines of the program's own code that launches come from, and differences of generated kernels."""

from __future__ import annotations

import difflib
from collections import Counter

import polars as pl
from msgspec.structs import replace

from kinetoscope.analysis.compiled.join import source_of
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.changes import Change, SumChange, by
from kinetoscope.comparison.comparability import has_stacks
from kinetoscope.comparison.contributors import Contributor, calls_of
from kinetoscope.comparison.counts import counted_rank
from kinetoscope.comparison.matching import match
from kinetoscope.compilation.generated import module
from kinetoscope.findings import evidence
from kinetoscope.findings.rank_view import RankView
from kinetoscope.sources.run import LoadedRun

NOWHERE = "no line known"


def source(account: Account, name: str, op: int | None) -> str | None:
    """``file.py:12`` of a generated kernel by its name, of anything else by the op that launched it."""
    if name in (generated := source_of(account.run)):
        return generated[name]
    view = RankView(account.run, account.trace)
    if op is None or (view.lines is None and not has_stacks(account.trace)):
        return None
    return evidence.source(view, pl.Series([op], dtype=pl.UInt32))


def line_of(run: LoadedRun, one: Contributor) -> str | None:
    """``file.py:12`` of what adds to a count, where it is known."""
    if one.source is not None:
        return one.source
    own = _counted(run)
    return None if own is None else source(own, one.name, one.event)


def lines_of(run: LoadedRun, count: str, one: Contributor) -> list[str]:
    """The lines ``file.py:12`` that call what adds to a count, those that call it most often first."""
    return [line for line, _ in _lines_of(run, count, one).most_common()]


def line_that_grew(base: LoadedRun, new: LoadedRun, count: str, one: Contributor) -> str | None:
    """``file.py:12`` at which what adds to a count is called more often than in the base, by most."""
    lines, sides = [_lines_of(run, count, one) for run in (base, new)], (account(base), account(new))
    if not lines[1] or sides[0] is None or sides[1] is None:
        return line_of(new, one)
    names = _shifted(sides[0], sides[1], (_lines(sides[0]), _lines(sides[1])))
    steps = [max(1, len(side.trace.steps)) for side in sides if side is not None]
    before = {names[0].get(line, line): often / steps[0] for line, often in lines[0].items()}
    more = {
        line: often / steps[1] - before.get(names[1].get(line, line), 0.0) for line, often in lines[1].items()
    }
    return max(more, key=more.__getitem__)


def _counted(run: LoadedRun) -> Account | None:
    own, trace = account(run), counted_rank(run)
    return None if own is None or trace is None else replace(own, trace=trace)


def _lines_of(run: LoadedRun, count: str, one: Contributor) -> Counter[str]:
    if one.source is not None or (own := _counted(run)) is None:
        return Counter()
    lines = (source(own, one.name, call) for call in calls_of(run, count, one))
    return Counter(line for line in lines if line is not None)


def source_of_change(change: Change, base: Account, new: Account) -> str | None:
    """The line of a change by the new run, or else by the base."""
    if change.source is not None:
        return change.source
    sides = [(new, change.new, change.calls[1]), (base, change.base, change.calls[0])]
    for own, works, event in reversed(sides) if change.what == "less often" else sides:
        if line := source(own, works[0].name if works else "", event):
            return line
    return None


def by_line(base: Account, new: Account) -> list[SumChange]:
    """Busy µs per step by the line of the program; empty where neither recording knows lines. A line that an
    edit above it shifted is one line: ``train.py:43 → 45``."""
    lines = _lines(base), _lines(new)
    if {*lines[0], *lines[1]} == {NOWHERE}:
        return []
    shifted = _shifted(base, new, lines)
    before, after = ([names.get(line, line) for line in of] for names, of in zip(shifted, lines, strict=True))
    return by(_lined(base, before), _lined(new, after), "line")


def _shifted(
    base: Account, new: Account, lines: tuple[list[str], list[str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Lines (of the accounts' launches) of the base and of the new run that are one line, under another
    number: in one file, more than half of the work of each is that of the other. Both by their common
    name."""
    pairs, _ = match(base.launches, new.launches)
    both = ((lines[0][pair.base], lines[1][pair.new]) for pair in pairs)
    common = Counter(pair for pair in both if NOWHERE not in pair and _file(pair[0]) == _file(pair[1]))
    every = tuple(map(Counter, lines))
    names = {
        (before, after): f"{before} → {after.removeprefix(_file(after)).removeprefix(':')}"
        for (before, after), often in common.items()
        if before != after and 2 * often > max(every[0][before], every[1][after])
    }
    return {pair[0]: name for pair, name in names.items()}, {pair[1]: name for pair, name in names.items()}


def _file(line: str) -> str:
    return line.rpartition(":")[0]


def _lined(account: Account, lines: list[str]) -> Account:
    return replace(account, launches=account.launches.with_columns(pl.Series("line", lines, pl.String)))


def _lines(account: Account) -> list[str]:
    rows = account.launches.select("name", "op").rows()
    known = {row: source(account, *row) or NOWHERE for row in dict.fromkeys(rows)}
    return [known[row] for row in rows]


def code_difference(change: Change, base: LoadedRun, new: LoadedRun) -> str:
    """The unified diff of the generated kernels that took most time before and now; "" where none differs."""
    if change.kind != "kernel" or not change.base or not change.new:
        return ""
    texts = [_code(run, works[0].name) for run, works in ((base, change.base), (new, change.new))]
    if not all(texts) or texts[0] == texts[1]:
        return ""
    names = (change.base[0].name, change.new[0].name)
    before, now = (text.splitlines() for text in texts)
    return "\n".join(difflib.unified_diff(before, now, *names, lineterm=""))


def _code(run: LoadedRun, name: str) -> str:
    log = run.compilation
    rows = [kernel for kernel in log.kernels if name in (kernel.symbol, kernel.name)] if log else []
    if log is None or not rows or (text := log.modules.get(rows[0].graph)) is None:
        return ""
    code = text.read()
    return next((code[d.start : d.end] for d in module.parse(code).kernels if d.name == rows[0].name), "")
