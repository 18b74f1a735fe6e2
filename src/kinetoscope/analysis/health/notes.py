"""A weakness of a recording, and how grave it is."""

from __future__ import annotations

import msgspec
import polars as pl

from kinetoscope.trace.model import Trace

INFO, DEGRADED, UNRELIABLE = "info", "degraded", "unreliable"
GRAVITY = [INFO, DEGRADED, UNRELIABLE]
NEVER = float("inf")


class Note(msgspec.Struct, frozen=True):
    """One weakness of one rank's trace: ``text`` says what it is and what it does to the numbers."""

    code: str
    gravity: str = "degraded"
    text: str = ""
    share_of_device_time: float = 0.0
    rank: int | None = None


def gravity(value: float, degraded: float, unreliable: float) -> str:
    return UNRELIABLE if value >= unreliable else DEGRADED if value >= degraded else INFO


def share_of(trace: Trace, rows: pl.DataFrame) -> float:
    """The part of the trace's device time that these device events have."""
    whole = int(trace.device_events["duration_ns"].sum())
    return int(rows["duration_ns"].sum()) / whole if whole > 0 else 0.0
