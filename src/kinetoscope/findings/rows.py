"""Evidence of findings, as rows of the document."""

from __future__ import annotations

import msgspec


class FindingPhase(msgspec.Struct, frozen=True, kw_only=True):
    """A finding in the steps of a server that are of one phase.

    Attributes:
        phase: of ``ServingRow``; ``none``: it is in no step.
        steps: how many of this phase were recorded.
        share: of what the finding saves.
        saving_us: per step of this phase, of what remains once the findings above are followed.
        saving_us_per_s: the same of each second of the whole, whatever runs in it.
    """

    phase: str
    steps: int
    share: float
    saving_us: float
    saving_us_per_s: float


class Evidence(msgspec.Struct, frozen=True):
    """Something to look at in the trace: what it shows, from when to when (µs, the trace's own clock), and
    which events of the file (positions in ``traceEvents``; at most the first few)."""

    text: str
    start_us: float
    end_us: float
    events: tuple[int, ...] = ()
