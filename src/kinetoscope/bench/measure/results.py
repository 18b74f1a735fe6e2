"""A measurement on disk: every sample, its clocks, and what may be concluded. Times are nanoseconds."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

import msgspec

from kinetoscope.hardware.nvml import NvmlReading
from kinetoscope.recording.manifest import write_whole
from kinetoscope.statistics import distribution, intervals

SCHEMA = "kinetoscope.bench/1"

Mode = Literal["cold", "hot"]


class ClockReading(NvmlReading, frozen=True, kw_only=True, omit_defaults=True):
    """NVML's reading of the card at one moment; ``round`` is the round it was taken in."""

    moment: Literal["before", "during", "after"]
    round: int


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One subject: all its samples in the order of the rounds (outliers kept) and what they add up to."""

    name: str
    mode: Mode
    basis: str  # how a sample was taken, in words
    n: int
    median_ns: float
    p10_ns: float
    p90_ns: float
    relative_standard_error: float | None = None  # the error of the median; null for fewer than five samples
    samples_ns: tuple[float, ...]


class Gain(msgspec.Struct, frozen=True):
    """Nanoseconds saved, with the 95 % interval."""

    ns: float
    low_ns: float
    high_ns: float


class RatioToBase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subject against the base that it was measured with: below 1 is faster."""

    name: str
    base: str
    ratio: float
    low: float
    high: float
    confidence: float
    noise_floor: float
    """How far apart the base and its twin (the same thing measured twice) came out, as a fraction."""
    verdict: intervals.Verdict

    def gain(self, base_ns: float) -> Gain:
        """The time saved of so much of the base's."""
        return Gain(base_ns * (1 - self.ratio), base_ns * (1 - self.high), base_ns * (1 - self.low))


class MeasurementSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of `measure`: its subjects were interleaved in random order, round by round."""

    schema: str = SCHEMA
    subjects: tuple[Measurement, ...]
    comparisons: tuple[RatioToBase, ...] = ()
    rounds: int
    stopped: Literal["precise", "settled", "out of time"]
    seconds: float
    seed: int
    clocks: tuple[ClockReading, ...] = ()
    slow_clock_rounds: tuple[int, ...] = ()
    """Rounds during which the SM clock was below 75 % of the rated one."""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Measurement:
        return next(subject for subject in self.subjects if subject.name == name)

    def comparison(self, name: str) -> RatioToBase | None:
        """A subject against the base; None where there was no base, or no such subject."""
        return next((comparison for comparison in self.comparisons if comparison.name == name), None)


def summarize(name: str, mode: Mode, basis: str, samples_ns: list[float]) -> Measurement:
    """The samples of one subject with their median, quantiles and standard error."""
    error = distribution.relative_standard_error(samples_ns)
    return Measurement(
        name=name,
        mode=mode,
        basis=basis,
        n=len(samples_ns),
        median_ns=distribution.median(samples_ns),
        p10_ns=distribution.quantile(samples_ns, 0.1),
        p90_ns=distribution.quantile(samples_ns, 0.9),
        relative_standard_error=error if math.isfinite(error) else None,
        samples_ns=tuple(round(x, 3) for x in samples_ns),
    )


def save(folder: Path, name: str, document: object) -> Path:
    """Write a document as ``folder/bench/NAME.json``; the name is reduced to letters, digits, ``._-``."""
    home = folder / "bench"
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('.-')[:150] or 'bench'}.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(document), indent=1))
    return path
