"""What ran compiled, as the trace alone tells it."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.named import host_rows
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace

# The events that compiled code adds around the ops themselves.
OVERHEAD = (
    r"^(Torch-Compiled Region: |## Call CompiledFxGraph |AOTDispatcher Runtime Wrapper|Pregraph bytecode)"
)
REGION = r"^Torch-Compiled Region: "
# A compiled backward runs in autograd's thread, under its own node and graph.
COMPILED = r"^(Torch-Compiled Region: |CompiledFunctionBackward|## Call CompiledFxGraph )"


@remembered
def regions(trace: Trace) -> pl.DataFrame:
    """``host_events`` of every entry into a compiled function."""
    return trace.host_events[host_rows(trace, REGION)]


@remembered
def compiled(trace: Trace) -> pl.Series:
    """Rows of ``host_events`` that are launches inside compiled code, forward or backward."""
    host = trace.host_events
    launches = trace.device_events["launch"].drop_nulls().unique().sort()
    around = nearest(host, _is(trace, COMPILED))
    return launches.filter(around.gather(launches).is_not_null())


@remembered
def region_of_work(trace: Trace) -> pl.Series:
    """For each row of ``device_events`` the row of ``host_events`` of the compiled region it was launched in."""
    around = nearest(trace.host_events, _is(trace, REGION))
    return around.gather(trace.device_events["launch"])


@remembered
def replaying(trace: Trace) -> frozenset[str]:
    """The compile ids of the functions whose calls launch a CUDA graph."""
    host = trace.host_events
    launches = host_rows(trace, r"^(cuda|cu|hip)GraphLaunch")
    around = nearest(host, _is(trace, REGION)).gather(launches).drop_nulls().unique()
    return frozenset(_compile_ids(host["name"].gather(around)).drop_nulls().to_list())


@remembered
def entry_costs(trace: Trace) -> pl.DataFrame:
    """``regions`` with ``compile_id`` and ``cost_ns``: host time of the entry that serves no op and no launch, the cache
    lookup before it included."""
    host, entered = trace.host_events, regions(trace)
    lookups = host[host_rows(trace, r"^TorchDynamo Cache Lookup$")]["duration_ns"]
    lookup = int(lookups.median() or 0) if len(lookups) else 0  # type: ignore[arg-type]
    around = nearest(host, _is(trace, REGION))
    # What the region's own events (wrapper, prologue) take themselves; an op inside is the function's work.
    own = (
        pl.DataFrame({"id": around, "self_ns": host["self_ns"], "overhead": _is(trace, OVERHEAD)})
        .filter(pl.col("overhead") & pl.col("id").is_not_null())
        .group_by("id")
        .agg(pl.col("self_ns").sum().alias("cost_ns"))
    )
    return entered.join(own, on="id", how="left", maintain_order="left").with_columns(
        _compile_ids(entered["name"]).alias("compile_id"),
        (pl.col("cost_ns").fill_null(0) + lookup).alias("cost_ns"),
    )


def _compile_ids(names: pl.Series) -> pl.Series:
    return names.cast(pl.String).str.extract(r"([!\d/]+)$")


def _is(trace: Trace, pattern: str) -> pl.Series:
    """One boolean a row of ``host_events``: its name contains the pattern."""
    rows = host_rows(trace, pattern)
    return pl.select(pl.int_range(len(trace.host_events), dtype=pl.UInt32).is_in(rows.implode())).to_series()
