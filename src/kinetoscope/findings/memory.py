"""What findings on memory have alike: bytes that a change frees at the peak, and no time."""

from __future__ import annotations

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.memory.headroom import saves
from kinetoscope.analysis.memory.peak import RankHistory
from kinetoscope.analysis.memory.traced import BASE
from kinetoscope.findings import savings
from kinetoscope.findings.model import Evidence, Finding, Severity
from kinetoscope.findings.rank_view import RankView

# Of what was reserved at the peak: less is not worth a line, so much is worth more than information.
LEAST, MUCH = 0.02, 0.1
SEGMENT = 20 << 20  # what PyTorch's allocator takes from the driver at once: less frees nothing
REPLAYED = "the history of allocations, played again without them"


def finding(
    view: RankView, one: RankHistory, freed: int, *, title: str, advice: str, basis: str = REPLAYED,
    snippet: str | None = None, source: str | None = None, subject: str = "", seen: str = "",
) -> Finding | None:  # fmt: skip
    """The finding that a change frees so many bytes at the peak; None: it is not worth a line."""
    share = freed / max(1, one.history.reserved)
    if share < LEAST or freed < SEGMENT:
        return None
    moment = "when the allocation failed" if one.history.failed_bytes else "the peak"
    text = seen or f"{moment}: {numbers.size(one.history.requested)} held of device {one.history.device}"
    return Finding(
        title=title,
        saving=savings.nothing(basis),
        saving_bytes=freed,
        evidence=[Evidence(text, *_moment_us(view, one))],
        advice=advice,
        at_least=_severity(view, share),
        snippet=snippet,
        source=source,
        subject=f"{one.history.device} {subject}".strip(),
    )


def _moment_us(view: RankView, one: RankHistory) -> tuple[float, float]:
    """When that was by the trace's clock; the recorded steps where the trace does not say what its clock
    counts from, or is of another time."""
    start_us, end_us = (ns / 1000 for ns in view.bounds)
    base_ns = view.trace.metadata.get(BASE)
    at_us = one.history.time_us - base_ns / 1000 if isinstance(base_ns, int) else start_us
    return (at_us, at_us) if start_us <= at_us <= end_us else (start_us, end_us)


def without(view: RankView, one: RankHistory, absent: pl.DataFrame, **words: str) -> Finding | None:
    """Likewise, where allocations are not there for a while (see ``peak_without``)."""
    freed = saves(one.history, absent.select("bytes", "start", "end"))
    words["title"] = words["title"].replace("{freed}", numbers.size(freed))
    return finding(view, one, freed, **words)


def _severity(view: RankView, share: float) -> Severity:
    """Memory is no trouble before it runs out: then the largest parts come first."""
    if view.ran_out:
        return "high" if share >= MUCH else "medium"
    return "low" if share >= MUCH else "info"
