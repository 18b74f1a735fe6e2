"""What ran compiled, as the trace alone tells it."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.enclosing import nearest
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
    return _named(trace, REGION)


@remembered
def compiled(trace: Trace) -> pl.Series:
    """Rows of ``host_events`` that are launches inside compiled code, forward or backward."""
    host = trace.host_events
    launches = trace.device_events["launch"].drop_nulls().unique().sort()
    wanted = pl.Series("wanted", range(0), pl.Boolean) if host.is_empty() else _is(trace, COMPILED)
    around = nearest(host, wanted)
    return launches.filter(around.gather(launches).is_not_null())


@remembered
def region_of_work(trace: Trace) -> pl.Series:
    """For each row of ``device_events`` the row of ``host_events`` of the compiled region it was launched in."""
    around = nearest(trace.host_events, _is(trace, REGION))
    return around.gather(trace.device_events["launch"])


@remembered
def entry_costs(trace: Trace) -> pl.DataFrame:
    """``regions`` with ``compile_id`` and ``cost_ns``: host time of the entry that serves no op and no launch, the cache
    lookup before it included."""
    host, entered = trace.host_events, regions(trace)
    lookups = host.filter(_is(trace, r"^TorchDynamo Cache Lookup$"))["duration_ns"]
    lookup = int(lookups.median() or 0) if len(lookups) else 0  # type: ignore[arg-type]
    around = nearest(host, _is(trace, REGION))
    overhead = ~_is(trace, OVERHEAD)
    # What the region's own events (wrapper, prologue) take themselves; an op inside is the function's work.
    own = (
        pl.DataFrame({"id": around, "self_ns": host["self_ns"], "working": overhead})
        .filter(~pl.col("working") & pl.col("id").is_not_null())
        .group_by("id")
        .agg(pl.col("self_ns").sum().alias("cost_ns"))
    )
    return entered.join(own, on="id", how="left", maintain_order="left").with_columns(
        pl.col("name").cast(pl.String).str.extract(r"([!\d/]+)$").alias("compile_id"),
        (pl.col("cost_ns").fill_null(0) + lookup).alias("cost_ns"),
    )


def _is(trace: Trace, pattern: str) -> pl.Series:
    names = trace.host_events["name"].unique()
    wanted = names.filter(names.cast(pl.String).str.contains(pattern))
    return trace.host_events["name"].is_in(wanted.implode()).fill_null(False)


def _named(trace: Trace, pattern: str) -> pl.DataFrame:
    return trace.host_events.filter(_is(trace, pattern))
