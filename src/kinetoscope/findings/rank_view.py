"""One rank's trace as rules look at it: its steps, its device work, its idle time, its events by name."""

from __future__ import annotations

import math
from functools import cached_property

import polars as pl
from msgspec import Struct

from kinetoscope import numbers
from kinetoscope.analysis.collectives.waiting import waits
from kinetoscope.analysis.compiled.regions import compiler_phases
from kinetoscope.analysis.events.enclosing import nearest, with_inside
from kinetoscope.analysis.events.rows import END, constant, matching, rows
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.kernels import taxonomy
from kinetoscope.analysis.kernels.work import computed, work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.memory.peak import RankHistory, histories
from kinetoscope.analysis.origins.lines import OpLines, op_lines
from kinetoscope.analysis.passes.as_it_runs import StepAsItRuns, as_it_runs
from kinetoscope.analysis.passes.whole_run import WholeRunRow, whole_run
from kinetoscope.analysis.replay.change import NO_LATE_BATCHES, ReplayChange
from kinetoscope.analysis.replay.host import is_op, logical_threads
from kinetoscope.analysis.replay.replay import StepReplay, alone
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.busy import busy_intervals
from kinetoscope.analysis.time.window import periods, window
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.recording.manifest import RankRecord
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties, Trace
from kinetoscope.trace.schema import whole

# Columns of ``work`` that no rule uses.
UNUSED = ["rank", "lane", "external_id", "graph", "graph_node", "arguments"]
# Columns of ``host_events`` that rules ask for of the calls of threads: these are many.
CALLED = ["id", "event", "category", "name", "lane", "start_ns", "duration_ns"]
SEGMENT = ["lane", "start_ns", "duration_ns"]  # of a host thread's time
FAILED = "out of memory"
USABLE = 0.9  # of a device's memory: the rest is the driver's, the libraries', and holes


class RankView(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """One trace. ``bounds`` (ns) enclose its recorded steps by the device's clock; without steps, the whole
    recording."""

    run: LoadedRun
    trace: Trace

    @property
    def rank(self) -> int:
        return self.trace.rank

    @property
    def first(self) -> bool:
        """Whether this is the run's first rank, where what all share, such as compiling, is reported."""
        return self.trace is self.run.traces[0]

    @property
    def device(self) -> DeviceProperties | None:
        return self.trace.devices[0] if self.trace.devices else None

    @property
    def compilation(self) -> CompiledProgram | None:
        """The run's compile log, on its first rank, which reports what all share."""
        return self.run.compilation if self.first else None

    def recurs(self, events: pl.DataFrame) -> bool:
        """Whether events begin in at least two of the recorded steps, and in half of them."""
        steps = self.trace.steps["start_ns"]
        return steps.search_sorted(events["start_ns"], side="right").n_unique() >= max(2, len(steps) / 2)

    @cached_property
    def record(self) -> RankRecord | None:
        ranks = self.run.manifest.ranks if self.run.manifest else ()
        return next((record for record in ranks if record.rank == self.rank), None)

    @cached_property
    def lines(self) -> OpLines | None:
        """The lines of the program that call this rank's ops, where they were recorded."""
        return op_lines(self.run).get(self.rank)

    # Steps and their time.

    @cached_property
    def steps(self) -> int:
        """Number of recorded steps; 1 where none were, and then ``unit`` is "recording"."""
        return max(1, len(self.trace.steps))

    @property
    def unit(self) -> str:
        return "step" if len(self.trace.steps) else "recording"

    @cached_property
    def bounds(self) -> tuple[int, int]:
        within = window(self.trace)
        return within.start_ns, within.end_ns

    @cached_property
    def length_ns(self) -> int:
        start, end = self.bounds
        return max(1, end - start)

    @cached_property
    def step_us(self) -> float:
        """Time of one step (or of the recording), as profiled, in µs."""
        return self.us(self.length_ns)

    @cached_property
    def as_it_runs(self) -> StepAsItRuns | None:
        """The rank's own step without the profiler, where the recording has it."""
        return as_it_runs(self.run).get(self.rank) if self.unit == "step" else None

    @property
    def watched(self) -> WholeRunRow | None:
        """The whole run by samples of its thread, where that is this rank's."""
        found = whole_run(self.run)
        return found if found is not None and found.rank == self.rank else None

    @property
    def unprofiled_us(self) -> float | None:
        """Time of a step without the profiler (µs), where the recording has it."""
        return None if self.as_it_runs is None else self.as_it_runs.step_us

    @property
    def own_step_us(self) -> float:
        """Time of a step of the program as it runs; as profiled, where no more is known."""
        return self.step_us if self.unprofiled_us is None else self.unprofiled_us

    @property
    def rare_us(self) -> float:
        """The time that rare long steps, or what comes after every so many, add to the mean step, µs."""
        own = self.as_it_runs
        if own is None or not (own.timed.rare or own.timed.round):
            return 0.0
        mean_us = own.timed.round.per_step_us if own.timed.round else own.timed.mean_us
        return max(0.0, mean_us - own.step_us)

    @property
    def own_busy_us(self) -> float:
        """How long the device is busy in that step, µs."""
        own = self.as_it_runs
        return self.busy_us if own is None or own.busy_us is None else own.busy_us

    @property
    def cold(self) -> bool:
        """Whether only the first of the program's steps were recorded, with all that is loaded in them."""
        steps = None if self.record is None else self.record.steps
        return steps is not None and steps.cold and steps.found_by not in ("whole", "program")

    @property
    def settled(self) -> bool:
        """Whether steps were warmed up until their time had settled, by the recording's manifest."""
        return self.record is not None and self.record.steps.settled and len(self.record.steps.warmup_s) > 0

    @property
    def replay(self) -> StepReplay:
        return alone(self.run)[self.rank]

    def saves(self, change: ReplayChange) -> float:
        """By how much the program's own step gets shorter, µs, by its replay."""
        before = self.replay.step_us
        return 0.0 if before <= 0 else (1 - self.replay.after(change) / before) * self.own_step_us

    def would_save(self, change: ReplayChange) -> float:
        """The same once no step waits for its data loader any more."""
        if not self.replay.waits_for_batches:
            return self.saves(change)
        return self.saves(change | NO_LATE_BATCHES) - self.saves(NO_LATE_BATCHES)

    def per_step(self, count: float) -> float:
        return count / self.steps

    def counted(self, number: int, noun: str) -> str:
        """So many per step, whole: ``1 copy``, ``1,024 copies``."""
        return numbers.count(round(self.per_step(number)), noun)

    def us(self, ns: float) -> float:
        """Nanoseconds of all steps as microseconds per step."""
        return ns / self.steps / 1000

    def us_of(self, events: pl.DataFrame, column: str = "duration_ns") -> float:
        """The sum of a column of nanoseconds as microseconds per step."""
        lengths = events[column]
        if not lengths.dtype.is_float():
            return self.us(float(lengths.sum()))
        # Fractions are summed exactly: Polars adds them in the order of the pieces that its threads made.
        return self.us(math.fsum(lengths.drop_nulls().to_list()))

    # The device: its work and its idle time.

    @cached_property
    def work(self) -> pl.DataFrame:
        """Device work that the recorded steps launched (all of it, without steps): ``analysis.work`` with
        ``op_name``, without the columns that no rule uses."""
        table = work(self.trace).drop(UNUSED)
        if len(self.trace.steps):
            # Work without a launch in the file, before any that has one, was launched before the recording.
            first = table["start_ns"].filter(table["launch"].is_not_null()).min()
            left_over = pl.col("launch").is_null() & (pl.col("start_ns") < pl.lit(first, pl.Int64))
            table = table.filter(pl.col("step").is_not_null() & ~left_over.fill_null(False))
        return table.with_columns(op_name=self.trace.host_events["name"][table["op"]])

    @cached_property
    def computed(self) -> pl.DataFrame:
        """``work``; without a device the steps' ops that compute on the CPU, each as its own launch."""
        if not self.on_cpu:
            return self.work
        ops = computed(self.trace).drop(UNUSED)
        return ops.filter(pl.col("step").is_not_null()) if len(self.trace.steps) else ops

    @property
    def on_cpu(self) -> bool:
        """Whether nothing of the recording ran on a device."""
        return self.trace.device_events.is_empty()

    @cached_property
    def launched(self) -> pl.DataFrame:
        """By ``launch`` (row of ``host_events``) how many device events it ``launched``."""
        return launches(self.trace.device_events["launch"])

    @cached_property
    def launched_within(self) -> pl.Series:
        """By row of ``host_events`` how many device events were launched by it and what is inside it."""
        return launched_within(self.trace, self.trace.device_events["launch"])

    @cached_property
    def known(self) -> pl.DataFrame:
        """The work whose category is known: on the rest no advice is given."""
        unknown = matching(self.work, "category", f"^{taxonomy.OTHER}$")
        return self.work.filter(~unknown) if unknown.any() else self.work

    @cached_property
    def first_work_ns(self) -> int:
        """The time at which the device began the work that the recorded steps launched."""
        return int(self.work.select(pl.min("start_ns")).item() or 0)

    @cached_property
    def busy_ns(self) -> int:
        """Union of device work between the bounds, of the device that did most."""
        clipped = intervals.clip(busy_intervals(self.trace), *self.bounds)
        return int(intervals.length(clipped, ["device"]).select(pl.max("length_ns")).item() or 0)

    @property
    def busy_us(self) -> float:
        return self.us(self.busy_ns)

    @property
    def busy_share(self) -> float:
        """The share of the program's own step, else of the recorded time, in which the device is busy."""
        own = self.as_it_runs
        return (
            self.busy_ns / self.length_ns if own is None or own.busy_fraction is None else own.busy_fraction
        )

    @property
    def working_share(self) -> float:
        """``busy_share`` without what collectives only waited for another recorded rank."""
        return self.busy_share * self._working

    @property
    def working_us(self) -> float:
        """``own_busy_us`` without that waiting."""
        return self.own_busy_us * self._working

    @cached_property
    def waits(self) -> pl.DataFrame:
        """The collectives of this rank that waited for another (``analysis.collectives.waiting``)."""
        return waits(self.run, self.trace)

    @cached_property
    def waited_ns(self) -> int:
        """How long this rank's collectives only waited for another recorded rank."""
        return int(self.waits["saved_ns"].sum()) if len(self.run.traces) > 1 else 0

    @property
    def _working(self) -> float:
        return max(0.0, 1 - self.waited_ns / max(1, self.busy_ns))

    @cached_property
    def gaps(self) -> pl.DataFrame:
        """The idle time of this rank's devices between the bounds, cut by cause (``analysis.idle.gaps``)."""
        own = gaps(self.run)
        if len(self.run.traces) > 1:  # else all of it, which is not to be held twice
            own = own.filter(pl.col("rank") == self.rank)
        return own.with_columns(idle_ns=pl.col("end_ns") - pl.col("start_ns"))

    def idle(self, *causes: str) -> pl.DataFrame:
        return self.gaps.filter(pl.col("cause").is_in(causes))

    def idle_during(self, events: pl.DataFrame) -> pl.DataFrame:
        """Intervals of idle time that coincide with these events."""
        return intervals.intersect(spans(events), self.gaps)

    @cached_property
    def memory(self) -> tuple[RankHistory, ...]:
        """This rank's devices with their allocator's history: where an allocation failed, up to that (it is
        what has to fit), if the history was recorded then; else in the recorded steps."""
        failed = [one for one in self._histories if _failed(one) and len(one.history.curve.table) > 1]
        known = {one.history.device for one in failed}
        return (*failed, *(one for one in self.memory_in_steps if one.history.device not in known))

    @cached_property
    def memory_in_steps(self) -> tuple[RankHistory, ...]:
        """The same in the recorded steps; where an allocation failed before there were any, up to that."""
        return tuple(one for one in self._histories if not _failed(one)) or self._histories

    @cached_property
    def _histories(self) -> tuple[RankHistory, ...]:
        return tuple(one for one in histories(self.run).found if one.rank == self.rank)

    @cached_property
    def peak_and_room(self) -> tuple[int, int] | None:
        """Bytes that the program had at its peak, and that the device has for it; None: not recorded."""
        total = self.device.total_memory_bytes if self.device else None
        peak = self.record.peak_memory_bytes if self.record else None
        return (peak, round(USABLE * total)) if peak and total else None

    @property
    def ran_out(self) -> bool:
        """Whether an allocation of this rank failed."""
        return any(map(_failed, self._histories))

    # Events by name.

    def host(self, pattern: str) -> pl.DataFrame:
        """The host events whose name contains the regular expression, in order of ``id``."""
        return self.trace.host_events[rows(self.trace.host_events, "name", pattern)]

    def around(self, pattern: str) -> pl.Series:
        """For each host event the innermost one around it, or itself, that has such a name (its row)."""
        return nearest(self.trace.host_events, matching(self.trace.host_events, "name", pattern))

    def inside_of(self, rows: pl.Series) -> pl.Series:
        """For each host event the innermost of these rows of ``host_events`` around it, or itself."""
        return nearest(self.trace.host_events, self.trace.host_events["id"].is_in(rows.implode()))

    def kernels(self, pattern: str) -> pl.DataFrame:
        """The device work of the recorded steps whose name contains the regular expression."""
        return self.work[rows(self.work, "name", pattern)]

    def launched_during(self, within: pl.DataFrame) -> pl.DataFrame:
        """The work that the recorded steps ``computed``, launched in these intervals of host threads
        (``lane``, ``start_ns``, ``duration_ns``, disjoint), with the number of its ``interval``."""
        calls = self.trace.host_events.select("lane", "start_ns")[self.computed["launch"]]
        calls = calls.with_row_index("row")
        marks = within.select("lane", "start_ns", END).with_row_index("interval")
        found = intervals.beginning_in(calls, marks, ["lane"]).sort("row")
        return self.computed[found["row"]].with_columns(found["interval"])

    def inside(self, table: pl.DataFrame) -> pl.DataFrame:
        """The rows of a table of events that begin in the steps, by the device's clock or the host's."""
        if table.is_empty():
            return table
        start, end = self.bounds
        if len(marks := periods(self.trace)):
            start = min(start, whole(marks["host_start_ns"].min()))
            end = max(end, whole(marks["host_end_ns"].max()))
        begins = table["start_ns"]
        return table.filter((begins >= start) & (begins <= end))

    @cached_property
    def called(self) -> pl.DataFrame:
        """The ops and calls of the runtime that no other one is around, of the threads that launch (without a
        device: that run most ops), by ``lane`` and start: the columns ``CALLED`` of ``host_events``, with
        ``end_ns``."""
        host = self.trace.host_events
        own = host.select("id", "lane", "start_ns", END)
        own = self.inside(
            own.filter(is_op(self.trace) & host["lane"].is_in(logical_threads(self.trace)["lane"].implode()))
        )
        # Most are inside their parent: without them few are left to be put in order.
        end = constant(None, len(host), pl.Int64).scatter(own["id"], own["end_ns"])
        own = own.filter((own["start_ns"] >= end[host["parent"][own["id"]]]).fill_null(True))
        return host.select(CALLED)[intervals.outermost(own, ["lane"])["id"]].with_columns(END)

    @cached_property
    def compiler_events(self) -> pl.DataFrame:
        """Phases of Dynamo, AOTAutograd and Inductor that torch marks; recording CUDA graphs is left out."""
        return compiler_phases(self.trace, *self.bounds)


def _failed(rank: RankHistory) -> bool:
    return rank.history.moment == FAILED


def spans(events: pl.DataFrame) -> pl.DataFrame:
    """Events as intervals: ``start_ns`` and ``end_ns``."""
    return events.select("start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns"))


def launches(each: pl.Series) -> pl.DataFrame:
    """By ``launch`` how many of the device events it ``launched``, given the launch of each."""
    runs = each.drop_nulls().sort().rle().struct  # launches are nearly in order: no table of hashes needed
    return pl.DataFrame({"launch": runs.field("value"), "launched": runs.field("len")})


def launched_within(trace: Trace, each: pl.Series) -> pl.Series:
    """``RankView.launched_within``, given the launch of each of the device events that count."""
    return with_inside(trace.host_events["parent"], each, constant(1, len(each), pl.UInt32))


@remembered
def views(run: LoadedRun) -> tuple[RankView, ...]:
    return tuple(RankView(run, trace) for trace in run.traces)
