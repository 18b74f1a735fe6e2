"""Everything that a view shows, as typed rows: the JSON contract. Times are microseconds of the trace."""

from kinetoscope.document.chains import Chain, ChainListing, Link, Quantiles
from kinetoscope.document.compilation import Compilation
from kinetoscope.document.devices import DeviceRow, IdleRow
from kinetoscope.document.explanation import Explanation, Glossary
from kinetoscope.document.findings import After, EvidenceRow, FindingRow, FindingsListing
from kinetoscope.document.kernels import (
    CategoryRow,
    GraphCategory,
    GraphRow,
    KernelListing,
    KernelOp,
    KernelRow,
    ListingRow,
    OpRow,
)
from kinetoscope.document.launches import LaunchRow, QueuePoint
from kinetoscope.document.memory import (
    AllocatorRow,
    FitsRow,
    GivenBackRow,
    GrowthRow,
    HeldRow,
    HolderRow,
    MemoryBlock,
    MemoryPart,
    MemoryPeak,
    MemoryPeaks,
    MemoryPoint,
    MemoryRow,
    MemorySample,
)
from kinetoscope.document.ranks import (
    AlikeRow,
    ClockRow,
    CollectiveRow,
    IdealRow,
    Lateness,
    LatenessRow,
    Meeting,
    PaceRow,
    Paces,
    RankRow,
    Ranks,
    RanksListing,
    RankVerdict,
    SpreadRow,
)
from kinetoscope.document.replay import ChangeRow, PathRow, Replay, WhatIf
from kinetoscope.document.report import Report
from kinetoscope.document.sources import Environment, Health, HealthNote, SourceRow
from kinetoscope.document.steps import (
    AsItRuns,
    CauseRow,
    PhaseKernel,
    PhaseRow,
    StepDifference,
    StepOutlierRow,
    StepRow,
    StepSpread,
    StepTimesRow,
    TimingRow,
    WaitingRow,
)

__all__ = [
    "After", "AlikeRow", "AllocatorRow", "AsItRuns", "CategoryRow", "CauseRow", "Chain", "ChainListing",
    "ChangeRow", "ClockRow", "CollectiveRow", "Compilation", "DeviceRow", "Environment", "EvidenceRow",
    "Explanation", "FindingRow", "FindingsListing", "FitsRow", "GivenBackRow", "Glossary", "GraphCategory",
    "GraphRow", "GrowthRow", "Health", "HealthNote", "HeldRow", "HolderRow", "IdealRow", "IdleRow",
    "KernelListing", "KernelOp", "KernelRow", "Lateness", "LatenessRow", "LaunchRow", "Link", "ListingRow",
    "Meeting", "MemoryBlock", "MemoryPart", "MemoryPeak", "MemoryPeaks", "MemoryPoint", "MemoryRow",
    "MemorySample", "OpRow", "PaceRow", "Paces", "PathRow", "PhaseKernel", "PhaseRow", "Quantiles",
    "QueuePoint", "RankRow",
    "RankVerdict", "Ranks", "RanksListing", "Replay", "Report", "SourceRow", "SpreadRow", "StepDifference",
    "StepOutlierRow", "StepRow", "StepSpread", "StepTimesRow", "TimingRow", "WaitingRow", "WhatIf",
]  # fmt: skip
