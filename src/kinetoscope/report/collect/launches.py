"""How launches went: their latency, and how deep the queue was."""

from __future__ import annotations

from kinetoscope.analysis.idle.launches import launch_statistics, queue_depth
from kinetoscope.analysis.run import Run
from kinetoscope.report.collect.rows import rows, rows_by
from kinetoscope.report.document import LaunchRow, QueuePoint

POINTS = 100  # of the queue over the window


def launching(run: Run) -> list[LaunchRow]:
    """One row a rank and device that was launched on."""
    table = launch_statistics(run)
    points = {t.rank: rows_by(queue_depth(t, POINTS), "device", QueuePoint) for t in run.traces}
    return rows(
        table,
        LaunchRow,
        {"work_per_launch": "works_per_launch", "on_idle_device": "empty", "shorter_than_call": "short"},
        queue=[points[rank].get(device, []) for rank, device in table.select("rank", "device").iter_rows()],
    )
