"""What lived when a device held most memory, and what had allocated it."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest, running
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import LIBRARY_FRAME
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.attribution import origins
from kinetoscope.analysis.time.memory import memory_timeline
from kinetoscope.trace.model import Trace

EMPTY = r"^aten::(new_)?(empty|resize)"  # they allocate for the op that calls them


@remembered
def held_at_peak(trace: Trace) -> pl.DataFrame:
    """What lived when each device held most, by what had allocated it; the most bytes first.

    What was allocated before the recording began is not in it.

    Returns:
        ``device``, ``op`` (the innermost that computes), ``module`` (of backward work its forward op's),
        ``line`` (the innermost Python frame of your own: ``file.py(12): function``), each null where not
        recorded; ``bytes`` and ``allocations``.
    """
    row, block = pl.int_range(pl.len()), ["device", "address"]
    living = (
        memory_timeline(trace)
        .with_columns(row.over("device").alias("row"))
        .with_columns(
            pl.col("allocated").arg_max().over("device").alias("peak"),
            pl.col("row").shift(-1).over(block).alias("next"),
        )
        .filter(pl.col("bytes") > 0, pl.col("row") <= pl.col("peak"))
        .filter((pl.col("next") > pl.col("peak")).fill_null(True))
    )
    host = trace.host_events
    at = running(host, living)
    is_op = matching(host, "category", "^cpu_op$") & ~matching(host, "name", EMPTY)
    is_own = matching(host, "category", "^python_function$") & ~matching(host, "name", LIBRARY_FRAME)
    return (
        living.with_columns(
            host["name"].gather(nearest(host, is_op).gather(at)).cast(pl.String).alias("op"),
            origins(host, at)["module_name"].cast(pl.String).alias("module"),
            host["name"].gather(nearest(host, is_own).gather(at)).cast(pl.String).alias("line"),
        )
        .group_by("device", "op", "module", "line")
        .agg(pl.col("bytes").sum(), pl.len().alias("allocations"))
        .sort("device", "bytes", "op", "module", "line", descending=[False, True, False, False, False])
    )
