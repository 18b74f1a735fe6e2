"""How steps, launches and memory went, in sentences: what every renderer prints of it."""

from __future__ import annotations

from kinetoscope import document, numbers
from kinetoscope.render import names
from kinetoscope.views import headline, memory_lines

OUTLIERS = 3
RANKS = 8
DIFFERENCES = 2
LATE = 0.5  # of the launches


def lines(report: document.Report) -> list[tuple[str, str]]:
    """What each sentence is about (steps, outlier, launches, memory or allocator), and the sentence."""
    many = len({row.rank for row in report.launching} | {row.rank for row in report.step_times}) > 1
    slowest = sorted(report.step_outliers, key=lambda row: -row.duration_us / row.median_us)
    inside = [row for row in report.allocator if row.calls_in_window]
    found = [("steps", row.rank, _steps(row)) for row in report.step_times if row.steps > 1]
    found += [("outlier", row.rank, _outlier(report, row)) for row in slowest[:OUTLIERS]]
    found += [("launches", row.rank, _launches(row)) for row in report.launching[:RANKS]]
    found += [("memory", row.rank, memory_lines.traced(row)) for row in report.memory[:RANKS]]
    found += [("memory", 0, sentence) for sentence in memory_lines.lines(report, RANKS)]
    found += [
        (
            "allocator",
            row.rank,
            f"{names.shorten(row.name, 60)} {numbers.count(row.calls_in_window)} × in the recorded time: "
            f"{numbers.time(row.host_us_in_window)} of the host's",
        )
        for row in inside[:OUTLIERS]
    ]
    return [(what, f"rank {rank}: {text}" if many else text) for what, rank, text in found]


def judged(report: document.Report) -> str:
    """Whether launches keep the device supplied, where one more often than not does not; empty otherwise."""
    late = max(report.launching, key=lambda row: row.on_idle_device / row.launches, default=None)
    if late is None or late.on_idle_device < LATE * late.launches:
        return ""
    many = len(report.launching) > 1
    often = "" if late.launches_per_step is None else f" of {_plain(late.launches_per_step)} a step"
    return (
        f"launches come late{f' on rank {late.rank}' if many else ''}: "
        f"{numbers.percent(late.on_idle_device / late.launches)}{often} found the device idle"
    )


def _steps(row: document.StepTimesRow) -> str:
    times = f"{numbers.time(row.duration_median_us)} at the median"
    if row.steps >= 5:
        times += f", p10–p90 {numbers.span(row.duration_p10_us, row.duration_p90_us)}"
    busy = f"busy {numbers.time(row.busy_median_us)}" if row.busy_median_us else "no device work in them"
    return f"{times}, all {numbers.span(row.duration_min_us, row.duration_max_us)}; {busy}"


def _outlier(report: document.Report, row: document.StepOutlierRow) -> str:
    times = numbers.rate(row.duration_us / row.median_us)
    sentence = f"{names.shorten(row.name, 40)} took {numbers.time(row.duration_us)}, {times} × the median"
    parts = ", ".join(_difference(report, part) for part in row.differences[:DIFFERENCES])
    return f"{sentence}: {parts}" if parts else sentence


def _difference(report: document.Report, part: document.StepDifference) -> str:
    idle = " idle" if part.kind == "idle" else ""
    return f"{names.shorten(headline.event(report, part.name), 60)}{idle} +{numbers.time(part.extra_us)}"


def _launches(row: document.LaunchRow) -> str:
    often = (
        f"{numbers.count(row.launches)} in all"
        if row.launches_per_step is None
        else f"{_plain(row.launches_per_step)} a step"
    )
    parts = [f"{often}, {numbers.time(row.host_median_us)} a call"]
    if row.host_us_per_launch is not None:
        parts[0] += f", one every {numbers.time(row.host_us_per_launch)}"
    parts.append(
        f"work starts {numbers.time(row.latency_median_us)} after its call "
        f"(p10–p90 {numbers.span(row.latency_p10_us, row.latency_p90_us)})"
    )
    parts.append(
        f"queue {_plain(row.depth_median)} deep at the median, {numbers.count(row.depth_max)} at most"
    )
    idle = numbers.percent(row.on_idle_device / row.launches)
    parts.append(f"{idle} found the device idle")
    if row.shorter_than_call:
        parts.append(f"{numbers.percent(row.shorter_than_call / row.launches)} were shorter than their call")
    return "; ".join(parts)


def _plain(number: float) -> str:
    return numbers.count(int(number)) if number == int(number) else numbers.rate(number)
