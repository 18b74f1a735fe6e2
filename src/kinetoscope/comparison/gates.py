"""``--fail-on``: limits of growth. Counts are exact; times fail only with their whole interval."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from kinetoscope import numbers
from kinetoscope.comparison.counts import COUNTED, Counts
from kinetoscope.errors import UsageError, meant
from kinetoscope.statistics.intervals import Ratio

STEP_TIME, DEVICE_TIME = "step_time", "device_time"
TIMES = (STEP_TIME, DEVICE_TIME)
NUMBER = r"[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}"
AMOUNT = rf"\s*({NUMBER})\s*(%|[A-Za-zµ]*)\s*"
_GATE = re.compile(rf"\s*([a-z]+(?:[_ -][a-z]+)*)\s*(>=|>){AMOUNT}")
LONGEST = 80  # characters of an expression that are repeated
UNITS = {"": 1.0, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_TIMES, _SIZES = {"us", "µs", "ms", "s"}, {"B", "kB", "MB", "GB"}


class Gate(msgspec.Struct, frozen=True):
    """One expression: by how much ``name`` may grow; with ``share``, ``limit`` is a fraction of the base."""

    text: str
    name: str
    limit: float
    share: bool
    reaching: bool

    def is_passed(self, growth: float, base: float) -> bool:
        limit = self.limit * base if self.share else self.limit
        return growth < limit if self.reaching else growth <= limit


class Judgement(msgspec.Struct, frozen=True):
    """The result of a gate: ``words`` has the value before and now. ``culprit`` is what caused it, where that
    is known; ``known`` is False where there was nothing to judge by."""

    gate: str
    name: str
    failed: bool
    words: str
    culprit: str = ""
    source: str | None = None
    known: bool = True


def parse(text: str) -> Gate:
    """``launches > 0``, ``peak_memory > 5%``, ``step_time > 3%``, ``copied_bytes > 1MB``. Raises UsageError
    where the text is no such expression, or nothing has that name."""
    match = _GATE.fullmatch(text)
    names = [*TIMES, *COUNTED]
    if match is None or match[4] not in (*UNITS, "%"):
        raise UsageError(
            f"{text[:LONGEST]!r} is no gate",
            where="--fail-on",
            hint="NAME > NUMBER or NAME >= NUMBER, of digits and one point at most, with a unit or %: "
            "'launches > 0', 'step_time > 3%', 'copied_bytes > 1.5MB'",
        )
    name, unit = re.sub("[ -]", "_", match[1]), match[4]
    if name not in names:
        raise UsageError(f"nothing is called {name!r}", where=f"--fail-on {text!r}", hint=meant(name, names))
    measured = _TIMES if name in TIMES else _SIZES if COUNTED[name].unit == "B" else set[str]()
    if unit not in ("", "%") and unit not in measured:
        raise UsageError(f"{name} is not measured in {unit}", where=f"--fail-on {text!r}")
    share = unit == "%"
    return Gate(
        text.strip(), name, float(match[3]) * (0.01 if share else UNITS[unit]), share, match[2] == ">="
    )


def judge(
    gate: Gate,
    counts: tuple[Counts, Counts],  # before and now
    # the base's step and the device's time in it (µs) by the gates' names, each with the ratio of the new one
    # to it and its interval; what is not in it was not recorded
    times: Mapping[str, tuple[float, Ratio] | None],
    lost: Sequence[str] = (),  # what is missing of the recordings
) -> Judgement:
    """Judge what was counted and timed by a gate. One that cannot be judged has failed."""
    if lost:
        return _unknown(gate, lost[0])
    if gate.name in TIMES:
        if (timed := times.get(gate.name)) is None:
            nothing = "no step was recorded" if gate.name == STEP_TIME else "no device worked"
            return _unknown(gate, f"{nothing} in one of them")
        base_us, ratio = timed
        passed = gate.is_passed(base_us * (ratio.low - 1), base_us)
        return Judgement(gate.text, gate.name, not passed, time_words(gate.name, base_us, ratio))
    before, after = (side[gate.name] for side in counts)
    if before is None or after is None:
        which = "base" if before is None else "new run"
        return _unknown(gate, f"the {which} does not have its {COUNTED[gate.name].words}")
    unit = COUNTED[gate.name].unit
    amounts = f"{numbers.quantity(before, unit)} → {numbers.quantity(after, unit)}"
    words = f"{COUNTED[gate.name].words}: {amounts}"
    return Judgement(gate.text, gate.name, not gate.is_passed(after - before, before), words)


def nothing_counted() -> tuple[Counts, Counts]:
    """The counts of a program that was only timed."""
    return dict.fromkeys(COUNTED), dict.fromkeys(COUNTED)


def _unknown(gate: Gate, why: str) -> Judgement:
    return Judgement(gate.text, gate.name, True, f"cannot be judged: {why}", known=False)


def time_words(name: str, base_us: float, ratio: Ratio) -> str:
    """The change of the step's time, or of the device's in it, in words."""
    what = "step" if name == STEP_TIME else "device time"
    change, sign = numbers.percent(abs(ratio.ratio - 1)), "+" if ratio.ratio >= 1 else "−"
    times = f"{what}: {numbers.time(base_us)} → {numbers.time(base_us * ratio.ratio)}"
    return f"{times}, {sign}{change} ({interval_words(ratio.low - 1, ratio.high - 1)})"


TELLING = (-0.5, 1.0)  # beyond these shares of the base an interval says nothing that a sentence would not


def interval_words(low: float | None, high: float | None) -> str:
    """The 95 % interval of a change, as shares of the base; None: without a bound."""
    if low is None or high is None or (low <= TELLING[0] and high >= TELLING[1]):
        return "it may be half as long or twice as long"
    bounds = (
        f"{100 * bound:+.1f}".replace("-", numbers.MINUS) if math.isfinite(bound) else "∞"
        for bound in (low, high)
    )
    return f"95 %: {' to '.join(bounds)} %"


def failed(judgements: Sequence[Judgement]) -> list[str]:
    return [judgement.gate for judgement in judgements if judgement.failed]
