"""The report in plain English: what it is of, whether it can be trusted, where the time went."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from statistics import mean, median

from kinetoscope import numbers
from kinetoscope.document import IdleRow, Note, OpRow, Report
from kinetoscope.render import names
from kinetoscope.views import memory, serving, steps, whole_run
from kinetoscope.views import ranks as rank_lines
from kinetoscope.views.findings import UNLIKE

PHASES = 4
PHASES_OF_A_SERVER = 3
VERDICTS = {
    "good": "The recording is good: nothing in it weakens the numbers below.",
    "degraded": "The recording is degraded: read the numbers below with these notes.",
    "unreliable": "The recording is unreliable: do not trust the numbers below.",
}
ALWAYS_SHOWN = ("joined-with-nsys",)  # of the notes that inform
NOT_HOST_WORK = ("user_annotation", "kernel", "memcpy", "memset", "device annotation")


def title(report: Report) -> list[str]:
    """The subject of the report, in parts: the recording, the devices, the software, what was recorded."""
    parts = [_sources(report)]
    devices = [row.name or "GPU" for row in report.devices]
    for name in dict.fromkeys(devices):
        many = devices.count(name)
        parts.append(names.plain(f"{many} × {name}" if many > 1 else name))
    if not devices and report.ops:
        parts.append("no GPU in the recording")
    elif not devices and report.compilation is not None:
        parts.append("a compile log")
    if torch := report.environment.torch:
        parts.append(names.plain(f"torch {torch}"))
    if report.steps:
        parts.append(numbers.count(step_count(report), "step"))
    return parts


def verdict(report: Report) -> str:
    """One line on the recording's health; the notes follow it where it is not good."""
    if memory.is_alone(report) and report.health.verdict == "good":
        return "Memory alone, by the allocator's own account: no time was recorded."
    return VERDICTS.get(report.health.verdict, names.plain(report.health.verdict))


def headline(report: Report) -> str:
    """A few sentences that answer "where does the time go": as the program runs, where that was timed."""
    of_run = whole_run.sentence(report)
    first, last = (of_run, "") if whole_run.is_lesser_part(report) else ("", of_run)
    parts = [_slow_ranks(report), first, _lacking(report), memory.ran_out(report), steps.defined(report)]
    own, of_phases = steps.own_step(report), ""
    if report.serving is not None and serving.leads(report.serving):
        of_phases = serving.summary(report.serving, PHASES_OF_A_SERVER)
    if report.devices and of_phases:
        parts += [own or "As recorded, under the profiler:", of_phases, _waiting(report)]
    elif report.devices:
        own = own or f"As recorded, under the profiler, {_busy_sentence(report)}"
        parts += [own, _work_sentence(report), _waiting(report)]
    elif of_phases:
        parts += [own or "", "As recorded on the host, under the profiler:", of_phases]
    else:
        parts += [own or "", _host_headline(report)]
    return " ".join(part for part in (*parts, last) if part)


def _lacking(report: Report) -> str:
    """A remark that the figures are of a part of the recording; empty where all of it was read."""
    damaged = sum(not source.complete for source in report.sources)
    if not damaged:
        return ""
    of = "the recording" if len(report.sources) == 1 else f"{damaged} of {len(report.sources)} traces"
    return f"Of what is left of {of}, which could not be read whole:"


def timing(report: Report) -> str | None:
    """The recorded steps, in addition to the headline's own steps of the program; None for a bare trace."""
    if report.as_it_runs is None:
        return None
    recorded = _busy_sentence(report).rstrip(".") if report.devices else window(report)
    parts = (
        f"As recorded, under the profiler: {recorded}; {steps.inflation(report)}".rstrip("; ") + ".",
        steps.drift(report),
    )
    return " ".join(part for part in parts if part)


def compilation(report: Report) -> str | None:
    """The work of torch.compile in one line; None where the input has no compile log."""
    facts = report.compilation
    if facts is None:
        return None
    parts = [
        numbers.count(len(facts.frames), "frame"),
        numbers.count(len(facts.graph_breaks), "graph break"),
        numbers.count(len(facts.recompilations), "recompilation"),
    ]
    if facts.failures:
        parts.append(numbers.count(len(facts.failures), "failure"))
    if facts.compile_s:
        parts.append(f"{numbers.time(facts.compile_s * 1e6)} compiling")
    share = facts.coverage.compiled_share_of_device_time
    if share is not None:
        parts.append(f"{numbers.percent(share)} of GPU time in compiled graphs")
    return "torch.compile: " + " · ".join(parts)


def step_count(report: Report) -> int:
    """How many steps a rank recorded, at most: ranks that were started again number theirs differently."""
    return max(Counter(rank for rank, _ in {(row.rank, row.name) for row in report.steps}).values())


def idle_causes(report: Report) -> list[IdleRow]:
    """Idle time by cause over all devices, largest first; shares are of all devices' windows together, the
    text is that of the device which idled longest for that cause."""
    windows = sum(row.window_us for row in report.devices)
    totals: dict[str, float] = {}
    texts: dict[str, str | None] = {}
    for row in sorted(report.idle, key=lambda row: -row.idle_us):
        totals[row.cause] = totals.get(row.cause, 0.0) + row.idle_us
        texts.setdefault(row.cause, row.text)
    rows = [
        IdleRow(
            device=-1,
            cause=cause,
            idle_us=total,
            share_of_window=total / windows if windows else 0.0,
            text=texts[cause],
        )
        for cause, total in totals.items()
        if total
    ]
    return sorted(rows, key=lambda row: -row.idle_us)


def notes(report: Report) -> list[str]:
    """Notes on what weakens the numbers, the gravest first, and what was joined; of ranks' the worst."""
    several = len({source.rank for source in report.sources}) > 1
    kinds: dict[str, list[Note]] = {}
    for note in report.health.notes:
        if note.gravity != "info" or note.code in ALWAYS_SHOWN:
            kinds.setdefault(note.code, []).append(note)
    return [names.ended_early(_whose(kind, several) + kind[0].text, 400) for kind in kinds.values()]


def _whose(kind: list[Note], several: bool) -> str:
    if not several or kind[0].rank is None:
        return ""
    more = f" (and {numbers.count(len(kind) - 1, 'rank')} more)" if len(kind) > 1 else ""
    return f"rank {kind[0].rank}{more}: "


def host_ops(report: Report) -> list[OpRow]:
    """The work of the host, most time of its own first: ops and runtime calls, without annotations."""
    rows = [row for row in report.ops if row.kind not in NOT_HOST_WORK]
    return sorted(rows, key=lambda row: -row.host_self_us)


def window(report: Report) -> str:
    if report.steps:
        return _steps(report)
    return f"the recorded {numbers.time(max((row.window_us for row in report.devices), default=0.0))}"


def recorded_window(report: Report) -> str:
    """The same, marked as recorded where the program's own steps are shown as well."""
    return window(report) + (", as recorded" if report.as_it_runs else "")


def _steps(report: Report) -> str:
    """``3 steps (18.3 ms each)``, or their median and range where they differ by more than a tenth, and their
    mean, of which savings are parts, where that is as far from the median; the steps of each phase where
    there are several."""
    ranks = len({row.rank for row in report.steps})
    unit, parts = steps.unit(report), steps.parts(report, report.steps[0].rank)
    what = numbers.count(step_count(report), unit) + (f" on {ranks} ranks" if ranks > 1 else "")
    by_phase: dict[str, list[float]] = {row.phase: [] for row in report.phases if row.of == "step"}
    for row in report.steps:
        by_phase.setdefault(row.phase, []).append(row.duration_us)
    if len(by_phase) == 1:
        (durations,) = by_phase.values()
        return f"{what} ({_durations(durations)}{f': {parts}' if parts else ''})"
    listed = [
        f"{len(durations):,} {names.plain(phase)} ({_durations(durations)})"
        for phase, durations in by_phase.items()
        if durations
    ]
    return f"{what}: {_listing(listed[:PHASES])}"


def _durations(durations: list[float]) -> str:
    middle, low, high = median(durations), min(durations), max(durations)
    if high - low > 0.1 * middle:
        unlike = abs(mean(durations) - middle) > UNLIKE * middle
        at_the_mean = f"mean {numbers.time(mean(durations))}, " if unlike else ""
        return f"median {numbers.time(middle)}, {at_the_mean}{numbers.span(low, high)}"
    return f"{numbers.time(middle)}{' each' if len(durations) > 1 else ''}"


def _sources(report: Report) -> str:
    paths = [source.path for source in report.sources]
    if not paths:
        return "nothing"
    first = PurePath(paths[0])
    recording = first.parent.parent.name if first.parent.name == "trace" else None
    # One file may hold several traces; each host or rank may have a folder of its own.
    above = [one for one in first.parents if all(one in PurePath(path).parents for path in paths)]
    folder = above[0].name if above and len(set(paths)) > 1 else ""
    name = recording or folder or first.name
    return names.plain(name if len(paths) == 1 else f"{name} ({numbers.count(len(paths), 'trace')})")


def _busy_sentence(report: Report) -> str:
    shares = sorted(row.busy_fraction for row in report.devices)
    if len(shares) == 1:
        subject, busy, idle = "the GPU was", numbers.percent(shares[0]), numbers.percent(1 - shares[0])
    else:
        subject = f"the {len(shares)} GPUs were"
        busy, idle = _range(shares), _range([1 - share for share in reversed(shares)])
    sentence = f"{subject} busy {busy} of {window(report)}"
    causes = idle_causes(report)
    if not causes or shares[0] > 0.97:
        return f"{sentence}."
    return f"{sentence}; {idle} idle, {steps.why(causes)}."


def _work_sentence(report: Report) -> str:
    largest = [row for row in report.categories if row.share_of_device_time >= 0.05][:3]
    if not largest:
        return ""
    listed = [
        f"{numbers.percent(row.share_of_device_time)} {names.shorten(row.category, 40)}" for row in largest
    ]
    return f"{'Its' if len(report.devices) == 1 else 'Their'} work: {_listing(listed)}."


def _waiting(report: Report) -> str:
    """Busy time that was not work: collectives in which a rank only waited for another, and for whom."""
    inside = sum(row.busy_inside_collectives_us for row in report.idle)
    share = inside / sum(row.window_us for row in report.devices) if inside else 0.0
    if share < 0.01:
        return ""
    text = (
        f"{numbers.percent(share)} of GPU time ({numbers.time(inside)}) was spent inside collectives, "
        "waiting for another rank."
    )
    if report.ranks is None or _slow_ranks(report):
        return text
    return f"{text} {rank_lines.verdict(report.ranks)}"


def _slow_ranks(report: Report) -> str:
    """Who makes the run slower, which comes first: where, by how much, and why; empty where none does."""
    if report.ranks is None or report.ranks.verdict.status not in ("straggler", "link"):
        return ""
    return rank_lines.verdict(report.ranks)


def _host_headline(report: Report) -> str:
    rows = host_ops(report)
    total = sum(row.host_self_us for row in rows)
    if not total and report.compilation is not None:
        return "This is a compile log without a trace: it says what was compiled, not what ran."
    if memory.is_alone(report):
        return memory.alone(report)
    if not total:
        return "The recording holds neither device work nor ops."
    recorded = "as recorded under the profiler, " if report.as_it_runs is None else ""
    span = f"{window(report)}: " if report.steps else ""
    top = [
        f"{numbers.percent(row.host_self_us / total)} in {names.shorten(row.name, 48)}" for row in rows[:3]
    ]
    where = f"{span}{numbers.time(total)} in ops and runtime calls, {_listing(top)}"
    ranks = len({row.rank for row in report.sources})
    apart = (
        f" Its {ranks} ranks are not compared: who waits for whom is known of collectives that run on GPUs, "
        "not of those on the host (gloo). To find a late one, report each rank's trace by itself: the "
        "others spend more time in collectives."
    )
    return f"No device work was recorded. On the host, {recorded}{where}.{apart if ranks > 1 else ''}"


def _range(sorted_shares: list[float]) -> str:
    low, high = numbers.percent(sorted_shares[0]), numbers.percent(sorted_shares[-1])
    return low if low == high else f"{low} to {high}"


def _listing(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
