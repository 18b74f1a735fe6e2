"""Memory from step to step: lines whose allocations grow at every boundary, and segments given back to the
driver."""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal, NamedTuple

import polars as pl

from kinetoscope.analysis.memory.lifetimes import GIVES, TAKES
from kinetoscope.analysis.memory.owners import stack_owners
from kinetoscope.analysis.memory.peak import DeviceHistory, owner
from kinetoscope.snapshot.model import OOM
from kinetoscope.trace.schema import whole

GROWTH = {
    "line": pl.String,
    "owner": pl.String,
    "role": pl.String,
    "bytes_per_step": pl.Int64,
    "bytes": pl.Int64,
    "names": pl.List(pl.String),
    "grows": pl.String,
    "stack": pl.Int32,
}
PLACES = r"\[\d+\]"  # in a list
STEPS = 3  # boundaries apart: what grows twice may yet be given back


def growth(history: DeviceHistory, boundaries_ns: tuple[int, ...]) -> pl.DataFrame:
    """The lines whose memory grows with each step, most first: ``line``, ``owner``, ``role``,
    ``bytes_per_step``, ``bytes`` (at the last boundary, of what the history saw begin), ``names`` (of
    variables that hold some of it, numbers in brackets as ``*``), ``grows`` (allocations: a new one is kept
    in each step; bytes: one is replaced by a larger one), ``stack``."""
    known = history.known.filter(
        pl.col("start").is_not_null(), ~pl.col("role").is_in(["parameter", "graph pool"])
    ).with_columns(owner=owner())
    marks = [ns // 1000 for ns in boundaries_ns]
    if len(marks) <= STEPS or known.is_empty():
        return pl.DataFrame(schema=GROWTH)
    ended = pl.col("end_us")
    there = [(pl.col("start_us") <= mark) & (ended.is_null() | (ended > mark)) for mark in marks]
    by_line = known.group_by("stack", "line", "owner").agg(
        pl.col("role").mode().sort().first(),
        pl.col("name")
        .drop_nulls()
        .str.replace_all(PLACES, "[*]")
        .unique(maintain_order=True)
        .head(3)
        .alias("names"),
        *(pl.col("bytes").filter(at).sum().alias(f"bytes_{number}") for number, at in enumerate(there)),
        *(at.sum().cast(pl.Int64).alias(f"count_{number}") for number, at in enumerate(there)),
    )
    # The first boundary knows nothing of what the history did not see.
    more = pl.all_horizontal(_grows("bytes", len(marks)))
    last = len(marks) - 1
    return (
        by_line.filter(more)
        .select(
            "line", "owner", "role",
            ((pl.col(f"bytes_{last}") - pl.col("bytes_1")) // (last - 1)).alias("bytes_per_step"),
            pl.col(f"bytes_{last}").alias("bytes"),
            "names",
            pl.when(pl.all_horizontal(_grows("count", len(marks))))
            .then(pl.lit("allocations"))
            .otherwise(pl.lit("bytes"))
            .alias("grows"),
            "stack",
        )
        .sort("bytes_per_step", descending=True)
    )  # fmt: skip


def _grows(what: str, boundaries: int) -> list[pl.Expr]:
    pairs = ((number, number + 1) for number in range(1, boundaries - 1))
    return [pl.col(f"{what}_{later}") > pl.col(f"{what}_{earlier}") for earlier, later in pairs]


def held_at_peak(history: DeviceHistory, line: str, whose: str, names: list[str]) -> int:
    """Bytes at a peak of what a line allocates that grows, and of what lies with it in its variables since
    before the history; the peak may be of another history of the same process."""
    variable = pl.col("name").str.replace(r" \(.*$", "").str.replace_all(PLACES, "[*]")
    same = (pl.col("line") == line) & (owner() == whose) & pl.col("start").is_not_null()
    in_list = variable.is_in([name.partition(" (")[0] for name in names if "[*]" in name])
    return whole(history.at_peak.filter(same | in_list)["bytes"].sum())


Cause = Literal["room", "empty_cache"]
EMPTY_CACHE = "empty_cache"  # the function of torch.cuda


class GivenBack(NamedTuple):
    """Segments that were given back one after another."""

    cause: Cause  # room: an allocation found none before they were; empty_cache: nothing needed it
    step: int  # of the recorded ones, from 1; 0 before the first, or where none are known
    time_us: int
    segments: int
    bytes: int
    line: str  # of the allocation, or of the call; empty where no stack tells it
    again_bytes: int  # what was taken of the driver from then until the next time, or the history's end


def given_back(history: DeviceHistory, boundaries_ns: tuple[int, ...]) -> list[GivenBack]:
    """Each time that memory was given back to the driver, in order of time. To what it gives back for room
    the allocator writes the stack of the allocation that needs it; of ``empty_cache`` that of the release
    where the history has those, else where each segment was allocated."""
    snapshot, counters = history.snapshot, history.counters
    entries = snapshot.entries.filter(pl.col("device") == history.device)
    is_given = pl.col("action").is_in(GIVES)
    runs = (
        entries.select("action", "time_us", "bytes", "stack", given=is_given)
        .with_columns(
            run=pl.col("given").rle_id(),
            next_action=pl.col("action").shift(-1),
            next_stack=pl.col("stack").shift(-1),
            taken=pl.when(pl.col("action").is_in(TAKES)).then("bytes").otherwise(0),
        )
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("given").first(),
            pl.col("time_us").first(),
            pl.len().alias("segments"),
            pl.col("bytes").sum(),
            pl.col("stack").unique().sort().alias("stacks"),
            pl.col("next_action", "next_stack").last(),
            pl.col("taken").sum(),
        )
        .with_columns(again=pl.col("taken").shift(-1).fill_null(0))
        .filter("given")
    )
    lines = stack_owners(snapshot)["line"].to_list()
    marks = [ns // 1000 for ns in boundaries_ns]
    may_retry = counters is None or counters.retries + counters.failures > 0
    found: list[GivenBack] = []
    for row in runs.iter_rows(named=True):
        same = row["stacks"] == [row["next_stack"]] and row["next_action"] in (*TAKES, OOM)
        emptied = [
            stack
            for stack in row["stacks"]
            if any(frame.name == EMPTY_CACHE for frame in snapshot.stacks[stack])
        ]
        cause: Cause = "room" if same and may_retry and not emptied else "empty_cache"
        known = row["stacks"] if cause == "room" else emptied
        step = bisect_right(marks, row["time_us"])
        found.append(
            GivenBack(
                cause=cause,
                step=step if step < len(marks) else 0,
                time_us=row["time_us"],
                segments=row["segments"],
                bytes=row["bytes"],
                line=lines[known[0]] if known else "",
                again_bytes=row["again"],
            )
        )
    return found
