"""Parts of a count: the kernels, ops, calls, lines and owners of memory that add to it, and which of them
made it grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.memory.peak import histories, holders
from kinetoscope.analysis.memory.traced import held_at_peak
from kinetoscope.comparison.counts import COUNTED, counted_of_steps, counted_rank, usual
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.sources.run import LoadedRun


class Contributor(NamedTuple):
    amount: float  # by how much
    name: str  # a kernel, an op, a call, an owner of memory; a reason of the compiler's
    source: str | None = None  # its line, ``file.py:12``, where the name stands for none
    op: str = ""  # the op that called it, where that is another
    # the row of ``host_events`` of the rank that is counted, where its line may be looked up
    event: int | None = None

    @property
    def key(self) -> str:
        """A name that is the same in every run of the program."""
        return f"{self.source}: {self.name}" if self.source else self.name


def contributors(run: LoadedRun, count: str) -> dict[str, Contributor]:
    """The parts of a count (of the usual step) by key, the largest first; empty where they are not shown."""
    if count == "peak_memory":
        found = _owners(run)
    elif count in COMPILED:
        found = COMPILED[count](run.compilation) if run.compilation is not None else ()
    else:
        found = _of_steps(run, count)
    together: dict[str, Contributor] = {}
    for one in found:
        known = together.get(one.key)
        together[one.key] = one if known is None else known._replace(amount=known.amount + one.amount)
    return dict(sorted(together.items(), key=lambda item: -item[1].amount))


def grown(before: Mapping[str, float], now: Mapping[str, Contributor]) -> Contributor | None:
    """The contributor that grew most; of equals, one that is new, and the first of those; None: none did."""

    def by_how_much(one: Contributor) -> tuple[float, bool]:
        return one.amount - before.get(one.key, 0.0), one.key not in before

    most = max(now.values(), key=by_how_much, default=None)
    return most if most is not None and most.amount > before.get(most.key, 0.0) else None


def described(count: str, before: float | None, one: Contributor, *, of_steps: bool = True) -> str:
    """A contributor and by how much it grew; ``before`` is None where that is not known, ``of_steps`` False
    of a recording in which no steps are marked."""
    counted = COUNTED[count]
    now = numbers.quantity(one.amount, counted.unit)
    grew = now if before is None else f"{numbers.quantity(before, counted.unit)} → {now}"
    per = " per step" if counted.per_step and of_steps else " in all"
    return f"{one.name}, {grew}{per}" + (f", called by {one.op}" if one.op else "")


def _of_steps(run: LoadedRun, count: str) -> Iterable[Contributor]:
    trace, counted = counted_rank(run), counted_of_steps(run).get(count)
    if trace is None or counted is None:
        return
    names = pl.col("name").cast(pl.String)
    for (name,), events in counted.events.sort("start_ns").group_by(names, maintain_order=True):
        event = next(iter(events["op"].drop_nulls()), None)
        op = "" if event is None else str(trace.host_events["name"][event])
        if each := usual(trace, counted._replace(events=events)):
            yield Contributor(
                each, short_name(str(name)), op=op if op != name and count != "syncs" else "", event=event
            )


def calls_of(run: LoadedRun, count: str, one: Contributor) -> list[int]:
    """The calls that a part of a count is made of, in all steps: rows of the rank's ``host_events``."""
    if (counted := counted_of_steps(run).get(count)) is None:
        return []
    events = counted.events.select(pl.col("name").cast(pl.String), "op").drop_nulls()
    names = [name for name in events["name"].unique() if short_name(name) == one.name]
    return events.filter(pl.col("name").is_in(names))["op"].to_list()


def _owners(run: LoadedRun) -> Iterable[Contributor]:
    known = max(histories(run).found, key=lambda one: one.history.requested, default=None)
    if known is not None:
        for role, owner, line, held in (
            holders(known.history).select("role", "owner", "line", "bytes").iter_rows()
        ):
            yield Contributor(held, owner if role == "before" else f"{role} of {owner}", line)
        return
    for trace in run.traces:
        for op, line, held in (
            held_at_peak(trace).select("op", "line", "bytes").cast({"op": pl.String}).iter_rows()
        ):
            yield Contributor(held, op or "unknown", line)


def _at(file: str | None, line: int | None, count: float, what: str | None) -> Contributor:
    """Something of the compile log at its line, without the folder: versions lie in different ones."""
    place = None if file is None else f"{PurePath(file).name}:{line}" if line else PurePath(file).name
    return Contributor(count, what or "", place)


COMPILED: dict[str, Callable[[CompiledProgram], Iterable[Contributor]]] = {
    "graph_breaks": lambda log: (_at(row.file, row.line, 1, row.reason) for row in log.graph_breaks),
    "recompilations": lambda log: (
        _at(row.file, row.line, row.count, row.reasons[0].guard if row.reasons else "")
        for row in log.recompilations
    ),
    "compile_failures": lambda log: (
        _at(frame.file, frame.line, 1, frame.failure)
        for frame in log.frames
        if frame.status in ("failed", "skipped")
    ),
    "cudagraphs_skipped": lambda log: (
        _at(frame.file, frame.line, 1, frame.cudagraphs_skipped)
        for frame in log.frames
        if frame.cudagraphs_skipped is not None
    ),
    "graphs": lambda log: (
        _at(frame.file, frame.line, 1, frame.function) for frame in log.frames if frame.status == "ok"
    ),
    "generated_kernels": lambda log: (Contributor(1, kernel.symbol or kernel.name) for kernel in log.kernels),
    "guards": lambda log: (
        _at(frame.file, frame.line, frame.guards or 0, frame.function) for frame in log.frames
    ),
    "compile_s": lambda log: (
        _at(frame.file, frame.line, frame.compile_s, frame.function) for frame in log.frames
    ),
}
