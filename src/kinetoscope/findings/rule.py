"""The vocabulary of rules, which each of them imports whole: the view of a rank that they look at, what they
find, its evidence, savings and commands, and the changes of a step that a replay understands."""

from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.events.makers import maker
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.replay.change import (
    ReplayChange,
    faster_loader,
    in_a_row,
    no_wait,
    shorten,
    without_host,
    without_idle,
)
from kinetoscope.analysis.time import intervals
from kinetoscope.findings import commands, evidence, memory, savings
from kinetoscope.findings.in_force import Remedy, blocked, capturable, compiles, fewer_launches, trains
from kinetoscope.findings.model import Changes, Finding, Saving, Severity, combined
from kinetoscope.findings.rank_view import RankView, spans, views
from kinetoscope.findings.rows import Evidence
from kinetoscope.findings.savings import HIGH, LOW, MEDIUM, finding_of_calls, slow_calls
from kinetoscope.trace.schema import whole

Findings = Iterable[Finding]

__all__ = [
    "HIGH",
    "LOW",
    "MEDIUM",
    "Changes",
    "Evidence",
    "Finding",
    "Findings",
    "Iterable",
    "RankView",
    "Remedy",
    "ReplayChange",
    "Saving",
    "Severity",
    "blocked",
    "capturable",
    "combined",
    "commands",
    "compiles",
    "evidence",
    "faster_loader",
    "fewer_launches",
    "finding_of_calls",
    "in_a_row",
    "intervals",
    "maker",
    "matching",
    "memory",
    "no_wait",
    "numbers",
    "pl",
    "replace",
    "savings",
    "short_name",
    "shorten",
    "slow_calls",
    "spans",
    "trains",
    "views",
    "whole",
    "without_host",
    "without_idle",
]  # fmt: skip
