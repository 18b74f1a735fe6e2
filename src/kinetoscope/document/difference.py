"""Two versions of a program compared: what ``kinetoscope diff --json`` prints."""

from __future__ import annotations

import msgspec

from kinetoscope.comparison.compiler import Fact
from kinetoscope.comparison.gates import Judgement
from kinetoscope.comparison.timelines import Piece

SCHEMA = "kinetoscope.diff/1"


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One side: where it ran, and how many runs of it there are."""

    inputs: list[str]
    devices: list[str]
    torch: str | None
    created: str | None
    command: str | None
    runs: int


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """``low`` to ``high`` is the 95 % interval of ``delta_us`` (µs), ``…_fraction`` likewise of the base's
    step; null where it has no bound. ``verdict`` is faster, slower, same or cannot tell."""

    base_us: float
    new_us: float
    delta_us: float
    low: float | None
    high: float | None
    fraction: float
    low_fraction: float | None
    high_fraction: float | None
    verdict: str
    basis: str
    unit: str


class WorkRow(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels (or ops) of one name: launches and busy time, per step."""

    name: str
    short_name: str
    launches: float
    us: float


class ChangePart(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that changed; all of them sum to the step's difference.

    Args:
        kind: kernel, op, idle, sync, layout, compiled, graph_break, recompilation, compile_failure,
            cudagraphs, graph_calls, or runs (how the runs that are shown differ from the mean of all).
        what: replaced, added, removed, slower, faster, more often, less often, more, less.
        busy_us, waiting_us: of ``delta_us``, what the device worked, and what it waited for the host.
        base_us, new_us: busy time of ``base`` and ``new``, the work before and now.
        per_launch_us: before and now, where the same work was done.
        parts: what a change stands for that a log or a count tells of.
    """

    kind: str
    what: str
    name: str
    delta_us: float
    busy_us: float
    waiting_us: float
    base: list[WorkRow]
    new: list[WorkRow]
    ops: list[str]
    graphs: list[str]
    launches: tuple[float, float]
    per_launch_us: tuple[float, float] | None
    source: str | None
    parts: list[ChangePart]


class CountChange(msgspec.Struct, frozen=True, kw_only=True):
    """A count before and now, null where a recording cannot tell; ``per_step``: of the usual step."""

    name: str
    words: str
    base: float | None
    new: float | None
    per_step: bool
    exact: bool
    unit: str = ""


class SumChange(msgspec.Struct, frozen=True, kw_only=True):
    """Time under one name before and now, µs per step."""

    name: str
    base_us: float
    new_us: float
    delta_us: float


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
    each. ``lost`` says of either recording what is missing: no gate passes then."""

    schema: str = SCHEMA
    kinetoscope: str
    base: ComparedRun
    new: ComparedRun
    comparability: str
    why: list[str]
    step: StepChange | None
    changes: list[ChangePart]
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
    timelines: tuple[list[Piece], list[Piece]] | None = None
