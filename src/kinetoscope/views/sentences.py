"""What the page says in words that all renderers share, and the colours it has in common with them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kinetoscope import numbers
from kinetoscope.document import IdleRow, Report
from kinetoscope.render import palette
from kinetoscope.views import bars, headline, memory_lines, pace_lines, phase_lines
from kinetoscope.views import ranks as rank_lines
from kinetoscope.views.next_commands import next_commands


class Command(msgspec.Struct, frozen=True):
    line: str
    shows: str


class Sentences(msgspec.Struct, frozen=True, kw_only=True):
    """``savings`` and ``measured`` are of the findings, ``graph_labels`` of the graphs, ``peaks`` (title, of
    what that is), ``fits`` and ``given_back`` (one a row) of the memory's peaks, in their order.
    ``lateness`` are its causes, ``operations`` those of a pipeline."""

    title: list[str]
    verdict: str
    notes: list[str]
    headline: str
    timing: str
    compilation: str
    window: str
    savings: list[str]
    together: str
    measured: list[str]
    graph_labels: list[str]
    idle: list[IdleRow]
    devices: list[bars.Bar]
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


def sentences(report: Report, inputs: Sequence[str]) -> Sentences:
    return Sentences(
        title=headline.title(report),
        verdict=headline.verdict(report),
        notes=headline.notes(report),
        headline=numbers.together(headline.headline(report)),
        timing=numbers.together(headline.timing(report) or ""),
        compilation=numbers.together(headline.compilation(report) or ""),
        window=numbers.together(headline.recorded_window(report)),
        savings=[numbers.together(headline.saving(report, row)) for row in report.findings],
        together=numbers.together(headline.together(report)),
        measured=[headline.measured(row) for row in report.findings],
        graph_labels=headline.graph_labels(report),
        idle=headline.idle_causes(report),
        devices=bars.device_bars(report),
        phase_heads=list(phase_lines.HEADS),
        phases=[list(row) for row in phase_lines.lines(report)],
        pace=[(what, numbers.together(text)) for what, text in pace_lines.lines(report)],
        commands=[Command(command.line, command.shows) for command in next_commands(report, inputs)],
        peaks=[memory_lines.headline(peak) for peak in report.memory_peaks],
        fits=[
            numbers.together(memory_lines.fits(peak.fits, peak.failed_bytes)) if peak.fits else None
            for peak in report.memory_peaks
        ],
        given_back=[
            [numbers.together(memory_lines.given_back(row)) for row in peak.given_back]
            for peak in report.memory_peaks
        ],
        memory_parts=memory_lines.PARTS,
        memory_colours=palette.MEMORY,
        ranks=[numbers.together(line) for line in rank_lines.lines(report.ranks)] if report.ranks else [],
        lateness=rank_lines.WHY,
        operations=rank_lines.OPERATIONS,
        uses=bars.USES,
        use_colours=palette.USES,
        category_colours=palette.CATEGORIES,
        cause_colours=palette.CAUSES,
    )
