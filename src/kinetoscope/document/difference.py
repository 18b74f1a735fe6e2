"""Two versions of a program compared: what ``kinetoscope diff --json`` prints."""

from __future__ import annotations

import msgspec

from kinetoscope.comparison.changes import Change, SumChange
from kinetoscope.comparison.compiler import Fact
from kinetoscope.comparison.gates import Judgement
from kinetoscope.comparison.memory import MemoryChange
from kinetoscope.comparison.step_change import StepChange
from kinetoscope.comparison.timelines import DrawnWork

SCHEMA = "kinetoscope.diff/1"


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One side: where it ran, and how many runs of it there are; ``commit`` was checked out then."""

    inputs: list[str]
    devices: list[str]
    torch: str | None
    created: str | None
    command: str | None
    runs: int
    commit: str | None = None


class CountChange(msgspec.Struct, frozen=True, kw_only=True):
    """A count before and now, null where a recording does not have it; ``per_step``: of the usual step;
    ``most``: what of it changed most, as ``aten::sin, 0 → 20``, empty where that is not known."""

    name: str
    words: str
    base: float | None
    new: float | None
    per_step: bool
    exact: bool
    unit: str = ""
    most: str = ""


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that only one side has, and what it promises to save there."""

    rule: str
    severity: str
    title: str
    saving_us: float
    source: str | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of busy time by ``categories``, ``ops``, ``modules``, ``graphs`` and ``lines`` all differ by as
    much; with that of ``idle`` it is the step's difference. ``timelines`` (of the page alone) are one step of
    each. ``lost`` names the missing parts of either recording: no gate passes then. ``device_time`` is the
    device's work in a step, which a profiler does not prolong; null where no device worked."""

    schema: str = SCHEMA
    kinetoscope: str
    base: ComparedRun
    new: ComparedRun
    comparability: str
    why: list[str]
    step: StepChange | None
    changes: list[Change]
    facts: list[Fact]
    counts: list[CountChange]
    idle: list[SumChange]
    categories: list[SumChange]
    ops: list[SumChange]
    modules: list[SumChange]
    graphs: list[SumChange]
    lines: list[SumChange]
    findings_gone: list[FindingChange]
    findings_come: list[FindingChange]
    code: str
    gates: list[Judgement] = []
    failed: list[str] = []
    lost: list[str] = []
    device_time: StepChange | None = None
    timelines: tuple[list[DrawnWork], list[DrawnWork]] | None = None
    memory: MemoryChange | None = None
    """Of the highest peaks; null where the allocator's history was not recorded of both."""
