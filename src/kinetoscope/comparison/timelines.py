"""One step of each run as it lies on the device, to be drawn one above the other, and what is alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from kinetoscope.analysis.compiled.calls import call_around, graph_calls
from kinetoscope.analysis.events.enclosing import caller
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.passes.match import aligned
from kinetoscope.analysis.time.periods import periods
from kinetoscope.analysis.time.phases import leading_of
from kinetoscope.comparison.account import Account

MOST = 1500  # pieces of a step that a page draws: the longest

Lanes = list[tuple[str, str, float, float, int]]
Call = tuple[str, float, float, int]


@dataclass(frozen=True)
class Alignment:
    """A stretch of the base's step and what it is in the new one: all of the step, or a graph's call.

    Pairs are (base, new): from the launch that begins first to the end of the last, µs from the step's begin.
    """

    by: Literal["step", "graph"]
    name: str
    start_us: tuple[float, float]
    duration_us: tuple[float, float]
    launches: tuple[int, int]


@dataclass(frozen=True)
class Timelines:
    """(name, category, start, duration, lane) of the work in each step, µs from its begin; how both align.

    ``alignments``: the step; then, where both have compiled graphs, their calls that stand in both in the
    same order. A graph is the same by its frame and direction ("0/0 forward"): what it holds may differ.
    """

    base: Lanes
    new: Lanes
    alignments: tuple[Alignment, ...]


def timelines(base: Account, new: Account) -> Timelines:
    """The middle step of each."""
    before, after = _middle_step(base), _middle_step(new)
    whole = [_spanned("step", "step", _whole(before), _whole(after))] if len(before) and len(after) else []
    calls = _calls(base, before), _calls(new, after)
    names = [tuple(name for name, *_ in side) for side in calls]
    codes = {name: code for code, name in enumerate(dict.fromkeys((*names[0], *names[1])))}
    ours, theirs = (tuple(codes[name] for name in side) for side in names)
    graphs = [_spanned("graph", names[0][i], calls[0][i], calls[1][j]) for i, j in aligned(ours, theirs)]
    return Timelines(_drawn(before), _drawn(after), (*whole, *graphs))


def _middle_step(account: Account) -> pl.DataFrame:
    """The work of the step in the middle, with ``at_us`` from the step's begin and ``us``."""
    trace = account.trace
    table = work(trace).with_columns(call_around(trace).gather(caller(trace.device_events)).alias("call"))
    begin_ns = table["start_ns"].min()
    if len(trace.steps):
        own = leading_of(trace).sort("duration_ns")["step"]
        step = own[(len(own) - 1) // 2]
        table = table.filter(pl.col("step") == step)
        begin_ns = periods(trace).filter(pl.col("step") == step)["start_ns"][0]
    return table.with_columns(at_us=(pl.col("start_ns") - begin_ns) / 1000, us=pl.col("duration_ns") / 1000)


def _whole(table: pl.DataFrame) -> Call:
    ((end_us,),) = table.select((pl.col("at_us") + pl.col("us")).max()).iter_rows()
    return "step", 0.0, float(end_us), len(table)


def _calls(account: Account, table: pl.DataFrame) -> list[Call]:
    """The calls of compiled graphs that launched something, in the order that the device began them."""
    of_call = graph_calls(account.trace).select(
        pl.col("id").alias("call"),
        pl.concat_str("compile_id", pl.col("direction").cast(pl.String), separator=" ", ignore_nulls=True)
        .alias("compiled"),
    )  # fmt: skip
    end_us = (pl.col("at_us") + pl.col("us")).max()
    return list(
        table.join(of_call, on="call", how="inner", maintain_order="left")
        .group_by("call", maintain_order=True)
        .agg(
            pl.col("compiled").first(),
            pl.col("at_us").min(),
            us=end_us - pl.col("at_us").min(),
            launches=pl.len(),
        )
        .sort("at_us", "call")
        .select("compiled", "at_us", "us", "launches")
        .iter_rows()
    )


def _spanned(by: Literal["step", "graph"], name: str, base: Call, new: Call) -> Alignment:
    return Alignment(by, name, (base[1], new[1]), (base[2], new[2]), (base[3], new[3]))


def _drawn(table: pl.DataFrame) -> Lanes:
    rows = (
        table.sort("duration_ns", descending=True)
        .head(MOST)
        .sort("start_ns")
        .select(
            pl.col("name").cast(pl.String),
            pl.col("category").cast(pl.String),
            "at_us",
            "us",
            pl.struct("device", "stream").rank("dense").cast(pl.Int64) - 1,
        )
    )
    return list(rows.iter_rows())
