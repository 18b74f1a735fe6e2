"""How steps, launches and memory went, as rows of the report."""

from __future__ import annotations

from typing import Any

from kinetoscope.analysis.idle.launches import launch_statistics, queue_depth
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.step_outliers import step_distribution, step_outliers
from kinetoscope.analysis.time.memory import allocator_calls, memory_over_time, memory_statistics
from kinetoscope.report.document.report import (
    AllocatorRow,
    LaunchRow,
    MemoryPoint,
    MemoryRow,
    QueuePoint,
    StepDifference,
    StepOutlierRow,
    StepTimesRow,
)

POINTS = 100  # of a curve over the window


def step_times(run: Run) -> list[StepTimesRow]:
    """One row a rank with steps."""
    return [
        StepTimesRow(
            rank=row["rank"],
            steps=row["steps"],
            spread=row["spread"],
            **_us(row, *(f"{what}_{figure}" for what in ("duration", "busy") for figure in _FIGURES)),
        )
        for row in step_distribution(run).iter_rows(named=True)
    ]


def outliers(run: Run) -> list[StepOutlierRow]:
    """The steps that took much longer than the others of their rank."""
    return [
        StepOutlierRow(
            rank=found.rank,
            name=found.name,
            duration_us=found.duration_ns / 1000,
            median_us=found.median_ns / 1000,
            differences=[
                StepDifference(
                    kind=row.kind,
                    name=row.name,
                    extra_us=row.extra_ns / 1000,
                    count=row.count,
                    usual_count=row.usual_count,
                )
                for row in found.differences
            ],
        )
        for found in step_outliers(run)
    ]


def launching(run: Run) -> list[LaunchRow]:
    """One row a rank and device that was launched on."""
    depths = {trace.rank: queue_depth(trace, POINTS) for trace in run.traces}
    return [
        LaunchRow(
            rank=row["rank"],
            device=row["device"],
            launches=row["launches"],
            launches_per_step=row["launches_per_step"],
            work_per_launch=row["works_per_launch"],
            host_us_per_launch=None
            if row["host_ns_per_launch"] is None
            else row["host_ns_per_launch"] / 1000,
            depth_median=row["depth_median"],
            depth_max=row["depth_max"],
            on_idle_device=row["empty"],
            shorter_than_call=row["short"],
            queue=[
                QueuePoint(start_us=start / 1000, launches=made, depth_mean=mean, depth_max=most)
                for device, start, made, mean, most in depths[row["rank"]].iter_rows()
                if device == row["device"]
            ],
            **_us(row, "host", "host_median", "host_p90", "short_device"),
            **_us(row, "latency_median", "latency_p10", "latency_p90"),
        )
        for row in launch_statistics(run).iter_rows(named=True)
    ]


def memory(run: Run) -> list[MemoryRow]:
    """One row a rank and device whose memory was recorded."""
    curves = {trace.rank: memory_over_time(trace, POINTS) for trace in run.traces}
    return [
        MemoryRow(
            rank=row["rank"],
            device=row["device"],
            peak_allocated_bytes=row["peak_allocated"],
            peak_reserved_bytes=row["peak_reserved"],
            peak_us=row["peak_ns"] / 1000,
            peak_op=row["peak_op"],
            first_allocated_bytes=row["first_allocated"],
            last_allocated_bytes=row["last_allocated"],
            allocations=row["allocations"],
            releases=row["releases"],
            turned_over_bytes=row["allocated_bytes"],
            reserved_growths=row["reserved_growths"],
            over_time=[
                MemoryPoint(start_us=start / 1000, allocated_bytes=allocated, reserved_bytes=reserved)
                for device, start, allocated, reserved in curves[row["rank"]].iter_rows()
                if device == row["device"]
            ],
        )
        for row in memory_statistics(run).iter_rows(named=True)
    ]


def allocator(run: Run) -> list[AllocatorRow]:
    """One row a rank and driver call that takes or gives back memory."""
    return [
        AllocatorRow(
            rank=row["rank"],
            name=row["name"],
            calls=row["calls"],
            calls_in_window=row["calls_in_window"],
            **_us(row, "host"),
            host_us_in_window=row["host_ns_in_window"] / 1000,
        )
        for row in allocator_calls(run).iter_rows(named=True)
    ]


_FIGURES = ("mean", "median", "min", "max", "p10", "p90")


def _us(row: dict[str, Any], *names: str) -> dict[str, float]:
    """Columns of nanoseconds as keys of microseconds."""
    return {f"{name}_us": row[f"{name}_ns"] / 1000 for name in names}
