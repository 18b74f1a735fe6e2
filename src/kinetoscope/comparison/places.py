"""Lines of the program's own code that launches come from, and differences of generated kernels."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from kinetoscope.analysis.compiled.join import source_of
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.changes import Change, SumChange, by
from kinetoscope.comparison.comparability import has_stacks
from kinetoscope.comparison.contributors import Contributor
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
    if op is None or not has_stacks(account.trace):
        return None
    return evidence.source(RankView(account.run, account.trace), pl.Series([op], dtype=pl.UInt32))


def line_of(run: LoadedRun, one: Contributor) -> str | None:
    """``file.py:12`` of what adds to a count, where it is known."""
    if one.source is not None:
        return one.source
    own, trace = account(run), counted_rank(run)
    if own is None or trace is None:
        return None
    return source(own if own.trace is trace else replace(own, trace=trace), one.name, one.event)


def source_of_change(change: Change, base: Account, new: Account) -> str | None:
    """The line of a change by the new run, or else by the base."""
    if change.source is not None:
        return change.source
    for own, works, event in ((new, change.new, change.calls[1]), (base, change.base, change.calls[0])):
        if line := source(own, works[0].name if works else "", event):
            return line
    return None


def by_line(base: Account, new: Account) -> list[SumChange]:
    """Busy µs per step by the line of the program; empty where neither recording knows lines.

    A line that an edit above it shifted is one line: ``train.py:43 → 45``.
    """
    lines = _lines(base), _lines(new)
    if {*lines[0], *lines[1]} == {NOWHERE}:
        return []
    pairs, _ = match(base.launches, new.launches)
    shifted = _shifted((lines[0][pair.base], lines[1][pair.new]) for pair in pairs)
    before, after = ([names.get(line, line) for line in of] for names, of in zip(shifted, lines, strict=True))
    return by(_lined(base, before), _lined(new, after), "line")


def _shifted(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Lines of the base and of the new run that are one line, under another number: each is, in one file, the
    line of most of the other's work. Both by their common name.

    Args:
        pairs: the lines of the same work.
    """
    common = Counter(
        pair for pair in pairs if pair[0] != NOWHERE != pair[1] and _file(pair[0]) == _file(pair[1])
    )
    often = sorted(common, key=lambda pair: (-common[pair], pair[0] != pair[1], pair))
    best: tuple[dict[str, str], dict[str, str]] = {}, {}
    for before, after in often:
        best[0].setdefault(before, after)
        best[1].setdefault(after, before)
    names = {
        (before, after): f"{before} → {after.removeprefix(_file(after)).removeprefix(':')}"
        for before, after in best[0].items()
        if best[1][after] == before != after
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


def code_difference(change: Change, base: LoadedRun, new: LoadedRun, lines: int = 3) -> str:
    """The unified diff of the generated kernels that took most time before and take most now; empty where
    either has none, or nothing differs."""
    if change.kind != "kernel" or not change.base or not change.new:
        return ""
    texts = [_code(run, works[0].name) for run, works in ((base, change.base), (new, change.new))]
    if not all(texts) or texts[0] == texts[1]:
        return ""
    names = (change.base[0].name, change.new[0].name)
    return "\n".join(
        difflib.unified_diff(texts[0].splitlines(), texts[1].splitlines(), *names, lineterm="", n=lines)
    )


def _code(run: LoadedRun, name: str) -> str:
    log = run.compilation
    rows = [kernel for kernel in log.kernels if name in (kernel.symbol, kernel.name)] if log else []
    if log is None or not rows or (text := log.modules.get(rows[0].graph)) is None:
        return ""
    code = text.read()
    return next((code[d.start : d.end] for d in module.parse(code).kernels if d.name == rows[0].name), "")
