"""Evidence of findings, as rows of the document."""

from __future__ import annotations

import msgspec


class FindingPhase(msgspec.Struct, frozen=True, kw_only=True):
    """A finding in the steps of a server that are of one phase."""

    phase: str  # of ``ServingRow``; ``none``: it is in no step
    steps: int  # how many of this phase were recorded
    share: float  # of what the finding saves
    saving_us: float  # per step of this phase, of what remains once the findings above are followed
    saving_us_per_s: float  # the same of each second of the whole, whatever runs in it


class Evidence(msgspec.Struct, frozen=True):
    """Something to look at in the trace: what it shows, from when to when (µs, the trace's own clock), and
    which events of the file (positions in ``traceEvents``; at most the first few)."""

    text: str
    start_us: float
    end_us: float
    events: tuple[int, ...] = ()
