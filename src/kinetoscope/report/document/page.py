"""What only the page shows: too large for the JSON, which other tools read."""

from __future__ import annotations

import msgspec

from kinetoscope.report.document.measurements import BenchRow
from kinetoscope.report.document.timeline import Timeline


class GeneratedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a kernel in its module, from 1, both included."""

    name: str
    first_line: int
    last_line: int


class GeneratedModule(msgspec.Struct, frozen=True, kw_only=True):
    """What Inductor wrote of one graph (``graph`` is its row in the compilation), and that graph."""

    graph: int
    code: str
    post_grad: str | None
    kernels: list[GeneratedKernel]


class FrameText(msgspec.Struct, frozen=True, kw_only=True):
    """A graph of one frame as torch printed it: ``dynamo``, ``joint``, ``forward``, …"""

    frame: int
    name: str
    text: str


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """What a recorded device can do at most, per second; ``peaks`` by dtype."""

    device: str
    bandwidth: float
    peaks: dict[str, float]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What the page has beside the JSON.

    Args:
        benches: kernels measured alone in this recording, each by its newest measurement.
        meanings: of names that stand in the report, by the glossary.
    """

    timeline: Timeline | None
    modules: list[GeneratedModule]
    frame_texts: list[FrameText]
    roofs: list[Roof]
    benches: list[BenchRow]
    meanings: dict[str, str]
