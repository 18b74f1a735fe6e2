"""What ran compiled, as the trace alone tells it."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.enclosing import nearest
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace

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


def _is(trace: Trace, pattern: str) -> pl.Series:
    names = trace.host_events["name"].unique()
    wanted = names.filter(names.cast(pl.String).str.contains(pattern))
    return trace.host_events["name"].is_in(wanted.implode()).fill_null(False)


def _named(trace: Trace, pattern: str) -> pl.DataFrame:
    return trace.host_events.filter(_is(trace, pattern))
