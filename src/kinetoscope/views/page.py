"""The report's page: the document and its sentences, as the page's script draws them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kinetoscope import numbers
from kinetoscope.document import EnvironmentRow, Health, IdleRow, RanksListing, Report
from kinetoscope.render import html, names, palette
from kinetoscope.render.blocks import Inline, Text
from kinetoscope.views import findings, graph_names, headline, memory, overview, ranks, steps


class Command(msgspec.Struct, frozen=True):
    line: str
    shows: str


class Sentences(msgspec.Struct, frozen=True, kw_only=True):
    """The page's sentences: ``savings`` (words, some of them links), ``alone`` and ``measured`` are of the
    findings, ``graph_labels`` of the graphs, ``peaks`` (title, of what that is), ``fits`` and ``given_back``
    (one a row) of the memory's peaks, in their order. ``lateness`` are its causes, ``operations`` those of a
    pipeline."""

    title: list[str]
    verdict: str
    notes: list[str]
    headline: str
    timing: str
    compilation: str
    window: str
    savings: list[list[str | Text]]
    alone: list[str]
    together: str
    measured: list[str]
    graph_labels: list[str]
    idle: list[IdleRow]
    devices: list[overview.Bar]
    phase_heads: list[str]
    phases: list[list[str]]
    pace: list[tuple[str, str]]
    commands: list[Command]
    peaks: list[tuple[str, str]]
    fits: list[str | None]
    given_back: list[list[str]]
    memory_parts: dict[str, str]
    memory_colours: dict[str, str]
    ranks: list[str]
    lateness: dict[str, str]
    operations: dict[str, str]
    uses: dict[str, str]
    use_colours: dict[str, str]
    category_colours: dict[str, str]
    cause_colours: dict[str, str]


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
        alone=[findings.alone(report, row) for row in report.findings],
        together=together(findings.together(report)),
        measured=[findings.measured(row) for row in report.findings],
        graph_labels=graph_names.graph_labels(report),
        idle=headline.idle_causes(report),
        devices=overview.device_bars(report),
        phase_heads=list(steps.HEADS),
        phases=[list(row) for row in steps.phase_lines(report)],
        pace=[(what, together(text)) for what, text in steps.pace_lines(report)],
        commands=[Command(*command) for command in overview.next_commands(report, inputs)],
        peaks=[memory.headline(peak) for peak in report.memory_peaks],
        fits=[
            together(memory.fits(peak.fits, peak.failed_bytes)) if peak.fits else None
            for peak in report.memory_peaks
        ],
        given_back=[
            [together(memory.given_back(row)) for row in peak.given_back] for peak in report.memory_peaks
        ],
        memory_parts=memory.PARTS,
        memory_colours=palette.MEMORY,
        ranks=[together(line) for line in ranks.lines(report.ranks)] if report.ranks else [],
        lateness=ranks.WHY,
        operations=ranks.OPERATIONS,
        uses=overview.USES,
        use_colours=palette.USES,
        category_colours=palette.CATEGORIES,
        cause_colours=palette.CAUSES,
    )


def _together(part: Inline) -> Inline:
    return numbers.together(part) if isinstance(part, str) else part


def render(report: Report, inputs: Sequence[str], *, served: bool = False) -> str:
    """The report of ``inputs`` (as they were typed: the next commands name them).

    Args:
        served: ``kinetoscope view`` serves it: the page may ask that server, and no other, for the trace.
    """
    return _page(report, sentences(report, inputs), served=served)


def render_ranks(listing: RanksListing) -> str:
    """The comparison of many ranks, of which nothing else was kept."""
    environment = EnvironmentRow(device_names=list(listing.devices))
    report = Report(
        kinetoscope=listing.kinetoscope, environment=environment, sources=[], devices=[], categories=[],
        kernels=[], steps=[], ops=[], findings=[], health=Health(verdict="good", notes=[]), idle=[],
        ranks=listing.ranks, unread=listing.ranks.unread,
    )  # fmt: skip
    words = msgspec.structs.replace(
        sentences(report, [""]),
        title=ranks.title(listing),
        headline=numbers.together(ranks.verdict(listing.ranks)),
        commands=[],
    )
    return _page(report, words)


def _page(report: Report, words: Sentences, *, served: bool = False) -> str:
    return html.page(
        title=names.plain(words.title[0]),
        headline=words.headline,
        verdict=words.verdict,
        data=packed(report, words),
        served=served,
    )


def packed(report: Report, words: Sentences) -> bytes:
    """The data of the page: the timeline's columns, which are numbers, follow the JSON text."""
    columns, page = [], report.page
    if page and page.timeline:
        columns = page.timeline.columns
        bare = [msgspec.structs.replace(column, data=b"") for column in columns]
        timeline = msgspec.structs.replace(page.timeline, columns=bare)
        report = msgspec.structs.replace(report, page=msgspec.structs.replace(page, timeline=timeline))
    return html.packed(Shown(report, words), (column.data for column in columns))
