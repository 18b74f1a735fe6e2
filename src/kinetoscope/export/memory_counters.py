"""Device memory as counters of a trace: by its owners, where the allocator's history was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.events.torch_names import BASE
from kinetoscope.analysis.memory.owners import ROLES
from kinetoscope.analysis.memory.peak import histories, over_time
from kinetoscope.analysis.memory.traced import memory_over_time
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

POINTS = 2000  # of each device


class Count(NamedTuple):
    """Bytes from a moment of the trace on, by what they were."""

    start_ns: int
    device: int
    bytes: dict[str, int]


def counts(run: LoadedRun, trace: Trace) -> Iterator[Count]:
    """A trace's devices, each in order of time."""
    base = trace.metadata.get(BASE)
    of_rank = [one.history for one in histories(run).found if one.rank == trace.rank]
    recorded = [history for history in of_rank if history.moment != "out of memory"]
    if isinstance(base, int) and recorded:
        for history in recorded:
            table = over_time(history, POINTS)
            kinds = [role for role in ROLES if role in table.columns]
            rest = pl.col("reserved") - pl.sum_horizontal(kinds)
            table = table.select("time_us", *kinds, rest.alias("free or rounding"))
            for time_us, *values in table.iter_rows():
                named = dict(zip(table.columns[1:], values, strict=True))
                yield Count(time_us * 1000 - base, history.device, named)
        return
    for row in memory_over_time(trace, POINTS).iter_rows(named=True):
        kinds = {kind: row[kind] for kind in ("allocated", "reserved") if row[kind] is not None}
        yield Count(row["start_ns"], row["device"], kinds)
