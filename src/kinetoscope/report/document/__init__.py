"""Everything that a renderer shows, as typed rows: the JSON contract. Times are microseconds of the trace."""

from kinetoscope.report.document.chains import Chain, ChainListing, Link, Quantiles
from kinetoscope.report.document.devices import DeviceRow, IdleRow
from kinetoscope.report.document.explanation import (
    Explanation,
    KernelNamePage,
    NamePart,
    Overview,
    RulePage,
    RuleSummary,
    TermPage,
)
from kinetoscope.report.document.findings import After, EvidenceRow, FindingRow, FindingsListing
from kinetoscope.report.document.kernels import (
    CategoryRow,
    GraphCategory,
    GraphRow,
    KernelListing,
    KernelOp,
    KernelRow,
    ListingRow,
    OpRow,
)
from kinetoscope.report.document.launches import LaunchRow, QueuePoint
from kinetoscope.report.document.memory import AllocatorRow, MemoryPoint, MemoryRow
from kinetoscope.report.document.report import Report
from kinetoscope.report.document.sources import DeviceInfo, Environment, Health, HealthNote, SourceRow
from kinetoscope.report.document.steps import StepDifference, StepOutlierRow, StepRow, StepTimesRow, TimingRow
from kinetoscope.report.document.tables import Answer, ColumnRow

__all__ = [
    "After",
    "AllocatorRow",
    "Answer",
    "CategoryRow",
    "Chain",
    "ChainListing",
    "ColumnRow",
    "DeviceInfo",
    "DeviceRow",
    "Environment",
    "EvidenceRow",
    "Explanation",
    "FindingRow",
    "FindingsListing",
    "GraphCategory",
    "GraphRow",
    "Health",
    "HealthNote",
    "IdleRow",
    "KernelListing",
    "KernelNamePage",
    "KernelOp",
    "KernelRow",
    "LaunchRow",
    "Link",
    "ListingRow",
    "MemoryPoint",
    "MemoryRow",
    "NamePart",
    "OpRow",
    "Overview",
    "Quantiles",
    "QueuePoint",
    "Report",
    "RulePage",
    "RuleSummary",
    "SourceRow",
    "StepDifference",
    "StepOutlierRow",
    "StepRow",
    "StepTimesRow",
    "TermPage",
    "TimingRow",
]
