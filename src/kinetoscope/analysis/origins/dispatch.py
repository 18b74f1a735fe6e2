"""The dispatch chain of device work: step, annotation, op, op below it, launch, kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate

import polars as pl

from kinetoscope.analysis.events.enclosing import caller
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import STEP
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.origins.attribution import attribution
from kinetoscope.analysis.origins.belonging import belonging
from kinetoscope.errors import UsageError
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace


@dataclass(frozen=True)
class Link:
    """One event of a chain; ``kind`` is its category (``step`` for a step), ``event`` its position in the
    file."""

    kind: str
    name: str
    start_ns: int
    duration_ns: int
    event: int


@dataclass(frozen=True)
class Chain:
    """How one piece of device work came about.

    Args:
        links: from the outermost host event around the launch to the launch, then the work itself.
        forward: for backward work, the same from the outermost event around its forward op to that op.
    """

    links: tuple[Link, ...]
    forward: tuple[Link, ...]


@dataclass(frozen=True)
class Dispatch:
    """The launches of one kernel that came about in one way: by the same names, steps taken as one.

    Args:
        chain: the launch whose kernel took the median time (of an even count, the shorter of the middle two).
        rank: whose launch that is.
        ranks: how many ranks have such launches.
        launches: pieces of device work.
        device_time_ns: their sum; ``share_of_device_time`` is of all device time.
        latency_ns: from the start of the launching call to the start of the work, at the median and the 90th
            percentile; null where no launch was recorded. Work that starts before its launch (clocks that
            disagree) is left out.
        queued_ns: the part of that in which the work before it in its stream had not ended.
    """

    chain: Chain
    rank: int
    ranks: int
    launches: int
    device_time_ns: int
    share_of_device_time: float
    latency_ns: tuple[float, float] | None
    queued_ns: tuple[float, float] | None


def dispatches(run: Run, name: str, category: str | None = None) -> list[Dispatch]:
    """Every way in which kernels whose full or short name contains ``name`` came about, most time first.

    Args:
        name: with ``*`` or ``?``, a pattern that has to fit the whole name.
        category: only work of this category.

    Raises:
        UsageError: no device work is called so.
    """
    table = belonging(run)
    seen = table["name"].unique().cast(pl.String).sort().to_list()
    fits = re.compile(translate(name) if re.search(r"[*?]", name) else f"(?s).*{re.escape(name)}").match
    wanted = [known for known in seen if fits(known) or fits(short_name(known))]
    if category is not None:
        table = table.filter(pl.col("category").cast(pl.String) == category)
    chosen = table.filter(pl.col("name").cast(pl.String).is_in(wanted))
    if chosen.is_empty():
        of = "" if category is None else f" of category {category!r}"
        raise UsageError(
            f"no device work{of} has a name with {name!r} in it",
            hint="`kinetoscope kernels INPUT` lists them",
        )
    total = int(belonging(run)["duration_ns"].sum())
    rows = pl.concat(
        _told_apart(trace, chosen.filter(pl.col("rank") == trace.rank)["id"]) for trace in run.traces
    )
    groups = (
        rows.sort("duration_ns", "rank", "id")
        .group_by("way", maintain_order=True)
        .agg(
            pl.col("rank", "id").get((pl.len() - 1) // 2),
            pl.col("rank").n_unique().alias("ranks"),
            pl.len().alias("launches"),
            pl.col("duration_ns").sum(),
            *(
                pl.col(column)
                .filter(pl.col("latency_ns") >= 0)
                .quantile(at, "linear")
                .alias(f"{column}_{at}")
                for column in ("latency_ns", "queued_ns")
                for at in (0.5, 0.9)
            ),
        )
        .sort("duration_ns", "launches", "rank", "id", descending=[True, True, False, False])
    )
    traces = {trace.rank: trace for trace in run.traces}
    return [
        Dispatch(
            chain(traces[row["rank"]], row["id"]),
            row["rank"],
            row["ranks"],
            row["launches"],
            row["duration_ns"],
            row["duration_ns"] / max(total, 1),
            _pair(row["latency_ns_0.5"], row["latency_ns_0.9"]),
            _pair(row["queued_ns_0.5"], row["queued_ns_0.9"]),
        )
        for row in groups.iter_rows(named=True)
    ]


def _pair(median: float | None, p90: float | None) -> tuple[float, float] | None:
    return None if median is None or p90 is None else (median, p90)


def _told_apart(trace: Trace, ids: pl.Series) -> pl.DataFrame:
    """``rank``, ``id``, ``duration_ns``, ``latency_ns``, ``queued_ns`` and ``way``, a hash of the chain."""
    device, host = trace.device_events, trace.host_events
    ends = pl.col("start_ns") + pl.col("duration_ns")
    before = ends.cum_max().shift(1).over("device", "stream", order_by=["start_ns", "id"])
    launched = host["start_ns"].gather(device["launch"])
    timed = device.select(
        "id",
        "duration_ns",
        (pl.col("start_ns") - launched).alias("latency_ns"),
        (pl.min_horizontal(before.fill_null(launched), "start_ns") - launched).clip(0).alias("queued_ns"),
    )[ids]
    work = device[ids]
    way = work["name"].to_physical().cast(pl.UInt64)
    way = _way(host, caller(work), way)
    forward = attribution(trace)["forward_op"].gather(ids)
    return timed.select(
        pl.lit(trace.rank, pl.Int32).alias("rank"), pl.all(), _way(host, forward, way).alias("way")
    )


def _way(host: pl.DataFrame, row: pl.Series, way: pl.Series) -> pl.Series:
    """``way`` hashed with the sort and name of each row of ``host_events`` and all that is open around it."""
    code = host.select(
        pl.when(matching(host, "name", STEP))
        .then(0)
        .otherwise(pl.struct(pl.col("name").to_physical(), pl.col("category").to_physical()).hash())
    ).to_series()
    starts, ends = host["start_ns"], host["start_ns"] + host["duration_ns"]
    at = starts.gather(row)
    innermost = True
    while row.null_count() < len(row):
        is_open = row.is_not_null() if innermost else (ends.gather(row) > at).fill_null(False)
        hashed = pl.DataFrame({"way": way, "code": code.gather(row)}).hash_rows()
        way, row, innermost = hashed.zip_with(is_open, way), host["parent"].gather(row), False
    return way


def chain(trace: Trace, device_id: int) -> Chain:
    """The dispatch chain of one row of ``device_events``: ProfilerStep#2, matmul_add, aten::matmul, aten::mm,
    cuLaunchKernelEx, the kernel. Python frames stand in it where they were recorded. Work without a launch in
    the recording has itself alone."""
    host, work = trace.host_events, trace.device_events.row(device_id, named=True)
    itself = Link(work["kind"], work["name"], work["start_ns"], work["duration_ns"], work["event"])
    above = _ancestors(host, work["op"] if work["launch"] is None else work["launch"])
    return Chain((*above, itself), _ancestors(host, attribution(trace)["forward_op"][device_id]))


def _ancestors(host: pl.DataFrame, row: int | None) -> tuple[Link, ...]:
    """A host event and everything that is open around its start, outermost first."""
    links: list[Link] = []
    at: int | None = None
    while row is not None:
        event = host.row(row, named=True)
        row, at = event["parent"], event["start_ns"] if at is None else at
        # A frame that ends inside of what it encloses (the profiler's own, around a step) has ended.
        if links and event["start_ns"] + event["duration_ns"] <= at:
            continue
        kind = "step" if re.match(STEP, event["name"]) else event["category"]
        links.insert(0, Link(kind, event["name"], event["start_ns"], event["duration_ns"], event["event"]))
    return tuple(links)
