"""Differences in what torch.compile did, and the part of the step's difference that they explain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kinetoscope import numbers
from kinetoscope.comparison.changes import IDLE, Change, What, Work, is_structural, work_by_name
from kinetoscope.comparison.contributors import Contributor, contributors
from kinetoscope.comparison.counts import Counts
from kinetoscope.sources.run import LoadedRun

COMPILATION = "compilation"
COMPILED = "compiled"
# By kind of fact its count, and a word for it.
LOGGED = {
    "graph_break": ("graph_breaks", "graph break"),
    "compile_failure": ("compile_failures", "frame not compiled"),
    "cudagraphs": ("cudagraphs_skipped", "graph without CUDA graphs"),
    "recompilation": ("recompilations", "recompilation"),
}


class Fact(msgspec.Struct, frozen=True):
    """Something that the compile logs (or the calls of compiled graphs) have in one of the two runs."""

    kind: str
    what: What
    name: str
    source: str | None = None


def facts(base: LoadedRun, new: LoadedRun, before: Counts, after: Counts) -> list[Fact]:
    """Differences in compiling, the most important first."""
    calls = _calls(before, after)
    entered = [] if calls is None else [calls]
    if base.compilation is None or new.compilation is None:
        return entered
    logged: list[Fact] = []
    for kind, (count_of, word) in LOGGED.items():
        was, now = (contributors(run, count_of) for run in (base, new))
        differences: tuple[tuple[What, Mapping[str, Contributor], Mapping[str, Contributor]], ...] = (
            ("added", was, now),
            ("removed", now, was),
        )
        for what, fewer, more in differences:
            for key, one in more.items():
                if (count := round(one.amount - (fewer[key].amount if key in fewer else 0))) > 0:
                    name = f"{numbers.count(count, word)} {what}" + (f": {one.name}" if one.name else "")
                    logged.append(Fact(kind, what, name, one.source))
    # The logs know why code is compiled or not; how often graphs are entered follows from it.
    return [*logged, *(fact for fact in entered if fact.kind == COMPILED)]


def _calls(before: Counts, after: Counts) -> Fact | None:
    """The difference in how often compiled graphs are entered: where nothing was compiled, that is the
    change; else, without logs, it is a sign of graph breaks."""
    base, new = before["graph_calls"] or 0.0, after["graph_calls"] or 0.0
    if base == new:
        return None
    if not base:
        name = f"compiled graphs, called {numbers.times(new)} per step, in place of eager code"
        return Fact(COMPILED, "added", name)
    if not new:
        name = f"eager code in place of compiled graphs, called {numbers.times(base)} per step"
        return Fact(COMPILED, "removed", name)
    what: What = "more often" if new > base else "less often"
    return Fact(
        "graph_calls", what, f"compiled graphs are called {numbers.times(new)} per step, not {base:g}"
    )


def claimed(changes: Sequence[Change], found: Sequence[Fact]) -> list[Change]:
    """The changes, where those that a fact of the compiler explains are parts of one: kernels and idle time
    of breaks, failures and skipped CUDA graphs, and compiling again. The sum stays."""
    left = list(changes)
    named: list[Change] = []
    whole = any(fact.kind == COMPILED for fact in found)
    moved = {work.name for change in left if _is_of_graphs(change) for work in (*change.base, *change.new)}

    def of_graphs(change: Change) -> bool:
        """Also kernels that are in a graph on one side, and outside of it on the other."""
        if whole or _is_of_graphs(change):
            return is_structural(change)
        names = {work.name for work in (*change.base, *change.new)}
        return is_structural(change) and bool(names) and names <= moved

    groups = (
        ([fact for fact in found if fact.kind != "recompilation"], of_graphs),
        ([fact for fact in found if fact.kind == "recompilation"], _is_of_compiling),
    )
    for facts_of, belongs in groups:
        parts = tuple(change for change in left if belongs(change))
        if facts_of and parts:
            named.append(standing_for(facts_of, parts))
            left = [change for change in left if change not in parts]
    return [*named, *left]


def _is_of_graphs(change: Change) -> bool:
    return is_structural(change) and (change.kind == IDLE or bool(change.graphs))


def _is_of_compiling(change: Change) -> bool:
    return change.kind == IDLE and change.cause == COMPILATION


def standing_for(found: Sequence[Fact], parts: tuple[Change, ...]) -> Change:
    first = found[0]
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    before, after = (sum(part.launches[side] for part in parts) for side in (0, 1))
    return Change(
        kind=first.kind,
        what=first.what,
        name="; ".join(fact.name for fact in found[:3]) + more,
        delta_us=sum(part.delta_us for part in parts),
        busy_us=sum(part.busy_us for part in parts),
        waiting_us=sum(part.waiting_us for part in parts),
        base=_together(work for part in parts for work in part.base),
        new=_together(work for part in parts for work in part.new),
        launches=(before, after),
        graphs=tuple(dict.fromkeys(graph for part in parts for graph in part.graphs)),
        source=first.source,
        parts=parts,
    )


def _together(works: Iterable[Work]) -> tuple[Work, ...]:
    return tuple(work_by_name((work.name, work.launches, work.us) for work in works))
