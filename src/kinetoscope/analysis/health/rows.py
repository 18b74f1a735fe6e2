"""How far a recording can be trusted, as rows of the document."""

from __future__ import annotations

import msgspec


class Note(msgspec.Struct, frozen=True):
    """One weakness of one rank's trace: ``text`` says what it is and what it does to the numbers."""

    code: str
    gravity: str = "degraded"
    text: str = ""
    share_of_device_time: float = 0.0
    rank: int | None = None


class Health(msgspec.Struct, frozen=True):
    """``verdict`` is good, degraded or unreliable; the gravest notes come first."""

    verdict: str
    notes: list[Note]
