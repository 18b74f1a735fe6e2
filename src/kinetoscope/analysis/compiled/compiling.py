"""When the compiler was at work inside a recording."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.time import intervals
from kinetoscope.findings.scene import Scene


def compiling(scene: Scene) -> pl.DataFrame:
    """Merged intervals (start_ns, end_ns) of the compiler's phases inside the window."""
    events = scene.compiler_events.with_columns((pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns"))
    return intervals.union(events)
