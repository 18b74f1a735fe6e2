"""How long the device stands idle where a graph break hands over to the rest of the function."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.enclosing import nearest
from kinetoscope.compilation.model import Compilation
from kinetoscope.trace.model import Trace

REGION = r"^Torch-Compiled Region: (?:.*\s)?([!\d/]+)$"
RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")


def idle_at_breaks(traces: Iterable[Trace], compilation: Compilation) -> dict[int, float]:
    """Idle microseconds before the first device work of each resumption, by row of ``graph_breaks``.

    Dynamo names the rest of a function after the line it broke at. Breaks whose rest never ran in the trace, and
    frames skipped whole, have no entry.
    """
    resumed = _resumed(compilation)
    if not resumed:
        return {}
    totals: dict[str, float] = {}
    for trace in traces:
        gaps = _gaps(trace, sorted({id_ for ids in resumed.values() for id_ in ids}))
        for compile_id, idle in gaps.iter_rows():
            totals[compile_id] = totals.get(compile_id, 0.0) + idle / 1000
    return {
        row: sum(totals[i] for i in ids if i in totals)
        for row, ids in resumed.items()
        if any(i in totals for i in ids)
    }


def _resumed(compilation: Compilation) -> dict[int, set[str]]:
    """Compile ids of what follows each break."""
    after: dict[tuple[str | None, int], set[str]] = {}
    for frame in compilation.frames:
        if frame.function and (match := RESUMED.match(frame.function)):
            after.setdefault((frame.file, int(match["line"])), set()).add(frame.compile_id)
    return {
        i: after[row.file, row.line]
        for i, row in enumerate(compilation.graph_breaks)
        if row.line is not None and (row.file, row.line) in after
    }


def _gaps(trace: Trace, compile_ids: list[str]) -> pl.DataFrame:
    """``compile_id``, ``idle_ns``: idle before the first device work of each of its regions, added up."""
    host = trace.host_events
    name = host["name"].cast(pl.String)
    is_region = name.str.contains(REGION)
    regions = pl.DataFrame({"region": host["id"], "compile_id": name.str.extract(REGION)}).filter(is_region)
    at = pl.DataFrame({"launch": host["id"], "region": nearest(host, is_region)})
    end = pl.col("start_ns") + pl.col("duration_ns")
    return (
        trace.device_events.sort("device", "start_ns")
        .with_columns(end.cum_max().shift(1).over("device").alias("busy_until"))
        .with_columns((pl.col("start_ns") - pl.col("busy_until")).clip(0).alias("idle_ns"))
        .join(at, on="launch")
        .join(regions, on="region")
        .filter(pl.col("compile_id").is_in(compile_ids))
        .sort("start_ns")
        .group_by("region", maintain_order=True)
        .first()
        .group_by("compile_id")
        .agg(pl.col("idle_ns").sum())
    )
