"""One rank's trace as rules look at it: its steps, its names, and what a change would save."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.compiled.compiling import compiler_phases
from kinetoscope.analysis.events.rows import rows
from kinetoscope.analysis.events.torch_names import LIBRARY_FRAME
from kinetoscope.analysis.idle import timeline
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.busy import busy_intervals
from kinetoscope.analysis.time.window import window
from kinetoscope.findings.model import Evidence, Saving, Severity
from kinetoscope.trace.model import Trace

# Severity is the share of the step that the advice would save. Above a tenth it is the first thing to do; below three
# hundredths it disappears in the noise from run to run; below half a hundredth nobody should read about it.
HIGH, MEDIUM, LOW = 0.10, 0.03, 0.005

# A step that takes hardly longer than its device work waits for nothing else.
DEVICE_BOUND = 1.1

UNASKED = [
    "rank",
    "context",
    "lane",
    "external_id",
    "blocks_per_sm",
    "warps_per_sm",
    "occupancy_percent",
    "graph_node",
    "graph",
]

SHOWN_GROUPS = 4  # findings of one rule on one rank: kernels beyond the worst few are noise
SHOWN_EVENTS = 12  # evidence lists the first few events; their number is in the text


@dataclass(frozen=True, eq=False)
class Scene:
    """One trace. ``start_ns`` to ``end_ns`` are its recorded steps and the device work that they launched (the
    device may finish after the host's last step); without steps, the whole recording."""

    run: Run
    trace: Trace

    @property
    def rank(self) -> int:
        return self.trace.rank

    @cached_property
    def steps(self) -> int:
        """Number of recorded steps; 1 where none were, and then ``unit`` is "recording"."""
        return max(1, len(self.trace.steps))

    @property
    def unit(self) -> str:
        return "step" if len(self.trace.steps) else "recording"

    @cached_property
    def work(self) -> pl.DataFrame:
        """Device work that the recorded steps launched (all of it, without steps): ``analysis.work`` with ``op_name``,
        without the columns that no rule asks for."""
        table = work(self.trace).drop(UNASKED)
        if len(self.trace.steps):
            # Work whose launch is not in the file, before any whose launch is, was launched before the recording.
            first = table.filter(pl.col("launch").is_not_null())["start_ns"].min()
            left_over = (
                pl.col("launch").is_null() & (pl.col("start_ns") < first)
                if first is not None
                else pl.lit(False)
            )
            table = table.filter(pl.col("step").is_not_null() & ~left_over)
        return table.with_columns(self.trace.host_events["name"].gather(table["op"]).alias("op_name"))

    @cached_property
    def bounds(self) -> tuple[int, int]:
        within = window(self.trace)
        start, end = within.start_ns, max(within.end_ns, int(self.work["end_ns"].max() or 0))  # type: ignore[arg-type]
        if len(self.trace.steps):
            # What was launched before the first step and runs into it is not the steps' time.
            ends = work(self.trace).select("start_ns", "end_ns")
            left_over = int(ends.filter(pl.col("start_ns") < self.first_work_ns)["end_ns"].max() or 0)  # type: ignore[arg-type]
            start = min(max(start, left_over), self.first_work_ns) if left_over > start else start
        return start, end

    @cached_property
    def first_work_ns(self) -> int:
        """When the device began with what the recorded steps launched."""
        first = self.work["start_ns"].min()
        return int(first) if first is not None else 0  # type: ignore[arg-type]

    @cached_property
    def length_ns(self) -> int:
        start, end = self.bounds
        return max(1, end - start)

    @cached_property
    def step_us(self) -> float:
        """Time of one step (or of the recording), as profiled, in µs."""
        return self.length_ns / self.steps / 1000

    @cached_property
    def unprofiled_us(self) -> float | None:
        """Time of a step without the profiler (the mean over a run of them, in µs), where the recording has it."""
        manifest = self.run.manifest
        if manifest is None or self.unit != "step":
            return None
        mine = next((record.steps for record in manifest.ranks if record.rank == self.rank), None)
        seconds = None if mine is None else mine.unprofiled_step_s
        return None if seconds is None else seconds * 1e6

    @property
    def settled(self) -> bool:
        """The recording's manifest says that steps were warmed up until their time had settled."""
        ranks = self.run.manifest.ranks if self.run.manifest else ()
        return any(r.rank == self.rank and r.steps.settled and len(r.steps.warmup_s) > 0 for r in ranks)

    @cached_property
    def busy_ns(self) -> int:
        """Union of device work between the bounds, of the device that did most."""
        clipped = intervals.clip(busy_intervals(self.trace), *self.bounds)
        return int(intervals.length(clipped, ["device"])["length_ns"].max() or 0)  # type: ignore[arg-type]

    @property
    def busy_share(self) -> float:
        return self.busy_ns / self.length_ns

    def host(self, pattern: str) -> pl.DataFrame:
        """The host events whose name contains the regular expression, in order of ``id``."""
        return self.trace.host_events[rows(self.trace.host_events, "name", pattern)]

    def kernels(self, pattern: str) -> pl.DataFrame:
        """The device work of the recorded steps whose name contains the regular expression."""
        return self.work[rows(self.work, "name", pattern)]

    def inside(self, table: pl.DataFrame) -> pl.DataFrame:
        """The rows of a table of events that begin between the bounds."""
        start, end = self.bounds
        return table.filter(pl.col("start_ns").is_between(start, end))

    @cached_property
    def gaps(self) -> pl.DataFrame:
        """The idle time of this rank's devices between the bounds, cut by cause (``analysis.idle.gaps``)."""
        found = gaps(self.run).filter(pl.col("rank") == self.rank)
        return found.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("idle_ns"))

    def idle_us(self, *causes: str) -> float:
        """Idle time of these causes per step, µs."""
        return float(self.gaps.filter(pl.col("cause").is_in(causes))["idle_ns"].sum()) / self.steps / 1000

    def per_step(self, count: float) -> float:
        return count / self.steps

    @cached_property
    def compiler_events(self) -> pl.DataFrame:
        """Phases of Dynamo, AOTAutograd and Inductor that torch marks; the recording of CUDA graphs is left out."""
        return compiler_phases(self.trace, *self.bounds)

    # The device, as far as the file describes it.

    @property
    def multiprocessors(self) -> int | None:
        return self.trace.devices[0].multiprocessors if self.trace.devices else None

    def _property(self, name: str, otherwise: int) -> int:
        value = self.trace.devices[0].properties.get(name) if self.trace.devices else None
        return value if isinstance(value, int) and 0 < value < 1 << 31 else otherwise

    @property
    def threads_per_multiprocessor(self) -> int:
        return self._property("maxThreadsPerMultiprocessor", 2048)

    def shaped(self, launches: pl.DataFrame) -> pl.DataFrame:
        """Rows of ``work`` with ``blocks`` (of the grid), ``threads`` (of a block) and ``resident`` (blocks that one
        multiprocessor can hold at a time, by threads, registers and shared memory)."""
        registers = self._property("regsPerMultiprocessor", 65536)
        shared = self._property("sharedMemPerMultiprocessor", 233472)
        # Registers are given to warps in units of 256; each block takes 1 KiB of shared memory for the system.
        warps = (pl.col("threads") / 32).ceil()
        per_warp = (pl.col("registers") * 32 / 256).ceil() * 256
        resident = pl.min_horizontal(
            self.threads_per_multiprocessor // pl.col("threads"),
            (registers / (warps * per_warp)).floor(),
            (shared / (pl.col("shared_memory_bytes").fill_null(0) + 1024)).floor(),
            32,  # blocks, whatever their size
        )
        # Shapes are few, launches are many: the texts are read once each.
        for triple, name in (("grid", "blocks"), ("block", "threads")):
            sizes = launches.select(pl.col(triple).unique()).with_columns(
                _product(pl.col(triple).cast(pl.String)).alias(name)
            )
            launches = launches.join(sizes, on=triple, how="left", maintain_order="left")
        return launches.with_columns(resident.alias("resident"))

    @staticmethod
    def short(kernel: str) -> str:
        return short_name(kernel)

    # Savings.

    def device_saving(self, events: pl.DataFrame, basis: str) -> Saving:
        """What is saved if device events are shortened: columns ``id`` and ``saved_ns``."""
        freed = float(events["saved_ns"].sum() or 0) / self.steps / 1000
        if freed < LOW * self.step_us:  # no severity asks for more: the replay is spared
            return Saving(0.0, basis, False, 0.0)
        sooner = timeline.sooner(self.trace, events.select("id", "saved_ns")) / self.steps / 1000
        us = min(freed, sooner)
        busy = self.busy_ns / self.steps / 1000
        if self.unprofiled_us is not None and self.unprofiled_us < DEVICE_BOUND * busy:
            us = freed  # without the profiler the host keeps up: the device sets the pace
        critical = us >= 0.25 * freed
        where = (
            f"{numbers.time(freed)} of device time per {self.unit}, {numbers.time(us)} of it on the critical path"
            if us < 0.95 * freed
            else "all of it on the critical path"
        )
        # Of a device that hardly works, a large part may still be nothing.
        freed_share = freed / max(busy, 1e-9) if freed >= LOW * self.step_us else 0.0
        return Saving(us, f"{basis}; {where}", critical, us / self.step_us, freed_share)

    def host_saving(self, earlier: pl.DataFrame, basis: str) -> Saving:
        """What is saved if host work is shortened: columns ``at`` (ns) and ``saved_ns``. Host time is as profiled;
        where the time of a step without the profiler is known, it is scaled to that."""
        us = timeline.sooner_launched(self.trace, earlier) / self.steps / 1000
        return self.idle_saving(us, basis)

    def both(self, device: Saving, idle: Saving) -> Saving:
        """A saving of device time and one of idle time, together; a step cannot lose more than all of it."""
        whole = self.step_us if self.unprofiled_us is None else self.unprofiled_us
        return Saving(
            min(device.us + idle.us, whole),
            f"{device.basis}; and {idle.basis} ({numbers.time(idle.us)})",
            True,
            min(device.share + idle.share, 1.0),
            device.freed_share,
        )

    def idle_saving(self, profiled_us: float, basis: str) -> Saving:
        """What is saved if ``profiled_us`` per step in which the device idles, the host being behind, go away."""
        us = min(profiled_us, self.step_us)
        share = us / self.step_us
        real = self.unprofiled_us
        if real is not None and real < self.step_us:
            # The profiler slows the host, not the device: all of the difference was idle time.
            idle = max(self.step_us - self.busy_ns / self.steps / 1000, 1e-9)
            us *= max(real - self.busy_ns / self.steps / 1000, 0.0) / idle
            basis += "; scaled to the step's time without the profiler"
            share = us / real
        return Saving(us, basis, True, share)

    # What a finding shows.

    def evidence(self, text: str, events: pl.DataFrame) -> Evidence:
        """Evidence that spans the given events (columns ``event``, ``start_ns``, ``duration_ns``)."""
        if events.is_empty():
            start, end = self.bounds
            return Evidence(text, start / 1000, end / 1000)
        ends = events["start_ns"] + events["duration_ns"]
        return Evidence(
            text,
            int(events["start_ns"].min()) / 1000,  # type: ignore[arg-type]
            int(ends.max()) / 1000,  # type: ignore[arg-type]
            tuple(events["event"].head(SHOWN_EVENTS).to_list()),
        )

    def gap_evidence(self, gap: dict[str, Any]) -> Evidence:
        """Evidence for one row of ``gaps``."""
        shown = gap["host_event"]
        return Evidence(
            f"idle {numbers.time((gap['end_ns'] - gap['start_ns']) / 1000)}: {gap['text']}",
            gap["start_ns"] / 1000,
            gap["end_ns"] / 1000,
            () if shown is None else (int(self.trace.host_events["event"][shown]),),
        )

    def source(self, ops: pl.Series) -> str | None:
        """``file.py:12`` of the user's line around the first of these rows of ``host_events`` that tells it."""
        host = self.trace.host_events
        for row in ops.drop_nulls().head(4).to_list():
            stack = host["call_stack"][row]
            frames: Iterable[str] = stack.split(";") if stack else _frames(host, row)
            for frame in frames:
                if line := user_line(frame):
                    return line
        return None


def severity(saving: Saving, at_most: Severity = "high") -> Severity | None:
    """How serious a saving is, by its share of the step; None: not worth a line.

    Device time that is freed off the critical path shortens nothing today, but is what counts once the host keeps up:
    it is low from ``MEDIUM`` of the busy time on, and information from ``LOW`` on."""
    share = saving.share
    if share < LOW:
        return "low" if saving.freed_share >= MEDIUM else "info" if saving.freed_share >= LOW else None
    if share >= HIGH and at_most == "high":
        return "high"
    return "medium" if share >= MEDIUM and at_most in ("high", "medium") else "low"


@remembered
def scenes(run: Run) -> tuple[Scene, ...]:
    """One a rank."""
    return tuple(Scene(run, trace) for trace in run.traces)


def forget(run: Run) -> None:
    """Let go what only rules look at."""
    scenes.forget(run)
    for trace in run.traces:
        timeline.chain.forget(trace)


def heaviest(events: pl.DataFrame, *by: str) -> list[pl.DataFrame]:
    """The groups of events that would save most (column ``saved_ns``), ``SHOWN_GROUPS`` of them at most."""
    top = events.group_by(*by, maintain_order=True).agg(pl.col("saved_ns").sum().alias("together_ns"))
    top = top.sort("together_ns", descending=True, maintain_order=True).head(SHOWN_GROUPS)
    kept = events.join(top, on=list(by), maintain_order="left").sort(
        "together_ns", descending=True, maintain_order=True
    )
    return kept.partition_by(*by, maintain_order=True) if len(kept) else []


def at_line(file: str | None, line: int | None) -> str | None:
    """``file.py:12``, as findings name a place."""
    return None if file is None else file if line is None else f"{file}:{line}"


_FRAME = re.compile(r"(?P<file>[^\s;<>]+\.py)\((?P<line>\d+)\)")


def user_line(frame: str) -> str | None:
    """``train.py(12): step`` as ``train.py:12``, unless it is a frame of a library."""
    match = _FRAME.search(frame)
    return f"{match['file']}:{match['line']}" if match and not re.search(LIBRARY_FRAME, frame) else None


def _frames(host: pl.DataFrame, row: int | None) -> Iterable[str]:
    while row is not None:
        yield str(host["name"][row])
        row = host["parent"][row]


def _product(triple: pl.Expr) -> pl.Expr:
    """The product of a JSON list of three numbers."""
    numbers = triple.str.extract_all(r"\d+").list.eval(pl.element().cast(pl.Float64))
    return numbers.list.eval(pl.element().product()).list.first().cast(pl.Int64, strict=False)
