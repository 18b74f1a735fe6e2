"""What PyTorch's allocator held, and what it asked of the driver."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.origins.held import held_at_peak
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time.memory import (
    allocator_calls,
    memory_over_time,
    memory_statistics,
)
from kinetoscope.report.collect.rows import rows, rows_by
from kinetoscope.report.document import AllocatorRow, HeldRow, MemoryPoint, MemoryRow

POINTS = 100  # of the curve over the recording


def memory(run: Run) -> list[MemoryRow]:
    """One row a rank and device whose memory was recorded."""
    table = memory_statistics(run)
    total = {"allocated_bytes": "allocated", "reserved_bytes": "reserved"}
    points = {t.rank: rows_by(memory_over_time(t, POINTS), "device", MemoryPoint, total) for t in run.traces}
    places = table.select("rank", "device").rows()
    living = {t.rank: rows_by(held_at_peak(t), "device", HeldRow) for t in run.traces}
    held = [living[rank].get(device, []) for rank, device in places]
    sums = pl.Series([sum(row.bytes for row in one) for one in held], dtype=pl.Int64)
    before = table["peak_allocated"] - sums
    is_known = table["peak_reserved"].is_not_null() & (before >= 0)  # the allocator's totals, with no gap
    return rows(
        table,
        MemoryRow,
        {
            "peak_allocated_bytes": "peak_allocated",
            "peak_reserved_bytes": "peak_reserved",
            "first_allocated_bytes": "first_allocated",
            "last_allocated_bytes": "last_allocated",
            "turned_over_bytes": "allocated_bytes",
        },
        held_at_peak=held,
        held_from_before_bytes=before.set(~is_known, None),
        over_time=[points[rank][device] for rank, device in places],
    )


def allocator(run: Run) -> list[AllocatorRow]:
    """One row a rank and driver call that takes or gives back memory."""
    return rows(allocator_calls(run), AllocatorRow)
