"""The report's page: the document and its sentences, as the page's script draws them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kinetoscope import numbers
from kinetoscope.document import EnvironmentRow, Health, IdleRow, RanksListing, Report
from kinetoscope.document.page import AllocatorEvents, Page
from kinetoscope.document.timeline import PackedColumn, Timeline
from kinetoscope.render import html, names, palette
from kinetoscope.render.blocks import *
from kinetoscope.views import (
    compiled,
    findings,
    graph_names,
    headline,
    kernels,
    memory,
    overview,
    ranks,
    serving,
    sources,
    steps,
    whatif,
    whole_run,
)

if TYPE_CHECKING:
    from kinetoscope.document.difference import Difference

PARTS = 12  # of the critical path
TOP = 5  # kernels on the first screen
ADVICE = 220  # characters
UNREMARKABLE = "Nothing stands out: no rule finds a change of the program that would pay."
# What a recording lacks without an option of `kinetoscope run`.
UNRECORDED = {
    "stacks": "the lines of your code that launch eager work",
    "shapes": "the shapes of ops' inputs",
    "memory": "who allocates the memory",
}


class Sentences(msgspec.Struct, frozen=True, kw_only=True):
    title: list[str]
    verdict: str
    notes: list[str]
    headline: str
    timing: str
    compilation: str
    window: str
    savings: list[list[str | Text]]  # words of the findings, some of them links; ``measured`` is theirs too
    together: str
    measured: list[str]
    graph_labels: list[str]  # of the graphs, in their order
    devices: list[overview.Bar]
    program: str  # the command that was recorded; empty where it is not known
    # figures that stand first: each with what it is, and the place that it leads to
    cards: list[tuple[str, str, str]]
    roofline: kernels.Roofline
    peaks: list[tuple[str, str]]  # of the memory's peaks: the title, and of what that is
    memory_colours: dict[str, str]
    uses: dict[str, str]
    use_colours: dict[str, str]
    category_colours: dict[str, str]
    cause_colours: dict[str, str]
    phases: dict[str, tuple[str, str]]  # of a compilation: what each is called, and its colour
    sides: dict[str, str] = {}  # what is compared, and how long a step of it takes; empty on a report
    blocks: dict[str, list[Block]] = {}  # what views have of each part of the page


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """The data of the page's script, as JSON."""

    report: Report
    sentences: Sentences


def sentences(report: Report, inputs: Sequence[str]) -> Sentences:
    """The page's sentences, in the words of all renderers."""
    together = numbers.together
    return Sentences(
        title=headline.title(report),
        verdict=headline.verdict(report),
        notes=headline.notes(report),
        headline=together(headline.headline(report)),
        timing=together(headline.timing(report) or ""),
        compilation=together(headline.compilation(report) or ""),
        window=together(headline.recorded_window(report)),
        savings=[[_together(part) for part in findings.saving_parts(report, row)] for row in report.findings],
        together=together(" ".join(filter(None, (findings.little(report), findings.together(report))))),
        measured=[findings.measured(row) for row in report.findings],
        graph_labels=graph_names.graph_labels(report),
        devices=overview.device_bars(report),
        program=_program(report),
        cards=cards(report),
        roofline=kernels.roofline(report),
        peaks=[memory.headline(peak) for peak in report.memory_peaks],
        memory_colours=palette.MEMORY,
        uses=overview.USES,
        use_colours=palette.USES,
        category_colours=palette.CATEGORIES,
        cause_colours=palette.CAUSES,
        phases=palette.PHASES,
        blocks=_blocks(report, inputs),
    )


def _blocks(report: Report, inputs: Sequence[str]) -> dict[str, list[Block]]:
    found = {
        "first": list(_first(report)),
        "findings": list(islice(findings.section(report, 1, everything=True), 1)),
        "unrecorded": list(_unrecorded(report)),
        "kernels": list(_top_kernels(report)),
        "waits": [*_critical_path(report), *_idle(report)],
        "overview": overview.page(report, inputs),
        "graphs": list(overview.graphs(report)),
        "ops": list(overview.ops(report)),
        "steps": [
            *whole_run.thread(report, overview.ALL),
            *whole_run.section(report, overview.ALL),
            *serving.section(report.serving, overview.ALL),
            *steps.listing(report),
        ],
        "devices": list(steps.devices(report)),
        "allocator": list(memory.allocator(report)),
        "ranks": ranks.page(report.ranks) if report.ranks else [],
        "about": list(sources.listing(report)),
    }
    found |= compiled.blocks(report)
    for at, row in enumerate(report.memory_peaks):
        found |= {f"answer {at}": list(memory.answer(row)), f"peak {at}": list(memory.peak(row))}
    return found | {f"memory {at}": list(memory.device(row)) for at, row in enumerate(report.memory)}


def cards(report: Report) -> list[tuple[str, str, str]]:
    """The figures that stand first: each with what it is, and the place of the page that it leads to."""
    own, page, shown = report.as_it_runs, report.page, list[tuple[str, str, str]]()
    if own:
        measured = f"{steps.unit(report)} time, as it runs ({own.step_us.n} timed)"
        shown.append((numbers.time(own.step_us.median), measured, "steps"))
    device = report.devices[0] if len(report.devices) == 1 else None
    if own and own.busy_fraction is not None:
        shown.append((numbers.percent(own.busy_fraction), "GPU busy, as it runs", "timeline"))
    elif device:
        of = f"GPU busy, of {numbers.time(device.window_us)} as recorded"
        shown.append((numbers.percent(device.busy_fraction), of, "timeline"))
    elif report.devices:
        shares = [row.busy_fraction for row in report.devices]
        least, most = numbers.percent(min(shares)), numbers.percent(max(shares))
        shown.append((f"{least} to {most}", "GPUs busy, as recorded", "timeline"))
    if page and page.peak_memory_bytes:
        sizes = [row.total_memory_bytes for row in report.environment.devices if row.total_memory_bytes]
        of = f" of {numbers.size(max(sizes))}" if sizes else ""
        whose = f"peak GPU memory{of}" if report.devices else "peak memory of the process"
        place = "memory" if report.memory or report.memory_peaks else "about"
        shown.append((numbers.size(page.peak_memory_bytes), whose, place))
    launching = report.launching[0] if len(report.launching) == 1 else None
    if launching and launching.launches_per_step is not None:
        each = launching.launches_per_step
        often = numbers.count(int(each)) if each == int(each) else numbers.rate(each)
        of = f"launches per {steps.unit(report)}: kernels, copies and memsets"
        shown.append((often, of, "steps"))
    elif report.devices:
        launched = numbers.count(sum(row.launches for row in report.launching or report.kernels))
        shown.append((launched, "kernels, copies and memsets, all that were recorded", "kernels"))
    if device and device.communication_us > 0:
        of = f"exposed of {numbers.time(device.communication_us)} communication"
        place = "kernels&category=communication"
        shown.append((numbers.time(device.exposed_communication_us), of, place))
    return shown


def _program(report: Report) -> str:
    """The command as one would type it: the interpreter by its name alone."""
    command = report.page.command if report.page else []
    return names.plain(shlex.join([PurePath(command[0]).name, *command[1:]])) if command else ""


def _first(report: Report) -> Iterable[Block]:
    """The change that is worth most and what it buys, or that nothing stands out; then where time goes."""
    best = next(iter(findings.worth_doing(report)), None)
    said = numbers.together(headline.headline(report))
    if best is None and not (report.devices or report.ops):
        yield Heading(said, level=1)
        return
    if best is None:
        yield Heading(UNREMARKABLE, level=1)
    else:
        saving = findings.saving_parts(report, best)
        words = plain(saving)
        has_share = bool(saving) and best.share_of_step > 0 and bool(report.steps)
        share = f", {numbers.percent(best.share_of_step)} of it" if has_share else ""
        promise = f"{words[0].upper()}{words[1:]}{share}: " if words else ""
        yield Heading(names.ended_early(best.advice, ADVICE), level=1)
        yield Line((promise, Text(best.title, "", "finding", best.rule), "."))
    yield Prose(said)


def _top_kernels(report: Report) -> Iterable[Block]:
    if not report.kernels:
        return
    largest = report.kernels[0].share_of_device_time
    total = numbers.time(sum(row.device_time_us for row in report.kernels))
    yield Heading("Top kernels", f"share of {total} of device time")
    yield table(
        report.kernels[:TOP],
        field("kernel", "name", lambda row: kernel(row.name, row.short_name)),
        field("share", "share", "share_of_device_time"),
        field("", "bar", lambda row: (overview.length(row.category, row.share_of_device_time, largest),)),
        field("device time", "time", "device_time_us"),
        field("launches", "count", "launches"),
        field("median", "time", "median_us"),
        field("category", "text", lambda row: Text(row.category, "", "category", row.category)),
    )
    if len(report.kernels) > TOP:
        yield Line((Text(f"all {numbers.count(len(report.kernels), 'kernel')}", "", "part", "kernels"),))


def _critical_path(report: Report) -> Iterable[Block]:
    """The work that the step waits for, one piece after another; parts lead to their first events."""
    replay = report.replay
    if replay is None or not replay.critical_path:
        return
    what = "one step" if report.steps else "the recording"
    off = f"the replay of what was recorded is off by {numbers.percent(abs(replay.error))}"
    longest = max(part.us for part in replay.critical_path) or 1.0
    yield Heading("Critical path", f"of {what} replayed: {numbers.time(replay.step_us)}; {off}")
    yield table(
        replay.critical_path,
        field("part", "name", lambda part: Text(part.text, "", *_event(replay.rank, part.events))),
        field(
            "",
            "bar",
            lambda part: (Segment(part.us / longest, palette.USES[palette.COMPUTE], label=part.text),),
        ),
        field("time", "time", "us"),
        field("times", "count", lambda part: part.count or None),
        field("where", "words", whatif.where),
        most=PARTS,
        noun="smaller part",
    )


def _event(rank: int, events: Sequence[int]) -> tuple[Target, str]:
    return ("event", f"{rank}:{events[0]}") if events else ("", "")


def _idle(report: Report) -> Iterable[Block]:
    if not (causes := headline.idle_causes(report)):
        return
    window = headline.recorded_window(report)
    yield Heading("Idle, and why", f"share of {window}; each leads to its longest gap")
    yield table(
        causes,
        field("cause", "name", lambda row: Text(row.cause, "", "part", f"timeline&i={row.cause}")),
        field("", "bar", _cause),
        field("share", "share", "share_of_window"),
        field("time", "time", "idle_us"),
        field("mostly", "words", lambda row: row.text),
    )


def _cause(row: IdleRow) -> tuple[Segment]:
    colour = palette.CAUSES.get(row.cause, palette.OTHER)
    return (
        Segment(row.share_of_window, colour, label=f"{row.cause}: {numbers.percent(row.share_of_window)}"),
    )


def _unrecorded(report: Report) -> Iterable[Block]:
    missing = report.page.unrecorded if report.page else []
    if missing:
        parts: list[Inline] = ["Not recorded: "]
        for option in missing:
            parts += [f"{UNRECORDED[option]} (", Text(f"--{option}", "", "command"), "), "]
        yield Line((*parts[:-1], "). Each is recorded on request."))


def _together(part: Inline) -> Inline:
    return numbers.together(part) if isinstance(part, str) else part


def render(report: Report, inputs: Sequence[str], *, served: bool = False) -> str:
    """The report of ``inputs`` (as they were typed: the next commands name them). Where ``kinetoscope view``
    has it ``served``, the page may ask that server, and no other, for the trace."""
    return _page(report, sentences(report, inputs), served=served)


def event_place(report: Report, event: int) -> str | None:
    """The end of the page's address that shows an event, by its position in the file; None: not named."""
    drawn = report.page.timeline if report.page else None
    marks = drawn.marks if drawn else ()
    return next((f"#timeline&k={mark.row}" for mark in marks if mark.event == event), None)


def render_ranks(listing: RanksListing) -> str:
    """The comparison of many ranks, of which nothing else was kept."""
    report = msgspec.structs.replace(
        _empty(listing.kinetoscope, listing.devices), ranks=listing.ranks, unread=listing.ranks.unread
    )
    words = msgspec.structs.replace(
        sentences(report, [""]),
        title=ranks.title(listing),
        headline=numbers.together(ranks.verdict(listing.ranks)),
    )
    words.blocks["ranks"] += ranks.what_to_change(listing, ranks.FINDINGS)
    words.blocks["ranks"] += ranks.served(listing, overview.ALL, whole=True)
    return _page(report, words)


def render_difference(found: Difference) -> str:
    """Two recordings compared: both steps one above the other, and what differs."""
    from kinetoscope.document.collect import timeline  # with it and with what follows come analyses
    from kinetoscope.views import difference

    drawn = timeline.compared(found.timelines or ())
    ends = (
        max((piece.start_us + piece.duration_us for piece in side), default=0.0)
        for side in found.timelines or ((), ())
    )
    page = Page(
        timeline=drawn, program=[], clocks=[], modules=[], frame_texts=[], roofs=[], benches=[], meanings={}
    )
    report = msgspec.structs.replace(_empty(found.kinetoscope), page=page)
    words = msgspec.structs.replace(
        sentences(report, [""]),
        title=[difference.title(found)],
        headline=numbers.together(difference.headline(found)),
        verdict=difference.REMARKS[found.comparability],
        sides={name: numbers.time(end) for name, end in zip(("base", "new"), ends, strict=True)},
        blocks=difference.page(found),
    )
    return _page(report, words)


def _empty(version: str, devices: Iterable[str] = ()) -> Report:
    return Report(
        kinetoscope=version, environment=EnvironmentRow(device_names=list(devices)), sources=[], devices=[],
        categories=[], kernels=[], steps=[], ops=[], findings=[], idle=[],
        health=Health(verdict="good", notes=[]),
    )  # fmt: skip


def _page(report: Report, words: Sentences, *, served: bool = False) -> str:
    return html.page(
        title=names.plain(words.title[0]),
        headline=words.headline,
        verdict=words.verdict,
        data=packed(report, words),
        served=served,
    )


def packed(report: Report, words: Sentences) -> bytes:
    """The page's data: JSON text, then the numbers of its timeline's and its allocators' columns."""
    columns, page = list[PackedColumn](), report.page
    if page:
        drawn = _bare(page.timeline, columns) if page.timeline else None
        allocator = [_bare(one, columns) for one in page.allocator]
        page = msgspec.structs.replace(page, timeline=drawn, allocator=allocator)
        report = msgspec.structs.replace(report, page=page)
    return html.packed(Shown(report, words), (column.data for column in columns))


HasColumns = TypeVar("HasColumns", Timeline, AllocatorEvents)


def _bare(part: HasColumns, columns: list[PackedColumn]) -> HasColumns:
    """The part with no numbers in its columns, which are put behind those that are there."""
    columns += part.columns
    bare = [msgspec.structs.replace(column, data=b"") for column in part.columns]
    return msgspec.structs.replace(part, columns=bare)
