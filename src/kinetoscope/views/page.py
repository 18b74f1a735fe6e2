"""The report's page: the document and its sentences, as the page's script draws them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kinetoscope import numbers
from kinetoscope.document import EnvironmentRow, Health, IdleRow, RanksListing, Report
from kinetoscope.document.collect import timeline
from kinetoscope.document.difference import Difference
from kinetoscope.document.page import Page
from kinetoscope.render import html, names, palette
from kinetoscope.render.blocks import Block, Inline, Text
from kinetoscope.views import (
    difference,
    findings,
    graph_names,
    headline,
    kernels,
    memory,
    overview,
    ranks,
    sources,
    steps,
    whole_run,
)


class Sentences(msgspec.Struct, frozen=True, kw_only=True):
    """The page's sentences.

    Args:
        savings: words of the findings, some of them links; ``alone`` and ``measured`` are theirs too.
        graph_labels: of the graphs, in their order.
        cards: figures that stand first: each with what it is, and the place that it leads to.
        peaks: of the memory's peaks: the title, and of what that is.
        sides: what is compared, and how long a step of it takes; empty on a report.
        blocks: what views have of each part of the page.
    """

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
    cards: list[tuple[str, str, str]]
    roofline: kernels.Roofline
    peaks: list[tuple[str, str]]
    memory_colours: dict[str, str]
    uses: dict[str, str]
    use_colours: dict[str, str]
    category_colours: dict[str, str]
    cause_colours: dict[str, str]
    sides: dict[str, str] = {}
    blocks: dict[str, list[Block]] = {}


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
        cards=overview.cards(report),
        roofline=kernels.roofline(report),
        peaks=[memory.headline(peak) for peak in report.memory_peaks],
        memory_colours=palette.MEMORY,
        uses=overview.USES,
        use_colours=palette.USES,
        category_colours=palette.CATEGORIES,
        cause_colours=palette.CAUSES,
        blocks=_blocks(report, inputs),
    )


def _blocks(report: Report, inputs: Sequence[str]) -> dict[str, list[Block]]:
    """The blocks of each part of the page; memory has a part for each peak, and for each device."""
    found = {
        "overview": overview.page(report, inputs),
        "graphs": list(overview.graphs(report)),
        "ops": list(overview.ops(report)),
        "steps": [*whole_run.section(report, overview.ALL), *steps.listing(report)],
        "devices": list(steps.devices(report)),
        "allocator": list(memory.allocator(report)),
        "ranks": ranks.page(report.ranks) if report.ranks else [],
        "about": list(sources.listing(report)),
    }
    found |= {f"peak {at}": list(memory.peak(row)) for at, row in enumerate(report.memory_peaks)}
    return found | {f"memory {at}": list(memory.device(row)) for at, row in enumerate(report.memory)}


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
    report = msgspec.structs.replace(
        _empty(listing.kinetoscope, listing.devices), ranks=listing.ranks, unread=listing.ranks.unread
    )
    words = msgspec.structs.replace(
        sentences(report, [""]),
        title=ranks.title(listing),
        headline=numbers.together(ranks.verdict(listing.ranks)),
    )
    return _page(report, words)


def render_difference(found: Difference) -> str:
    """Two recordings compared: both steps one above the other, and what differs."""
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
    """A report of no recording."""
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
    """The data of the page: the timeline's columns, which are numbers, follow the JSON text."""
    columns, page = [], report.page
    if page and page.timeline:
        columns = page.timeline.columns
        bare = [msgspec.structs.replace(column, data=b"") for column in columns]
        timeline = msgspec.structs.replace(page.timeline, columns=bare)
        report = msgspec.structs.replace(report, page=msgspec.structs.replace(page, timeline=timeline))
    return html.packed(Shown(report, words), (column.data for column in columns))
