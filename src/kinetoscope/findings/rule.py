"""What rules are written with: the view they look at, what they find, its evidence, savings and commands."""

from collections.abc import Iterable

from kinetoscope import numbers
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.findings import commands, evidence, savings
from kinetoscope.findings.model import Evidence, Finding, Saving, Severity
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.savings import HIGH, LOW, MEDIUM

Findings = Iterable[Finding]

__all__ = [
    "HIGH",
    "LOW",
    "MEDIUM",
    "Evidence",
    "Finding",
    "Findings",
    "RankView",
    "Saving",
    "Severity",
    "commands",
    "evidence",
    "matching",
    "numbers",
    "savings",
    "short_name",
]  # fmt: skip
