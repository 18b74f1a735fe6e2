"""Findings on memory: bytes that a change frees at the peak, and no time."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.events.torch_names import BASE
from kinetoscope.analysis.memory.headroom import saves
from kinetoscope.analysis.memory.peak import RankHistory
from kinetoscope.findings import savings
from kinetoscope.findings.model import Finding, Severity
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rows import Evidence

# Shares of the memory that was reserved at the peak: below the first a finding is not worth a line, from the
# second on it is more than information, from the third on most of what there was.
LEAST, MUCH, MOST = 0.02, 0.1, 0.5
SEGMENT = 20 << 20  # bytes that PyTorch's allocator takes from the driver at once: less frees nothing
REPLAYED = "the history of allocations, played again without them"


def finding(
    view: RankView, rank: RankHistory, freed: int, *, title: str, advice: str, basis: str = REPLAYED,
    snippet: str | None = None, source: str | None = None, subject: str = "",
) -> Iterator[Finding]:  # fmt: skip
    """The finding that a change frees so many bytes at the peak; none where that is not worth a line."""
    share = freed / max(1, rank.history.reserved)
    if share < LEAST or freed < SEGMENT:
        return
    moment = "when the allocation failed" if rank.history.failed_bytes else "the peak"
    text = f"{moment}: {numbers.size(rank.history.requested)} allocated on device {rank.history.device}"
    yield Finding(
        title=title,
        saving=savings.nothing(basis),
        saving_bytes=freed,
        evidence=[Evidence(text, *_moment_us(view, rank))],
        advice=advice,
        at_least=_severity(view, share),
        snippet=snippet,
        source=source,
        subject=f"{rank.history.device} {subject}".strip(),
    )


def _severity(view: RankView, share: float) -> Severity:
    """Memory is no trouble before it runs out, or nearly has. Who recorded nothing but memory asks for it."""
    peak, room = view.peak_and_room or (0, 1)
    if view.ran_out or peak >= (1 - MUCH) * room:
        return "high" if share >= MUCH else "medium"
    if share >= MOST and not view.trace.source.events:
        return "medium"
    return "low" if share >= MUCH else "info"


def without(view: RankView, rank: RankHistory, absent: pl.DataFrame, **words: str) -> Iterator[Finding]:
    """The same where allocations are not there for a while; ``{freed}`` in the title is what that frees."""
    freed = saves(rank.history, absent.select("bytes", "start", "end"))
    words["title"] = words["title"].replace("{freed}", numbers.size(freed))
    return finding(view, rank, freed, **words)


def _moment_us(view: RankView, rank: RankHistory) -> tuple[float, float]:
    """When that was by the trace's clock; the recorded steps where that is not known, or at another time."""
    start_us, end_us = (ns / 1000 for ns in view.bounds)
    base_ns = view.trace.metadata.get(BASE)
    at_us = rank.history.time_us - base_ns / 1000 if isinstance(base_ns, int) else start_us
    return (at_us, at_us) if start_us <= at_us <= end_us else (start_us, end_us)
