"""From which line of the program each op was called: another step's ops, with their lines, laid over it.

Python's functions are recorded in a step of their own (``recording.lines``). Where a recorded step calls the
same ops in the same order on a thread, each op is the one that stands at its place there; what differs has no
line. Nothing else is compared: the same ops called from elsewhere in the same order are not told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.passes.match import SIMILAR, aligned
from kinetoscope.recording.lines import StepLines, ThreadOps
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace


@dataclass(frozen=True)
class CallSite:
    """A stack by its lines: the innermost of the program, as ``train.py:12``, in which function, and the
    innermost of a library below it. ``exact`` is false where the line is the function's first one.
    """

    line: str | None
    function: str
    exact: bool
    library: str | None

    @property
    def text(self) -> str:
        """``train.py:12 step``; of an operator (``a + b``), whose line Python does not report, ``train.py:9
        step, in it``."""
        if self.line is None:
            return ""
        return f"{self.line} {self.function}{'' if self.exact else ', in it'}"


NOWHERE = CallSite(None, "", False, None)


@dataclass(frozen=True, eq=False)
class OpLines:
    """The lines of one rank's ops.

    Attributes:
        rows: one row for each of ``host_events``: ``site`` (a row of ``sites``) and ``module`` (String), of
            the innermost op around it; null where no line is known.
        verified: the share of the recorded steps' ops that stand in the step with lines at their place.
    """

    rows: pl.DataFrame
    sites: Sequence[CallSite]
    verified: float

    @cached_property
    def texts(self) -> pl.DataFrame:
        """One row for each of ``host_events``: ``line`` (``CallSite.text``) and ``module``, null where they
        are not known."""
        texts = pl.Series([site.text for site in (*self.sites, NOWHERE)], dtype=pl.String)
        return self.rows.select(line=texts.gather(self.rows["site"]), module="module")

    def site(self, row: int | None) -> CallSite:
        """The line from which the op around a row of ``host_events`` was called."""
        found = None if row is None else self.rows["site"][row]
        return NOWHERE if found is None else self.sites[found]


@remembered
def op_lines(run: LoadedRun) -> Mapping[int, OpLines]:
    """The lines of the ranks that have them."""
    return {trace.rank: _of(trace, run.lines[trace.rank]) for trace in run.traces if trace.rank in run.lines}


def _of(trace: Trace, lines: StepLines) -> OpLines:
    host = trace.host_events
    is_op = matching(host, "category", "^cpu_op$")
    ops = _in_steps(trace, is_op)
    known = _Known(lines)
    found: dict[int, tuple[int, int]] = {}
    for ids, calls in _by_step(ops, known.codes):
        like = known.like(calls.codes)
        if like is None:
            continue
        thread, other = lines.threads[like], known.threads[like]
        for ours, theirs in aligned(calls.codes, other.codes):
            start, end = calls.ranges[ours]
            there = other.ranges[theirs][0] - start
            for at in range(start, end):
                found[ids[at]] = thread.stacks[there + at], thread.modules[there + at]
    sites = [_site(lines, stack) for stack in range(len(lines.stacks))]
    at = pl.DataFrame(
        {
            "id": list(found),
            "site": [stack if stack >= 0 and sites[stack].line else None for stack, _ in found.values()],
            "module": [lines.modules[module] if module >= 0 else None for _, module in found.values()],
        },
        schema={"id": pl.UInt32, "site": pl.UInt32, "module": pl.String},
    )
    own = host.select("id").join(at, on="id", how="left", maintain_order="left").drop("id")
    around = nearest(host, is_op)
    rows = own.select(pl.all().gather(around)) if len(own) else own
    return OpLines(rows, sites, len(found) / max(len(ops), 1))


def _in_steps(trace: Trace, is_op: pl.Series) -> pl.DataFrame:
    """Ops that begin in a step: (id, lane, step, name, is_outermost), each thread's in order."""
    host, steps = trace.host_events, trace.steps.select("id", "start_ns", "duration_ns").sort("start_ns")
    inside = nearest(host, is_op).gather(host["parent"])
    ops = host.select("id", "lane", "start_ns", "name", is_outermost=inside.is_null()).filter(is_op)
    steps = steps.select(step="id", start_ns="start_ns", ends=pl.col("start_ns") + pl.col("duration_ns"))
    return (
        ops.sort("start_ns")
        .join_asof(steps, on="start_ns")
        .filter(pl.col("start_ns") < pl.col("ends"))
        .sort("lane", "id")
        .select("id", "lane", "step", pl.col("name").cast(pl.String), "is_outermost")
    )


@dataclass(frozen=True)
class _Calls:
    """A thread's outermost ops: what each is, with all that it calls, as a number; and its places."""

    codes: tuple[int, ...]
    ranges: list[tuple[int, int]]


def _calls(names: Sequence[str], outermost: Sequence[bool], codes: dict[tuple[str, ...], int]) -> _Calls:
    starts = [place for place, is_outermost in enumerate(outermost) if is_outermost]
    ranges = list(zip(starts, [*starts[1:], len(names)], strict=True))
    own = tuple(codes.setdefault(tuple(names[a:b]), len(codes)) for a, b in ranges)
    return _Calls(own, ranges)


def _by_step(ops: pl.DataFrame, codes: dict[tuple[str, ...], int]) -> list[tuple[list[int], _Calls]]:
    grouped = ops.group_by("step", "lane", maintain_order=True).agg("id", "name", "is_outermost")
    return [(ids, _calls(names, outermost, codes)) for _, _, ids, names, outermost in grouped.iter_rows()]


class _Known:
    """The step whose lines are known, by thread."""

    def __init__(self, lines: StepLines) -> None:
        self.codes: dict[tuple[str, ...], int] = {}
        self.threads = [self._thread(lines, thread) for thread in lines.threads]
        self.counted = [Counter(thread.codes) for thread in self.threads]

    def _thread(self, lines: StepLines, thread: ThreadOps) -> _Calls:
        names = [lines.names[name] for name in thread.names]
        return _calls(names, [depth == 0 for depth in thread.depths], self.codes)

    def like(self, codes: tuple[int, ...]) -> int | None:
        """The thread that has most of these calls; None where none has enough of them."""
        counted = Counter(codes)
        shares = [(counted & other).total() / max(len(codes), 1) for other in self.counted]
        best = max(range(len(shares)), key=shares.__getitem__, default=None)
        return None if best is None or shares[best] < SIMILAR else best


def _site(lines: StepLines, stack: int) -> CallSite:
    library: str | None = None
    while stack >= 0:
        stack, row = lines.stacks[stack]
        frame = lines.frames[row]
        if frame.is_own:
            return CallSite(f"{frame.file}:{frame.line}", frame.function, frame.exact, library)
        library = library or f"{frame.file}:{frame.line}"
    return CallSite(None, "", False, library)
