"""When the compiler was at work inside a recording."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import COMPILER_PHASE, GRAPH_RECORDING
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.model import Trace


def compiler_phases(trace: Trace, start_ns: int, end_ns: int) -> pl.DataFrame:
    """``host_events`` of the phases of Dynamo, AOTAutograd and Inductor that begin between two instants.

    The recording of CUDA graphs is none of them: it runs the program.
    """
    host = trace.host_events
    is_phase = matching(host, "name", COMPILER_PHASE) & ~matching(host, "name", GRAPH_RECORDING)
    return host.filter(is_phase & host["start_ns"].is_between(start_ns, end_ns))


def compiling(trace: Trace, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Merged intervals (start_ns, end_ns) of those phases."""
    phases = compiler_phases(trace, start_ns, end_ns)
    return intervals.union(phases.with_columns((pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")))
