"""The phases of the recorded steps, as all renderers write them."""

from __future__ import annotations

from typing import NamedTuple

from kinetoscope import numbers
from kinetoscope.document import PhaseRow, Report
from kinetoscope.render import names

HEADS = ("phase", "count", "median", "p10–p90", "busy", "launches", "device time", "mostly")
REQUEST = "request"


class PhaseLine(NamedTuple):
    """One phase, a field for each of ``HEADS``; what only a device can tell is empty without one."""

    phase: str
    number: str
    median: str
    range: str
    busy: str
    launches: str
    device_time: str
    kernel: str


def lines(report: Report) -> list[PhaseLine]:
    """A line a phase, where there is more than one to tell apart."""
    many = len({row.rank for row in report.phases}) > 1
    several = len({row.phase for row in report.phases}) > 1
    has_device = bool(report.devices)
    return [_line(row, many, has_device) for row in report.phases] if several else []


def unit(report: Report) -> str:
    """What a step is called: a request, where most of the time was spent in requests."""
    first = next((row for row in report.phases if row.of == "step"), None)
    return REQUEST if first is not None and first.phase.startswith(REQUEST) else "step"


def parts(report: Report, rank: int) -> str:
    """``1 prefill of 8.10 ms and 63 decode steps of 6.30 ms``; empty where requests have no marked parts."""
    listed = [_part(row) for row in report.phases if row.of == REQUEST and row.rank == rank]
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)


def _part(row: PhaseRow) -> str:
    steps = numbers.count(round(row.per_step), "decode step") if row.phase == "decode" else ""
    return f"{steps or f'{row.per_step:,.3g} {names.plain(row.phase)}'} of {numbers.time(row.median_us)}"


def _line(row: PhaseRow, many: bool, has_device: bool) -> PhaseLine:
    where = "  in a request" if row.of == REQUEST else ""
    rank = f" (rank {row.rank})" if many else ""
    most = row.kernels[0].name if row.kernels else ""
    return PhaseLine(
        phase=f"{names.plain(row.phase)}{where}{rank}",
        number=f"{row.per_step:,.3g}" if where else numbers.count(row.count),
        median=numbers.time(row.median_us),
        range=numbers.span(row.p10_us, row.p90_us),
        busy=numbers.percent(row.busy_us / row.median_us) if row.median_us and has_device else "",
        launches=f"{row.launches:,.0f}" if has_device else "",
        device_time=numbers.time(row.device_time_us) if has_device else "",
        kernel=names.plain(most),
    )
