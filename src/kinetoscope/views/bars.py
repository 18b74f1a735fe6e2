"""How a device's or a step's time divides: what the busy bars draw."""

from __future__ import annotations

from dataclasses import dataclass

from kinetoscope.document import DeviceRow, Report
from kinetoscope.render.palette import COMMUNICATION, COMPUTE, COPY, IDLE

# What a segment stands for: communication counts only where nothing computes, copies where neither runs.
USES = {COMPUTE: "compute", COMMUNICATION: "exposed communication", COPY: "exposed copies", IDLE: "idle"}


@dataclass(frozen=True)
class Segment:
    """A part of a bar: what the time was used for, and its share of the whole bar (0 to 1)."""

    use: str
    share: float


@dataclass(frozen=True)
class Bar:
    """One line of bar; the segments' shares sum to one.

    Args:
        label: what it stands for: ``GPU 0``, ``ProfilerStep#3``.
        time_us: the time that the whole bar stands for.
        busy: share of that time with work on the device.
    """

    label: str
    time_us: float
    busy: float
    segments: tuple[Segment, ...]


def device_bars(report: Report) -> list[Bar]:
    """One bar a device: its window, divided into compute, exposed communication, exposed copies and idle."""
    ranks = len({row.rank for row in report.devices}) > 1
    return [_device_bar(row, ranks) for row in report.devices]


def step_bars(report: Report) -> list[Bar]:
    """One bar a step: busy and idle."""
    bars: list[Bar] = []
    for row in report.steps:
        available = row.duration_us * devices_of(report, row.rank)
        busy = row.busy_us / available if available else 0.0
        bars.append(Bar(row.name, row.duration_us, busy, (Segment(COMPUTE, busy), Segment(IDLE, 1 - busy))))
    return bars


def devices_of(report: Report, rank: int) -> int:
    """How many devices did work for that rank; a step's busy time is added up over them."""
    return sum(row.rank == rank for row in report.devices)


def device_label(row: DeviceRow, with_rank: bool) -> str:
    return f"rank {row.rank} · GPU {row.device}" if with_rank else f"GPU {row.device}"


def _device_bar(row: DeviceRow, with_rank: bool) -> Bar:
    copy = max(row.busy_us - row.compute_us - row.exposed_communication_us, 0.0)
    busy_parts = ((COMPUTE, row.compute_us), (COMMUNICATION, row.exposed_communication_us), (COPY, copy))
    total = sum(time for _, time in busy_parts)
    scale = row.busy_fraction / total if total else 0.0
    parts = [Segment(use, time * scale) for use, time in busy_parts if time]
    return Bar(
        device_label(row, with_rank),
        row.window_us,
        row.busy_fraction,
        (*parts, Segment(IDLE, 1 - row.busy_fraction)),
    )
