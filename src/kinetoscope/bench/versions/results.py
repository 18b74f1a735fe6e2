"""What `compare` measured of two versions, as it lies on disk; times are seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from kinetoscope.statistics.intervals import Ratio, Stands

SCHEMA = "kinetoscope.compare/1"


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Times (s) of the same work between the runs; ``spread`` is the half of their middle 80 %, as a share
    of their median."""

    samples_s: tuple[float, ...]
    spread: float


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version: its step (s, the median of its runs'), each run's, and what of it is counted."""

    label: str
    step_s: float
    runs_s: tuple[float, ...]
    steps: int
    graph_breaks: int
    graphs: int
    peak_memory_bytes: int | None


class VersionsCompared(msgspec.Struct, frozen=True, kw_only=True):
    """``ratio`` is the new step over the base's, ``low`` to ``high`` its 95 % interval (from the pairs of
    runs, so that how runs differ is in it); ``stopped`` says why no more were run. ``load`` is the machine's
    load average between the runs (the median; null: nobody counts it), ``cores`` how many may be used."""

    schema: str = SCHEMA
    command: tuple[str, ...]
    device: str
    steps_by: str | None
    base: VersionRow
    new: VersionRow
    ratio: float
    low: float
    high: float
    verdict: Stands
    pairs: int
    stopped: Literal["precise", "out of time"]
    seconds: float
    calibration: Calibration | None
    load: float | None = None
    cores: int | None = None

    @property
    def interval(self) -> Ratio:
        return Ratio(self.ratio, self.low, self.high)
