"""One step of each run as the device worked on it, to be drawn one above the other."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import polars as pl

from kinetoscope.analysis.compiled.regions import call_around, graph_calls
from kinetoscope.analysis.events.enclosing import caller
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.passes.match import aligned
from kinetoscope.analysis.time.phases import leading_of
from kinetoscope.analysis.time.window import periods
from kinetoscope.comparison.account import Account

MOST = 1500  # pieces of a step that a page draws: the longest
CALLS = 400  # of compiled graphs in a step, of which the two are aligned


class DrawnWork(msgspec.Struct, frozen=True):
    """Device work, µs from its step's begin. ``aligned_us``: where it begins once both steps wait for each
    other at every call of a compiled graph that both make, and at its end; null where they share none."""

    name: str
    category: str
    start_us: float
    duration_us: float
    lane: int
    call: str | None = None
    aligned_us: float | None = None


class CallEdge(NamedTuple):
    """The begin or the end of a graph's call on the device."""

    at_us: float
    what: tuple[str, bool]


def timelines(base: Account, new: Account) -> tuple[list[DrawnWork], list[DrawnWork]]:
    tables = _step(base), _step(new)
    places = _aligned(*map(_edges, tables))
    return _pieces(tables[0], places[0]), _pieces(tables[1], places[1])


def _step(account: Account) -> pl.DataFrame:
    """All work of a step: ``name``, ``category``, ``start``, ``duration`` (µs), ``lane``, ``call``."""
    trace = account.trace
    table = work(trace)
    call = call_around(trace).gather(caller(trace.device_events).gather(table["id"]))
    known = graph_calls(trace).select(
        "id", label=pl.concat_str("compile_id", "direction", separator=" ", ignore_nulls=True)
    )
    labels = call.to_frame("id").join(known, on="id", how="left", maintain_order="left")["label"]
    table = table.with_columns(call=call, label=labels)
    begin_ns = table["start_ns"].min()
    if len(trace.steps):
        own = leading_of(trace).sort("duration_ns")["step"]
        step = own[(len(own) - 1) // 2]
        table = table.filter(pl.col("step") == step)
        begin_ns = periods(trace).filter(pl.col("step") == step)["start_ns"][0]
    if not isinstance(begin_ns, int):
        begin_ns = 0
    return table.sort("start_ns").select(
        pl.col("name").cast(pl.String),
        pl.col("category").cast(pl.String),
        start=(pl.col("start_ns") - begin_ns) / 1000,
        duration=pl.col("duration_ns") / 1000,
        lane=pl.struct("device", "stream").rank("dense").cast(pl.Int64) - 1,
        call=_named(table.sort("start_ns")),
    )


def _named(table: pl.DataFrame) -> pl.Series:
    """The calls by their graph and how many of its kind came before: hashes differ from run to run."""
    times: Counter[str] = Counter()
    names: dict[int, str] = {}
    for call, label in table.select("call", "label").drop_nulls().unique(maintain_order=True).iter_rows():
        times[label] += 1
        names[call] = f"{label}, call {times[label]}"
    return table["call"].replace_strict(names, default=None, return_dtype=pl.String)


def _edges(table: pl.DataFrame) -> list[CallEdge]:
    end = pl.col("start") + pl.col("duration")
    calls = table.drop_nulls("call").group_by("call", maintain_order=True).agg(pl.min("start"), end=end.max())
    edges = [
        edge
        for call, start, end_us in calls.head(CALLS).iter_rows()
        for edge in (CallEdge(start, (call, False)), CallEdge(end_us, (call, True)))
    ]
    return sorted(edges)


Shift = list[tuple[float, float]]  # from this time on, so much later


def _aligned(base: Sequence[CallEdge], new: Sequence[CallEdge]) -> tuple[Shift, Shift]:
    """By how much either is to be drawn later, from each edge on that both have; nothing without any."""
    shifts: tuple[Shift, Shift] = ([], [])
    before, place = (0.0, 0.0), 0.0
    for i, j in aligned(tuple(mark.what for mark in base), tuple(mark.what for mark in new)):
        now = base[i].at_us, new[j].at_us
        place += max(now[0] - before[0], now[1] - before[1])
        for side, at_us in zip(shifts, now, strict=True):
            side.append((at_us, place - at_us))
        before = now
    return shifts


def _pieces(table: pl.DataFrame, shifts: Shift) -> list[DrawnWork]:
    froms = [at_us for at_us, _ in shifts]
    longest = table.sort("duration", descending=True).head(MOST).sort("start")

    def shifted(start: float) -> float | None:
        at = bisect_right(froms, start) - 1
        return start + (shifts[at][1] if at >= 0 else 0.0) if shifts else None

    return [
        DrawnWork(name, category, start, duration, lane, call, shifted(start))
        for name, category, start, duration, lane, call in longest.iter_rows()
    ]
