"""How kernels came about: the chain of events from a step through annotations and ops to the launch."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import Any

import polars as pl

from kinetoscope.analysis.events.enclosing import caller
from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import LIBRARY_FRAME, MODULE, STEP
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.origins.attribution import attribution, belonging
from kinetoscope.analysis.origins.rows import Chain, ChainListing, Link, Quantiles
from kinetoscope.errors import UsageError
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace


def chains(run: LoadedRun, name: str, category: str | None = None) -> ChainListing:
    """How the kernels came about whose full or short name contains ``name``. ``name``: with ``*`` or ``?``, a
    pattern that has to fit the whole name. ``category``: only work of this category. Raises UsageError where
    no device work (of that category) has such a name."""
    table = belonging(run)
    total = int(table["duration_ns"].sum())
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
    rows = pl.concat(_hashed(trace, chosen.filter(rank=trace.rank)["id"]) for trace in run.traces)
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
    return ChainListing(
        name=name,
        launches=len(chosen),
        device_time_us=int(chosen["duration_ns"].sum()) / 1000,
        chains=[
            Chain(
                rank=row["rank"],
                ranks=row["ranks"],
                launches=row["launches"],
                device_time_us=row["duration_ns"] / 1000,
                share_of_device_time=row["duration_ns"] / max(total, 1),
                latency_us=_quantiles(row["latency_ns_0.5"], row["latency_ns_0.9"]),
                queue_delay_us=_quantiles(row["queued_ns_0.5"], row["queued_ns_0.9"]),
                links=links(traces[row["rank"]], row["id"]),
                forward=forward_links(traces[row["rank"]], row["id"]),
            )
            for row in groups.iter_rows(named=True)
        ],
    )


def _quantiles(median: float | None, p90: float | None) -> Quantiles | None:
    return None if median is None or p90 is None else Quantiles(median=median / 1000, p90=p90 / 1000)


def _hashed(trace: Trace, ids: pl.Series) -> pl.DataFrame:
    """``rank``, ``id``, ``duration_ns``, ``latency_ns``, ``queued_ns`` and ``way``, a hash of the chain."""
    device, host = trace.device_events, trace.host_events
    before = END.cum_max().shift(1).over("device", "stream", order_by=["start_ns", "id"])
    launched = host["start_ns"].gather(device["launch"])
    timed = device.select(
        "id",
        "duration_ns",
        latency_ns=pl.col("start_ns") - launched,
        queued_ns=(pl.min_horizontal(before.fill_null(launched), "start_ns") - launched).clip(0),
    )[ids]
    work = device[ids]
    way = _way(host, caller(work), work["name"].to_physical().cast(pl.UInt64))
    forward = attribution(trace)["forward_op"].gather(ids)
    return timed.select(pl.lit(trace.rank, pl.Int32).alias("rank"), pl.all(), way=_way(host, forward, way))


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


def links(trace: Trace, device_id: int) -> list[Link]:
    """The chain of one row of ``device_events``: ProfilerStep#2, matmul_add, aten::matmul, aten::mm,
    cuLaunchKernelEx, the kernel. Python frames are in it where they were recorded. Work without a launch in
    the recording is alone in its chain."""
    work = trace.device_events.row(device_id, named=True)
    above = _ancestors(trace.host_events, work["op"] if work["launch"] is None else work["launch"])
    return _linked([*above, work])


def forward_links(trace: Trace, device_id: int) -> list[Link]:
    """For backward work, the chain from the outermost event around its forward op to that op."""
    return _linked(_ancestors(trace.host_events, attribution(trace)["forward_op"][device_id]))


def _ancestors(host: pl.DataFrame, row: int | None) -> list[dict[str, Any]]:
    """A host event and everything that is open around its start, outermost first."""
    events: list[dict[str, Any]] = []
    at: int | None = None
    while row is not None:
        event = host.row(row, named=True)
        row, at = event["parent"], event["start_ns"] if at is None else at
        # A frame that ends inside of what it encloses (the profiler's own, around a step) has ended.
        if not events or event["start_ns"] + event["duration_ns"] > at:
            is_step = re.match(STEP, event["name"])
            events.insert(0, {**event, "kind": "step" if is_step else event["category"]})
    return events


def _linked(events: list[dict[str, Any]]) -> list[Link]:
    return [
        Link(
            kind=event["kind"],
            name=event["name"],
            start_us=event["start_ns"] / 1000,
            duration_us=event["duration_ns"] / 1000,
            event=event["event"],
            since_us=(event["start_ns"] - events[0]["start_ns"]) / 1000,
            label=short_name(event["name"]) if event is events[-1] else _label(event["kind"], event["name"]),
        )
        for event in events
    ]


def _label(kind: str, name: str) -> str | None:
    is_library = kind == "python_function" and re.search(LIBRARY_FRAME, name)
    return None if is_library and not name.startswith(MODULE) else name
