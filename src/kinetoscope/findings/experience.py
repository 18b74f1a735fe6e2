"""How far predictions of a rule were from what following its advice saved, where that was measured."""

from __future__ import annotations

# Of rules that nobody has measured.
UNKNOWN = (0.5, 1.5)
# Measured over predicted saving, the least and the most of the pairs recorded (docs/findings.md).
MEASURED: dict[str, tuple[float, float]] = {}


def interval(rule: str) -> tuple[float, float]:
    """What a saving may turn out to be, as multiples of the prediction."""
    return MEASURED.get(rule, UNKNOWN)


def helps(rule: str) -> bool:
    """Whether following the advice has always saved something."""
    return interval(rule)[0] > 0
