"""What ran compiled, as the trace alone tells it."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events import torch_names
from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import matching, rows
from kinetoscope.analysis.events.torch_names import (
    CALL,
    COMPILED_BACKWARD,
    COMPILER_PHASE,
    GRAPH_RECORDING,
    REGION,
)
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

COMPILED = f"{REGION}|{COMPILED_BACKWARD}|{CALL}"


def region_around(trace: Trace) -> pl.Series:
    """The innermost compiled region around each row of ``host_events``, itself included; else null."""
    return nearest(trace.host_events, matching(trace.host_events, "name", REGION))


@remembered
def regions(trace: Trace) -> pl.DataFrame:
    """``host_events`` of every entry into a compiled function."""
    return trace.host_events[rows(trace.host_events, "name", REGION)]


@remembered
def compiled(trace: Trace) -> pl.Series:
    """Rows of ``host_events`` that are launches inside compiled code, forward or backward."""
    host = trace.host_events
    launches = trace.device_events["launch"].drop_nulls().unique().sort()
    around = nearest(host, matching(host, "name", COMPILED))
    return launches.filter(around.gather(launches).is_not_null())


@remembered
def region_of_work(trace: Trace) -> pl.Series:
    """For each row of ``device_events`` the compiled region it was launched in (row of ``host_events``)."""
    return region_around(trace).gather(trace.device_events["launch"])


@remembered
def replaying(trace: Trace) -> frozenset[str]:
    """The compile ids of the functions whose calls launch a CUDA graph."""
    host = trace.host_events
    replays = rows(host, "name", torch_names.GRAPH_LAUNCH)
    around = region_around(trace).gather(replays).drop_nulls().unique()
    return frozenset(_compile_ids(host["name"].gather(around)).drop_nulls().to_list())


@remembered
def entry_costs(trace: Trace) -> pl.DataFrame:
    """``regions`` with ``compile_id`` and ``cost_ns``: host time of the entry that serves no op and no
    launch, the cache lookup before it included."""
    host, entered = trace.host_events, regions(trace)
    lookup = whole(host["duration_ns"].filter(matching(host, "name", torch_names.CACHE_LOOKUP)).median())
    is_own = matching(host, "name", torch_names.ENTRY)
    # What the region's own events (wrapper, prologue) take themselves; an op inside is the function's work.
    own = (
        pl.DataFrame({"id": region_around(trace), "self_ns": host["self_ns"]})
        .filter(is_own & pl.col("id").is_not_null())
        .group_by("id")
        .agg(pl.col("self_ns").sum().alias("cost_ns"))
    )
    return entered.join(own, on="id", how="left", maintain_order="left").with_columns(
        _compile_ids(entered["name"]).alias("compile_id"),
        (pl.col("cost_ns").fill_null(0) + lookup).alias("cost_ns"),
    )


def _compile_ids(names: pl.Series) -> pl.Series:
    return names.cast(pl.String).str.extract(REGION)


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
