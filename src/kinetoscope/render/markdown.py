"""The report as GitHub-flavoured Markdown: for issues, pull requests and chats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kinetoscope import numbers
from kinetoscope.document import Report
from kinetoscope.render import names
from kinetoscope.views import bars, headline, own_pace, pace_lines, phase_lines
from kinetoscope.views import ranks as rank_lines
from kinetoscope.views.next_commands import next_commands

KERNELS = 20
OPS = 20

# What Markdown or inline HTML would read as more than text; an underscore inside a word is only text.
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BLOCK = re.compile(r"^(?:([-+#=])|(\d+)([.)])(?=\s|$))")
# GitHub looks for these after Markdown is done, so no backslash stops them: a name must not call a person.
_REFERENCE = re.compile(r"@(?=\w)|(?<!\w)#(?=\d)")


def render(report: Report, inputs: Sequence[str]) -> str:
    """The report of ``inputs`` (as they were typed: the next commands name them)."""
    return "\n".join(_lines(report, inputs)) + "\n"


def escape(text: str) -> str:
    """``text`` so that Markdown shows it as it is."""
    text = _SPECIAL.sub(r"\\\g<0>", names.plain(text))
    text = "".join(_HTML.get(character, character) for character in text)
    text = _REFERENCE.sub(r"\g<0>&#8203;", text)
    return _BLOCK.sub(lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\{found[3]}", text)


def code(text: str) -> str:
    """``text`` as a code span that is safe inside a table cell."""
    content = names.plain(text).replace("|", "¦")
    fence = "`" * (max((len(run) for run in re.findall("`+", content)), default=0) + 1)
    pad = " " if "`" in content else ""
    return f"{fence}{pad}{content or ' '}{pad}{fence}"


def _lines(report: Report, inputs: Sequence[str]) -> Iterable[str]:
    yield f"# {escape(' · '.join(headline.title(report)))}"
    yield ""
    mark = "✅" if report.health.verdict == "good" else "⚠️"
    yield f"{mark} {escape(headline.verdict(report))}"
    if notes := headline.notes(report):
        yield from ("", *(f"- {escape(note)}" for note in notes))
    yield ""
    yield f"**{escape(headline.headline(report))}**"
    for line in (headline.timing(report), headline.compilation(report)):
        if line:
            yield from ("", escape(line))
    yield from _findings(report)
    yield from _busy(report)
    yield from _ranks(report)
    yield from _phases(report)
    yield from _pace(report)
    yield from _categories(report)
    yield from _graphs(report)
    yield from _kernels(report)
    if not report.devices:
        yield from _ops(report)
    yield from ("", "## Next", "", "```sh")
    yield from (
        f"{names.plain(command.line)}  # {command.shows}" for command in next_commands(report, inputs)
    )
    yield "```"


def _findings(report: Report) -> Iterable[str]:
    if not report.findings:
        return
    yield from ("", "## Findings", "")
    for number, row in enumerate(report.findings, 1):
        saving = f", {saving}" if (saving := headline.saving(report, row)) else ""
        where = f" ({code(row.source)})" if row.source else ""
        yield f"{number}. **{escape(row.title)}** ({escape(row.severity)}{saving}){where}"
        yield f"   {escape(row.advice)}"
        if measured := headline.measured(row):
            yield f"   **{escape('M' + measured[1:])}** ({escape(row.measured_basis or '')})."
        yield from (f"   - {escape(item.text)}" for item in row.evidence)
    if together := headline.together(report):
        yield from ("", escape(together))
    yield from (f"- {escape(problem)}" for problem in report.unread)


def _busy(report: Report) -> Iterable[str]:
    if not report.devices:
        return
    yield from ("", f"## Busy: share of {headline.recorded_window(report)}", "")
    yield from _head("device", "busy", "compute", "communication", "exposed", "copy", "idle", "window")
    ranks = len({row.rank for row in report.devices}) > 1
    for row in report.devices:
        yield _row(
            bars.device_label(row, ranks),
            _percent(row.busy_fraction),
            numbers.time(row.compute_us),
            numbers.time(row.communication_us),
            numbers.time(row.exposed_communication_us),
            numbers.time(row.copy_us),
            numbers.time(row.idle_us),
            numbers.time(row.window_us),
        )
    if own := own_pace.idle(report):
        yield from ("", *_head("as it runs, idle because", "share of step"))
        yield from (_row(escape(cause), _percent(share)) for cause, share in own)
    if causes := headline.idle_causes(report):
        because = "as recorded, idle because" if own else "idle because"
        yield from ("", *_head(because, "time", "share of window", "mostly"))
        for cause in causes:
            time, share = numbers.time(cause.idle_us), _percent(cause.share_of_window)
            yield _row(escape(cause.cause), time, share, escape(names.shorten(cause.text or "", 200)))


def _phases(report: Report) -> Iterable[str]:
    if found := phase_lines.lines(report):
        yield from ("", "## Phases: unlike steps apart", "")
        yield from _head(*phase_lines.HEADS)
        for line in found:
            kernel = code(names.shorten(line.kernel, 80)) if line.kernel else ""
            yield _row(*map(escape, line[:-1]), kernel)


def _pace(report: Report) -> Iterable[str]:
    if found := pace_lines.lines(report):
        yield from ("", "## Steps, launches, memory", "")
        yield from (f"- {what}: {escape(sentence)}" for what, sentence in found)


def _categories(report: Report) -> Iterable[str]:
    if not report.categories:
        return
    total = sum(row.device_time_us for row in report.categories)
    yield from ("", f"## GPU time by category: share of {numbers.time(total)} of device time", "")
    yield from _head("category", "share", "device time", "launches", "kernels")
    for row in report.categories:
        yield _row(
            escape(row.category),
            _percent(row.share_of_device_time),
            numbers.time(row.device_time_us),
            numbers.count(row.launches),
            numbers.count(row.distinct_kernels),
        )


def _graphs(report: Report) -> Iterable[str]:
    if not report.graphs:
        return
    yield from ("", "## Compiled graphs", "")
    yield from _head("graph", "calls", "device time", "share of device time", "of its own time")
    for row, label in zip(report.graphs, headline.graph_labels(report), strict=True):
        parts = ", ".join(
            f"{escape(part.category)} {_percent(part.share_of_graph)}" for part in row.categories[:5]
        )
        yield _row(
            code(label),
            numbers.count(row.calls),
            numbers.time(row.device_time_us),
            _percent(row.share_of_device_time),
            parts,
        )


def _ranks(report: Report) -> Iterable[str]:
    if report.ranks is None:
        return
    yield from ("", "## Ranks", "")
    yield from (f"- {escape(sentence)}" for sentence in rank_lines.lines(report.ranks))
    for shown in rank_lines.grids(report.ranks):
        yield from grid_lines(shown)


def grid_lines(shown: rank_lines.Grid) -> Iterable[str]:
    """A table under a heading of its own."""
    yield from ("", f"### {escape(shown.title)}: {escape(shown.basis)}", "")
    yield from _head(*map(escape, shown.heads))
    yield from (_row(*map(escape, row)) for row in shown.rows)


def _kernels(report: Report) -> Iterable[str]:
    if not report.kernels:
        return
    yield from ("", "## Top kernels: share of device time; median and range of one launch", "")
    yield from _head("kernel", "share", "device time", "launches", "median", "min–max", "category")
    for row in report.kernels[:KERNELS]:
        yield _row(
            code(names.shorten(row.short_name, 80)),
            _percent(row.share_of_device_time),
            numbers.time(row.device_time_us),
            numbers.count(row.launches),
            numbers.time(row.median_us),
            numbers.span(row.min_us, row.max_us),
            escape(row.category),
        )
    if len(report.kernels) > KERNELS:
        yield from ("", f"… and {numbers.count(len(report.kernels) - KERNELS, 'kernel')} more")


def _ops(report: Report) -> Iterable[str]:
    rows = headline.host_ops(report)
    if not rows:
        return
    total = sum(row.host_self_us for row in rows)
    yield from ("", f"## Top ops: share of {numbers.time(total)} of host time in ops and runtime calls", "")
    yield from _head("op", "share", "self", "total", "calls")
    for row in rows[:OPS]:
        yield _row(
            code(names.shorten(row.name, 80)),
            _percent(row.host_self_us / total if total else 0.0),
            numbers.time(row.host_self_us),
            numbers.time(row.host_total_us),
            numbers.count(row.calls),
        )


def _head(first: str, *others: str) -> list[str]:
    return [_row(first, *others), _row("---", *("---:" for _ in others))]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(fraction: float) -> str:
    return escape(numbers.percent(fraction))
