"""The vocabulary of rules, which each of them imports whole: the view of a rank that they look at, what they
find, its evidence, savings and commands, and the changes of a step that a replay understands."""

# pyright: reportUnusedImport=false

from collections.abc import Iterable

import polars as pl
from msgspec.structs import replace

from kinetoscope import numbers
from kinetoscope.analysis.events.makers import maker
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.replay.change import (
    NOTHING,
    Changes,
    ReplayChange,
    combined,
    faster_loader,
    in_a_row,
    no_wait,
    shorten,
    without_host,
    without_idle,
)
from kinetoscope.analysis.time import intervals
from kinetoscope.findings import commands, evidence, memory, savings
from kinetoscope.findings.in_force import (
    Remedy,
    asked,
    blocked,
    capturable,
    compiles,
    fewer_launches,
    inside_graphs,
    trains,
)
from kinetoscope.findings.model import Finding, Saving, Severity
from kinetoscope.findings.rank_view import SEGMENT, RankView, spans, views
from kinetoscope.findings.rows import Evidence
from kinetoscope.findings.savings import FIXED_NS, HIGH, LOW, MEDIUM, finding_of_calls, slow_calls, together
from kinetoscope.trace.schema import whole

Findings = Iterable[Finding]
