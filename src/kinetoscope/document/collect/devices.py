"""How each device's time divides, why it idled, and how its launches went."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.idle import gaps
from kinetoscope.analysis.idle.launches import launch_statistics, queue_depth
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.analysis.time.busy import busy
from kinetoscope.document import DeviceRow, IdleRow, LaunchRow, QueuePoint
from kinetoscope.document.collect.rows import rows, rows_by
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

POINTS = 100  # of the queue over the window


def devices(run: LoadedRun) -> list[DeviceRow]:
    """One row a device that did any work."""
    table = busy(run).with_columns(
        busy_fraction=_share("busy_in_window_ns", "window_ns"),
        busy_fraction_of_span=_share("busy_ns", "span_ns"),
    )
    names = {(t.rank, d.index): d.name for t in run.traces for d in t.devices}
    # ROCm numbers kernels' devices and devices' properties apart: where all are of one sort, it is that.
    of_rank = {t.rank: {d.name for d in t.devices} for t in run.traces}
    only = {rank: next(iter(found)) for rank, found in of_rank.items() if len(found) == 1}
    return rows(
        table,
        DeviceRow,
        name=[names.get(key, only.get(key[0], "")) for key in table.select("rank", "device").iter_rows()],
    )


def idle(run: LoadedRun) -> list[IdleRow]:
    return rows(gaps.idle(run), IdleRow)


@remembered
def launching(run: LoadedRun) -> list[LaunchRow]:
    table = launch_statistics(run)
    points = {t.rank: rows_by(_queue(t), "device", QueuePoint) for t in run.traces}
    return rows(
        table,
        LaunchRow,
        queue=[points[rank].get(device, []) for rank, device in table.select("rank", "device").iter_rows()],
    )


@kept
def _queue(trace: Trace) -> pl.DataFrame:
    return queue_depth(trace, POINTS)


def _share(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) != 0).then(pl.col(part) / pl.col(whole)).otherwise(0.0)
