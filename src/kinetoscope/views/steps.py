"""Steps: the program's own as they run without the profiler, their phases, how steps and launches went."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from functools import partial

from kinetoscope import document, numbers
from kinetoscope.document.page import DeviceClock
from kinetoscope.render import names
from kinetoscope.render.blocks import Block, Commands, Heading, Labelled, Line, Text, field, line, table
from kinetoscope.views import memory, serving
from kinetoscope.views.graph_names import event

FEW = 5  # a range of fewer steps says nothing
TIMES = 2.0  # what takes more than twice as long is said as so many times, not as a percentage
UNLIKE = 0.05  # a mean this far from the median is said


def defined(report: document.Report) -> str:
    """A sentence that says what a step of the program is; empty where it is not known."""
    found = report.step_levels
    return f"A step is {names.plain(found.levels[0].name)}." if found and found.levels else ""


def all_steps(found: document.StepsListing, most: int) -> Iterable[Block]:
    """The steps that an engine marked, and what a step of the program is."""
    yield from serving.section(found.serving, most)
    if found.step_levels is not None:
        yield from levels(found.step_levels, most)
    elif found.serving is None and (own := found.as_it_runs) is not None:
        time = numbers.time(own.step_us.median)
        yield line(f"As it runs, a step takes {time} ({_measured(own)}){_rarely(own)}.")
        yield line("What else could have been its step was not recorded.", style="dim")


def levels(found: document.StepLevels, most: int) -> Iterable[Block]:
    """The step and what it is made of, and every source that could have been it."""
    if found.levels:
        yield Heading("A step", "the first row; below it what it is made of; times are medians")
        yield table(
            found.levels,
            field("", "words", "name"),
            field("per step", "number", lambda row: numbers.rate(row.calls)),
            field("one every", "time", "each_us"),
        )
    yield Heading(
        "Seen while steps were looked for", "surest sign of a step first; median from one to the next"
    )
    yield table(
        found.candidates,
        field("source", "text", "kind"),
        field("name", "name", "name"),
        field("seen", "count", "ticks"),
        field("every", "time", "each_us"),
        most=most,
        noun="source",
    )
    options = {row.option: row.name for row in (*found.levels[1:], *found.candidates[:most]) if row.option}
    if options:
        yield Heading("To make one of them the step")
        yield Commands(
            tuple(
                (f"kinetoscope run --step {shlex.quote(option)} …", names.shorten(name, 60))
                for option, name in options.items()
            )
        )


def _made_of(report: document.Report) -> str:
    """``16 × Adam.step(), 3.34 ms each``; empty where a step has no parts that are known."""
    parts = report.step_levels.levels[1:] if report.step_levels else []
    return "; ".join(
        f"{part.calls:,.3g} × {names.plain(part.name)}"
        + ("" if part.each_us is None else f", {numbers.time(part.each_us)} each")
        for part in parts
    )


def own_step(report: document.Report) -> str | None:
    """How long the program's own step takes and how busy the device is in it; None where it was not timed."""
    own = report.as_it_runs
    if own is None:
        return None
    rank = f" on the slowest rank ({own.rank})" if len(report.timings) > 1 else ""
    time = numbers.time(own.step_us.median)
    sentence = f"As it runs, a {unit(report)} takes {time}{rank} ({_measured(own)}){_rarely(own)}"
    if own.busy_fraction is None:
        return f"{sentence}."
    idle = 1 - own.busy_fraction
    sentence += f"; the GPU is busy {numbers.percent(own.busy_fraction)} of it"
    if not own.idle or idle < 0.03:
        return f"{sentence}."
    return f"{sentence}, {numbers.percent(idle)} idle, {why(own.idle)}."


def inflation(report: document.Report) -> str:
    """How much longer a step took as recorded; empty where no steps were."""
    own = report.as_it_runs
    if own is None or own.inflation is None:
        return ""
    ratio = own.inflation
    if ratio > TIMES:
        return f"its step takes {ratio:,.1f} times as long"
    return f"its step takes {numbers.percent(abs(ratio - 1))} {'longer' if ratio >= 1 else 'less'}"


def drift(report: document.Report) -> str:
    """A sentence on a step time that is another before the recording than after it; else empty."""
    own = report.as_it_runs
    if own is None or not own.drift or own.before_us is None or own.after_us is None:
        return ""
    return (
        f"Its pace drifts: {numbers.time(own.before_us)} per step before the recording "
        f"({own.n_before} steps), {numbers.time(own.after_us)} after it ({own.n_after})."
    )


def own_idle(report: document.Report) -> list[tuple[str, float]]:
    """Each cause of idle time and its share of the program's own step, longest first."""
    own = report.as_it_runs
    if own is None:
        return []
    return [(row.cause, row.idle_us / own.step_us.median) for row in own.idle]


RARE_CAUSES = {
    "data-loading": "waiting for data",
    "synchronization": "waiting for the device",
    "garbage-collection": "garbage collection",
}


def _rarely(own: document.AsItRunsRow) -> str:
    """The mean and why it is another than the median; empty where it is not."""
    rare, found = own.rare_steps, own.round
    if found is not None:
        with_it, more, whole = map(numbers.time, (found.per_step_us, found.between_us, found.round_us))
        share = f"{with_it} with its share of what comes after every {found.steps}"
        return f", {share} and takes {more} ({whole} a round)"
    if rare is None:
        return _unlike(own)
    cause = f", {RARE_CAUSES[rare.cause]}" if rare.cause in RARE_CAUSES else ""
    per = "" if rare.size == 1 else " per step"
    longest = f"up to {numbers.time(rare.longest_us)}{per}{cause}"
    rounds = "" if rare.size == 1 else f" rounds of {rare.size} steps (a batch from each worker)"
    take = "takes" if rare.count == 1 else "take"
    return f", {numbers.time(own.mean_us)} at the mean: {rare.count} of {rare.of}{rounds} {take} {longest}"


def _unlike(own: document.AsItRunsRow) -> str:
    """The mean of steps of many lengths; empty where it is near the median, or not known."""
    spread, mean_us = own.step_us, own.mean_us
    if not mean_us or spread.n < FEW or abs(mean_us - spread.median) <= UNLIKE * spread.median:
        return ""
    if mean_us < spread.p10:
        return f", {numbers.time(mean_us)} at the mean of these and of later ones"
    longer = mean_us > spread.median
    end = f"{numbers.time(spread.p90)} or longer" if longer else f"{numbers.time(spread.p10)} or less"
    return f", {numbers.time(mean_us)} at the mean, since a tenth of them takes {end}"


def _measured(own: document.AsItRunsRow) -> str:
    spread = own.step_us
    if own.before_us is None and own.after_us is None:
        return f"mean of {spread.n}"
    span = f", p10–p90 {numbers.span(spread.p10, spread.p90)}" if spread.n >= FEW else ""
    return f"median of {spread.n}{span}"


def why(causes: Sequence[document.CauseRow | document.IdleRow]) -> str:
    """The cause of most of the idle time; ``causes`` are given longest first."""
    share = causes[0].idle_us / sum(row.idle_us for row in causes)
    cause = names.shorten(causes[0].cause, 40)
    return f"mostly {cause}" if share >= 0.5 else f"{numbers.percent(share)} of that {cause}"


REQUEST = "request"


def unit(report: document.Report) -> str:
    """The name of a step: a request, where most of the time was spent in requests."""
    first = next((row for row in report.phases if row.of == "step"), None)
    return REQUEST if first is not None and first.phase.startswith(REQUEST) else "step"


def parts(report: document.Report, rank: int) -> str:
    """``1 prefill of 8.10 ms and 63 decode steps of 6.30 ms``; empty where requests have no marked parts."""
    listed = [_part(row) for row in report.phases if row.of == REQUEST and row.rank == rank]
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)


def _part(row: document.PhaseRow) -> str:
    steps = numbers.count(round(row.per_step), "decode step") if row.phase == "decode" else ""
    return f"{steps or f'{row.per_step:,.3g} {names.plain(row.phase)}'} of {numbers.time(row.median_us)}"


PARTS = {"memory": "memory", "allocator": "memory"}  # of the page, where they are not its steps
OUTLIERS = 3
RANKS = 8
DIFFERENCES = 2
LATE = 0.5  # of the launches


def pace_lines(report: document.Report) -> list[tuple[str, str]]:
    """Sentences, each with its subject: steps, outlier, launches, memory or allocator."""
    many = len({row.rank for row in report.launching} | {row.rank for row in report.step_times}) > 1
    slowest = sorted(report.step_outliers, key=lambda row: -row.duration_us / row.median_us)
    inside = [row for row in report.allocator if row.calls_in_window]
    found = [("steps", 0, f"{defined(report)} It has {made_of}")] if (made_of := _made_of(report)) else []
    found += [("steps", row.rank, _steps(row)) for row in report.step_times if row.steps > 1]
    found += [("outlier", row.rank, _outlier(report, row)) for row in slowest[:OUTLIERS]]
    found += [("launches", row.rank, _launches(row)) for row in report.launching[:RANKS]]
    found += [("memory", row.rank, memory.traced(row)) for row in report.memory[:RANKS]]
    found += [("memory", 0, sentence) for sentence in memory.lines(report, RANKS)]
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
    often = "" if late.launches_per_step is None else f" ({_plain(late.launches_per_step)} per step)"
    return (
        f"{numbers.percent(late.on_idle_device / late.launches)} of the launches{often}"
        f"{f' on rank {late.rank}' if many else ''} came when the GPU was already idle"
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
    return f"{names.shorten(event(report, part.name), 60)}{idle} +{numbers.time(part.extra_us)}"


def _launches(row: document.LaunchRow) -> str:
    often = (
        f"{numbers.count(row.launches)} in all"
        if row.launches_per_step is None
        else f"{_plain(row.launches_per_step)} per step"
    )
    calls = f"{often} (kernels, copies and memsets), {numbers.time(row.host_median_us)} a call"
    if row.host_us_per_launch is not None:
        calls += f", one every {numbers.time(row.host_us_per_launch)}"
    parts = [
        calls,
        f"work starts {numbers.time(row.latency_median_us)} after its call "
        f"(p10–p90 {numbers.span(row.latency_p10_us, row.latency_p90_us)})",
        f"queue {_plain(row.depth_median)} deep at the median, {numbers.count(row.depth_max)} at most",
        f"{numbers.percent(row.on_idle_device / row.launches)} were made when the device was already idle",
    ]
    if row.shorter_than_call:
        parts.append(f"{numbers.percent(row.shorter_than_call / row.launches)} were shorter than their call")
    return "; ".join(parts)


def _plain(number: float) -> str:
    return numbers.count(int(number)) if number == int(number) else numbers.rate(number)


def phases(report: document.Report, most: int) -> Iterable[Block]:
    """Each phase's steps: how many, how long, how busy."""
    if len({row.phase for row in report.phases}) < 2:
        return
    many = len({row.rank for row in report.phases}) > 1

    def called(row: document.PhaseRow) -> str:
        where = "  in a request" if row.of == REQUEST else ""
        return f"{names.plain(row.phase)}{where}" + (f" (rank {row.rank})" if many else "")

    def count(row: document.PhaseRow) -> str:
        return f"{row.per_step:,.3g}" if row.of == REQUEST else numbers.count(row.count)

    def busy(row: document.PhaseRow) -> str:
        return numbers.percent(row.busy_us / row.median_us) if row.median_us and report.devices else ""

    yield Heading("Phases", "unlike steps apart; median, and busy share of it")
    yield table(
        report.phases,
        field("phase", "text", called),
        field("count", "number", count),
        field("median", "number", lambda row: numbers.time(row.median_us)),
        field("p10–p90", "number", lambda row: numbers.span(row.p10_us, row.p90_us)),
        field("busy", "number", busy),
        field("launches", "number", lambda row: f"{row.launches:,.0f}" if report.devices else ""),
        field(
            "device time", "number", lambda row: numbers.time(row.device_time_us) if report.devices else ""
        ),
        field("mostly", "name", lambda row: names.plain(row.kernels[0].name) if row.kernels else ""),
        most=most,
        noun="phase",
    )


def pace(report: document.Report, most: int) -> Iterable[Block]:
    """How steps, launches and memory went, a sentence each."""
    found = pace_lines(report)[:most]
    if not found:
        return
    yield Heading("Steps, launches, memory")
    labels = ["" if at and found[at - 1][0] == what else what for at, (what, _) in enumerate(found)]
    yield Labelled(
        tuple(
            (Text(label, "dim", "part", PARTS.get(label, "steps")), (Line((sentence,)),))
            for label, (_, sentence) in zip(labels, found, strict=True)
        )
    )


def listing(report: document.Report) -> Iterable[Block]:
    """The recorded steps: how long each took on the device's clock and on the host's."""
    if report.serving is not None and not report.steps:
        return
    many = _is_distributed(report)
    yield Heading("Recorded steps", "busy: share of the step, over the devices of its rank")
    yield table(
        report.steps,
        field("step", "text", _timed),
        field("phase", "text", "phase"),
        field("rank", "count", "rank") if many else None,
        field("duration", "time", "duration_us"),
        field("on the host", "time", "host_duration_us"),
        field("busy", "share", partial(busy_share, report)),
        field("launches", "count", "launches"),
    )


def _timed(row: document.StepRow) -> Text:
    return Text(row.name, "", "time", f"{row.start_us},{row.start_us + row.duration_us}")


def busy_share(report: document.Report, row: document.StepRow) -> float:
    """A step's busy time is added up over the devices of its rank."""
    available = row.duration_us * sum(device.rank == row.rank for device in report.devices)
    return row.busy_us / available if available else 0.0


def _is_distributed(report: document.Report) -> bool:
    return len({row.rank for row in report.sources}) > 1


def devices(report: document.Report) -> Iterable[Block]:
    """The use of each device's window, where there are several; their clocks, where those were read."""
    if len(report.devices) > 1:
        yield Heading("Devices", "busy: share of each one's window")
        yield table(
            report.devices,
            field("device", "text", lambda row: f"rank {row.rank} GPU {row.device}"),
            field("window", "time", "window_us"),
            field("busy", "share", "busy_fraction"),
            field("idle", "time", "idle_us"),
            field("compute", "time", "compute_us"),
            field("communication", "time", "communication_us"),
            field("exposed", "time", "exposed_communication_us"),
            field("launches", "count", "kernel_launches"),
        )
    clocks = report.page.clocks if report.page else []
    if not clocks:
        return
    yield Heading("Clocks and power", "as the driver reported them at moments of the run")
    yield table(
        clocks,
        field("when", "text", "moment"),
        field("rank", "count", "rank") if _is_distributed(report) else None,
        field("SM clock", "number", lambda row: _unit(row.sm_clock_mhz, "MHz")),
        field("of its most", "share", _clock_share),
        field("memory clock", "number", lambda row: _unit(row.memory_clock_mhz, "MHz")),
        field("power", "number", lambda row: _unit(row.power_w, "W")),
        field("temperature", "number", lambda row: _unit(row.temperature_c, "°C")),
        field("throttled by", "words", lambda row: ", ".join(row.throttle_reasons) or None),
    )


def _unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:,.0f} {unit}"


def _clock_share(row: DeviceClock) -> float | None:
    return row.sm_clock_mhz / row.max_sm_clock_mhz if row.sm_clock_mhz and row.max_sm_clock_mhz else None
