"""What PyTorch's allocator held, and what it asked of the driver."""

from __future__ import annotations

from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time.memory import allocator_calls, memory_over_time, memory_statistics
from kinetoscope.report.collect.rows import rows, rows_by
from kinetoscope.report.document import AllocatorRow, MemoryPoint, MemoryRow

POINTS = 100  # of the curve over the recording


def memory(run: Run) -> list[MemoryRow]:
    """One row a rank and device whose memory was recorded."""
    table = memory_statistics(run)
    held = {"allocated_bytes": "allocated", "reserved_bytes": "reserved"}
    points = {t.rank: rows_by(memory_over_time(t, POINTS), "device", MemoryPoint, held) for t in run.traces}
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
        over_time=[points[rank][device] for rank, device in table.select("rank", "device").iter_rows()],
    )


def allocator(run: Run) -> list[AllocatorRow]:
    """One row a rank and driver call that takes or gives back memory."""
    return rows(allocator_calls(run), AllocatorRow)
