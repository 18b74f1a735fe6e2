"""Evidence of findings, as rows of the document."""

from __future__ import annotations

import msgspec


class Evidence(msgspec.Struct, frozen=True):
    """Something to look at in the trace: what it shows, from when to when (µs, the trace's own clock), and
    which events of the file (positions in ``traceEvents``; at most the first few)."""

    text: str
    start_us: float
    end_us: float
    events: tuple[int, ...] = ()
