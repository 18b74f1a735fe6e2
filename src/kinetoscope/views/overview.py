"""The report: a first screen, or the whole of it, or a file that has room for everything."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from rich.console import Console

from kinetoscope import numbers
from kinetoscope.document import DeviceRow, GraphRow, Report
from kinetoscope.render import names, palette, terminal
from kinetoscope.render.blocks import *
from kinetoscope.render.formats import Extent, View
from kinetoscope.render.palette import COMMUNICATION, COMPUTE, COPY, IDLE
from kinetoscope.render.terminal import Screen
from kinetoscope.views import findings, graph_names, headline, ranks, serving, steps, whole_run

Section = Callable[[int], Iterable[Block]]

# Rows of each section: of the whole report; of a first screen; where that is too much; what it grows by.
WHOLE = {
    "lead": 4, "findings": 3, "busy": 8, "ranks": 8, "serving": 8, "run": 8, "phases": 12, "pace": 99,
    "categories": 8, "graphs": 3, "kernels": 10, "ops": 12, "next": 9,
}  # fmt: skip
FILE = {"kernels": 20, "ops": 20, "ranks": 8}  # a file holds all of what is not named here
ALL = 1_000_000
SCREEN = Screen(
    least={"lead": 2, "findings": 1, "busy": 1, "serving": 4, "next": 2},
    less=(("lead", 1), ("next", 1), ("busy", 0)),
    more=(
        ("findings", 2), ("ranks", 1), ("thread", 3), ("findings", 3), ("busy", 4), ("ops", 5), ("run", 4),
        ("phases", 4), ("kernels", 3), ("next", 9), ("categories", 4), ("kernels", 5), ("graphs", 2),
        ("ops", 12), ("busy", 8), ("kernels", 8), ("categories", 8), ("thread", 6),
    ),
)  # fmt: skip
STEPS = 6
FEW_LINES = 8  # of the thread's, in the page's first part
IDLE_WORTH = 0.3  # of the window
SEEN = 0.0005  # of the window: 0.1 %, as it is written
WORTH_WORDS = 0.05  # of the window, unexplained

# Without colour the uses of time are still distinguished, by their fill.
FILLS = {COMPUTE: "█", COMMUNICATION: "▓", COPY: "▒", IDLE: "░"}
# What a segment stands for: communication counts only where nothing computes, copies where neither runs.
USES = {COMPUTE: "compute", COMMUNICATION: "exposed communication", COPY: "exposed copies", IDLE: "idle"}
_VERDICT_STYLES = {"good": "green", "degraded": "yellow", "unreliable": "bold red"}


def show(report: Report, inputs: Sequence[str], console: Console, *, whole: bool = False) -> None:
    """Print the report of ``inputs`` (as they were typed: the next commands name them): what fits on a
    screen, or the ``whole``."""
    if whole:
        terminal.show(blocks(report, inputs, "whole"), console)
    else:
        SCREEN.show(_sections(report, inputs, "screen"), console)


def view(report: Report, inputs: Sequence[str], page: Callable[[], str] | None = None) -> View:
    return View(
        document=lambda: report,
        blocks=partial(blocks, report, inputs),
        page=page,
        results=lambda: (report.kinetoscope, findings.results(report, inputs)),
    )


def blocks(report: Report, inputs: Sequence[str], extent: Extent) -> list[Block]:
    """All sections, with the rows that the extent has room for."""
    rows = WHOLE if extent == "whole" else FILE
    sections = _sections(report, inputs, extent)
    return [block for name, section in sections.items() for block in section(rows.get(name, ALL))]


def _sections(report: Report, inputs: Sequence[str], extent: Extent) -> Mapping[str, Section]:
    sections: dict[str, Section] = {"lead": partial(_lead, report, extent)}
    if report.findings if extent == "file" else findings.worth_doing(report):
        sections["findings"] = partial(findings.section, report, everything=extent == "file")
    summed = not serving.leads(report.serving)
    if report.devices:
        sections["busy"] = partial(_busy, report, extent)
        sections["ranks"] = partial(ranks.section, report, whole=extent != "screen")
    sections["serving"] = partial(serving.section, report.serving, whole=extent != "screen", summed=summed)
    if extent != "screen" or _waits(report) or not report.devices:
        sections["thread"] = partial(whole_run.thread, report)
    sections |= {"run": partial(whole_run.section, report), "phases": partial(steps.phases, report)}
    if report.devices:
        sections["pace"] = partial(steps.pace, report)
        sections["categories"] = partial(_categories, report)
        sections["graphs"] = partial(graphs, report)
        sections["kernels"] = partial(_kernels, report)
    else:
        sections["ops"] = partial(ops, report)
    return sections | {"next": partial(_next, report, inputs, extent)}


def _waits(report: Report) -> bool:
    """Whether a device is idle for as long as it is worth to know what its thread does meanwhile."""
    return any(device.idle_us >= IDLE_WORTH * device.window_us for device in report.devices)


def page(report: Report, inputs: Sequence[str]) -> list[Block]:
    """The end of the page's first part; its beginning is drawn."""
    summed = not serving.leads(report.serving)
    of_server = serving.section(report.serving, ALL, whole=False, summed=summed)
    of_thread = whole_run.thread(report, FEW_LINES) if _waits(report) or not report.devices else ()
    of_steps = of_server, of_thread, steps.phases(report, ALL), steps.pace(report, ALL)
    shown = [block for blocks in of_steps for block in blocks]
    return [*_categories(report, ALL), *shown, *_next(report, inputs, "file", ALL)]


def _lead(report: Report, extent: Extent, most: int) -> Iterable[Block]:
    title = " · ".join(headline.title(report))
    yield Only("page", Heading(title, level=1))
    yield Only("screen", Line((Text(title, "dim"),), overflow="cut"))
    good = report.health.verdict == "good"
    yield Status(headline.verdict(report), good, _VERDICT_STYLES.get(report.health.verdict, ""))
    notes = headline.notes(report)
    if notes:
        yield Items(tuple(notes[:most]))
    yield from rest(len(notes) - most, "note")
    yield Line()
    yield Prose(headline.headline(report), "bold")
    if extent != "screen" and (timing := headline.timing(report)):
        yield Prose(timing)
    if compiled := headline.compilation(report):
        yield Prose(compiled)


class BarPart(Struct, frozen=True):
    """A part of a bar: what the time was used for, and its share of the whole bar (0 to 1)."""

    use: str
    share: float


class Bar(Struct, frozen=True):
    """How the time of a device or step divides; the segments' shares sum to one."""

    label: str  # what it stands for: ``GPU 0``, ``ProfilerStep#3``
    time_us: float  # the time that the whole bar stands for
    busy: float  # share of that time with work on the device
    segments: tuple[BarPart, ...]

    @property
    def drawn(self) -> tuple[Segment, ...]:
        return tuple(Segment(part.share, palette.USES[part.use], FILLS[part.use]) for part in self.segments)

    @property
    def uses(self) -> str:
        """``compute 40 % · copy 3 %``."""
        parts = (part for part in self.segments if part.share >= 0.005 and part.use != IDLE)
        return " · ".join(f"{part.use} {numbers.percent(part.share)}" for part in parts)


def device_bars(report: Report) -> list[Bar]:
    """One bar a device: its window, divided into compute, exposed communication, exposed copies and idle."""
    several = len({row.rank for row in report.devices}) > 1
    return [_device_bar(row, several) for row in report.devices]


def step_bars(report: Report) -> list[Bar]:
    """One bar per step: busy and idle; a step's busy time is added up over the devices of its rank."""
    bars: list[Bar] = []
    for row in report.steps:
        busy = steps.busy_share(report, row)
        bars.append(Bar(row.name, row.duration_us, busy, (BarPart(COMPUTE, busy), BarPart(IDLE, 1 - busy))))
    return bars


def _device_bar(row: DeviceRow, with_rank: bool) -> Bar:
    copy = max(row.busy_us - row.compute_us - row.exposed_communication_us, 0.0)
    busy_parts = ((COMPUTE, row.compute_us), (COMMUNICATION, row.exposed_communication_us), (COPY, copy))
    total = sum(time for _, time in busy_parts)
    scale = row.busy_fraction / total if total else 0.0
    parts = [BarPart(use, time * scale) for use, time in busy_parts if time]
    label = f"rank {row.rank} · GPU {row.device}" if with_rank else f"GPU {row.device}"
    return Bar(label, row.window_us, row.busy_fraction, (*parts, BarPart(IDLE, 1 - row.busy_fraction)))


def _busy(report: Report, extent: Extent, most: int) -> Iterable[Block]:
    talks = any(row.communication_us for row in report.devices)
    exposed = "; communication, copies: exposed" if talks else ""
    yield Heading("Busy", f"share of {headline.recorded_window(report)}{exposed}")
    devices = list(zip(device_bars(report), report.devices, strict=True))
    bars = step_bars(report) if extent == "whole" and len(devices) == 1 else []
    shown = [
        *((bar, bar.uses, row) for bar, row in devices[:most]),
        *((bar, "", None) for bar in bars[:STEPS]),
    ]
    times = {
        "compute": "compute_us", "communication": "communication_us", "exposed": "exposed_communication_us",
        "copy": "copy_us", "idle": "idle_us", "window": "window_us",
    }  # fmt: skip
    yield table(
        shown,
        field("device", "name", lambda row: names.shorten(row[0].label, 24 if row[2] is None else 80)),
        field("", "bar", lambda row: row[0].drawn, only="screen"),
        field("busy", "share", lambda row: row[0].busy, noun="busy"),
        field(
            "",
            "text",
            lambda row: row[1] or f"of {numbers.time(row[0].time_us)}" * (row[2] is None),
            "dim",
            only="screen",
        ),
        *(
            field(title, "time", partial(_device_time, name=name), only="page")
            for title, name in times.items()
        ),
        leave=(1, 3),
        heads=False,
    )
    yield from rest(len(devices) - most, "device")
    yield from rest(len(bars) - STEPS, "step")
    yield from _idle(report, extent)
    if extent == "screen" and (judged := steps.judged(report)):
        yield Prose(judged, "dim")


def _device_time(row: tuple[Bar, str, DeviceRow | None], name: str) -> float | None:
    return None if row[2] is None else getattr(row[2], name)


def _idle(report: Report, extent: Extent) -> Iterable[Block]:
    causes = headline.idle_causes(report)
    own = steps.own_idle(report)
    if own:
        listed = " · ".join(f"{cause} {numbers.percent(share)}" for cause, share in own[:4] if share >= SEEN)
        yield Only("screen", line(Text("as it runs, idle because   ", "dim"), listed))
        columns = Column("as it runs, idle because"), Column("share of step", "share")
        yield Only("page", Table(columns, [*own]))
        causes = causes if extent != "screen" else []
    if not causes:
        return
    recorded = "as recorded, idle because" if own else "idle because"
    listed = " · ".join(
        f"{row.cause} {numbers.percent(row.share_of_window)}"
        for row in causes[:4]
        if row.share_of_window >= SEEN
    )
    yield Only("screen", line(Text(f"{recorded}  ", "dim"), listed))
    for row in causes:
        if row.cause == "unexplained" and row.share_of_window >= WORTH_WORDS and row.text:
            yield Only("screen", Prose(f"unexplained: mostly, {names.shorten(row.text, 300)}", "dim"))
    shown = table(
        causes,
        field(recorded, "text", "cause"),
        field("time", "time", "idle_us"),
        field("share of window", "share", "share_of_window"),
        field("mostly", "words", lambda row: row.text or ""),
    )
    yield Only("page", shown)


def _categories(report: Report, most: int) -> Iterable[Block]:
    if not report.categories:
        return
    total = sum(row.device_time_us for row in report.categories)
    largest = report.categories[0].share_of_device_time
    yield Heading("GPU time by category", f"share of {numbers.time(total)} of device time")
    yield stacked_bar(_share(row.category, row.share_of_device_time) for row in report.categories)
    yield table(
        report.categories,
        field(
            "category",
            "text",
            lambda row: Text(names.shorten(row.category, 22), "", "category", row.category),
        ),
        field("", "bar", lambda row: (length(row.category, row.share_of_device_time, largest),)),
        field("share", "share", "share_of_device_time"),
        field("device time", "time", "device_time_us"),
        field("of window", "share", "share_of_window", only="page"),
        field("launches", "count", "launches", "dim", noun="launch"),
        field("kernels", "count", "distinct_kernels", "dim", noun="kernel"),
        most=most,
        noun="category",
        leave=(6, 5, 1),
        heads=False,
    )


def length(category: str, share: float, largest: float) -> Segment:
    return Segment(share / largest if largest else 0.0, palette.category(category))


def graphs(report: Report, most: int = ALL) -> Iterable[Block]:
    if not report.graphs:
        return
    labels = dict(zip((row.graph for row in report.graphs), graph_names.graph_labels(report), strict=True))
    yield Heading("Compiled graphs", "share of device time; of each graph's own time")
    yield table(
        report.graphs,
        field(
            "graph", "text", lambda row: Text(names.shorten(labels[row.graph], 30), "", "graph", row.graph)
        ),
        field("share of device time", "share", "share_of_device_time"),
        field("device time", "time", "device_time_us"),
        field("calls", "count", "calls", noun="call"),
        field("launches", "count", "launches", only="page"),
        field("by category", "bar", _graph_bar, only="page"),
        field(
            "of its own time",
            "words",
            lambda row: " · ".join(
                f"{names.shorten(part.category, 22)} {numbers.percent(part.share_of_graph)}"
                for part in row.categories[:3]
            ),
            "dim",
        ),
        most=most,
        noun="graph",
        heads=False,
    )


def _graph_bar(row: GraphRow) -> tuple[Segment, ...]:
    return tuple(_share(part.category, part.share_of_graph) for part in row.categories)


def _share(category: str, share: float) -> Segment:
    return Segment(share, palette.category(category), label=f"{category}: {numbers.percent(share)}")


def _kernels(report: Report, most: int) -> Iterable[Block]:
    if not report.kernels:
        return
    yield Heading("Top kernels", "share of device time; median and range of one launch")
    yield table(
        report.kernels,
        field("kernel", "name", lambda row: kernel(row.name, row.short_name)),
        field("category", "category", "category"),
        field("share", "share", "share_of_device_time"),
        field("total", "time", "device_time_us"),
        field("launches", "count", "launches"),
        field("median", "time", "median_us"),
        field("min–max", "number", lambda row: numbers.span(row.min_us, row.max_us), "dim"),
        field("launches smaller than the device", "count", "launches_below_device", only="page"),
        most=most,
        noun="kernel",
        leave=(6, 5, 4, 1),
    )


def ops(report: Report, most: int = ALL) -> Iterable[Block]:
    rows, has_device = headline.host_ops(report), bool(report.devices)
    if not rows:
        return
    total = sum(row.host_self_us for row in rows)
    title = "On the host" if most == ALL else "Top ops"
    whole = f"share of {numbers.time(total)} of host time in ops and runtime calls"
    yield Heading(title, f"self: without what it calls; {whole}")
    yield table(
        rows,
        field("op", "name", lambda row: Text(graph_names.event(report, row.name), "", "op", row.name)),
        field("share", "share", lambda row: row.host_self_us / total if total else 0.0),
        field("self", "time", "host_self_us"),
        field("total", "time", "host_total_us"),
        field("calls", "count", "calls"),
        field("mostly in", "words", "line") if any(row.line for row in rows) else None,
        field("device self", "time", "device_self_us", only="page") if has_device else None,
        field("device total", "time", "device_total_us", only="page") if has_device else None,
        most=most,
        noun="op",
        leave=(3, 4),
    )


def _next(report: Report, inputs: Sequence[str], extent: Extent, most: int) -> Iterable[Block]:
    yield Heading("Next")
    *commands, page = next_commands(report, inputs)
    shown = [*commands[: most - 1], page]
    if extent == "screen":
        quoted = " ".join(map(shlex.quote, inputs))
        shown.append((f"kinetoscope report {quoted} --verbose", "what did not fit here"))
    yield Commands(tuple(shown))


def next_commands(report: Report, inputs: Sequence[str]) -> list[tuple[str, str]]:
    """Commands to type after reading the report of ``inputs`` (as they were typed), the most telling first,
    and what each shows."""
    quoted = " ".join(shlex.quote(item) for item in inputs)
    first = shlex.quote(inputs[0])
    commands: list[tuple[str, str]] = []
    memory = f"kinetoscope memory {quoted}"
    has_failed = any(peak.failed_bytes is not None for peak in report.memory_peaks)
    if has_failed:
        commands.append((memory, "what filled the memory when it ran out"))
    of_ranks = ranks.next_commands(report.ranks.verdict) if report.ranks is not None else []
    commands += of_ranks[:1]
    if report.findings:
        commands.append((f"kinetoscope findings {quoted}", "all findings, with their evidence"))
    commands += of_ranks[1:]
    for finding in findings.worth_doing(report)[:1]:
        command = f"kinetoscope explain {shlex.quote(finding.rule)}"
        commands.append((command, "why the first one is slow"))
    if (unproved := findings.unproved(report)) and unproved.proof:
        saving = numbers.time(unproved.saving_us)
        commands.append((unproved.proof, f"measure the {saving} that {names.plain(unproved.rule)} promises"))
    if report.memory_peaks and not has_failed:
        commands.append((memory, "who has the memory at its peak"))
    if report.categories:
        category = report.categories[0].category
        command = f"kinetoscope kernels {quoted} --category {shlex.quote(category)}"
        commands.append((command, f"every {names.plain(category)} kernel"))
    if report.compilation is not None:
        commands.append((f"kinetoscope graphs {first}", "what torch.compile did"))
    commands.append((f"kinetoscope report {quoted} -o report.html", "this report, whole, as a page"))
    return commands
