"""Counts of what a step does: they are the same in every run of one program, so that gates on them cannot
flake."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median_low
from typing import NamedTuple

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.compiled.regions import graph_calls
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import PAGEABLE_COPY, SYNCHRONIZATION
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.memory.peak import histories
from kinetoscope.analysis.memory.traced import memory_statistics
from kinetoscope.analysis.origins.attribution import OUTSIDE, UNATTRIBUTED, belonging
from kinetoscope.analysis.time.phases import between_marks, leading_of
from kinetoscope.comparison.account import launched_in_steps
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace


class Countable(Struct, frozen=True):
    """A quantity that is counted; ``exact`` where every run of one program has as many, ``of_device`` where
    there are none without a device."""

    words: str
    per_step: bool = True
    exact: bool = True
    of_device: bool = False
    unit: str = ""


COUNTED: dict[str, Countable] = {
    "launches": Countable("pieces of device work", of_device=True),
    "eager_kernels": Countable("kernels outside of compiled graphs", of_device=True),
    "graph_calls": Countable("calls of compiled graphs"),
    "syncs": Countable("calls that wait for the device", of_device=True),
    "copies": Countable("copies", of_device=True),
    "pageable_copies": Countable("copies from or to pageable memory", of_device=True),
    "copied_bytes": Countable("bytes copied", of_device=True, unit="B"),
    "ops": Countable("operators called"),
    "graph_breaks": Countable("graph breaks", per_step=False),
    "recompilations": Countable("recompilations", per_step=False),
    "compile_failures": Countable("frames that were not compiled", per_step=False),
    "graphs": Countable("compiled graphs", per_step=False),
    "generated_kernels": Countable("generated kernels", per_step=False),
    "guards": Countable("guards", per_step=False),
    "cache_hits": Countable("cache hits of compiled graphs", per_step=False, exact=False),
    "cache_misses": Countable("cache misses of compiled graphs", per_step=False, exact=False),
    "compile_s": Countable("seconds of compiling", per_step=False, exact=False, unit="s"),
    "peak_memory": Countable("peak of device memory", of_device=True, per_step=False, unit="B"),
}

Counts = dict[str, float | None]


@remembered
def counts(run: LoadedRun) -> Counts:
    """All counts, of the rank with most launches; None where the recording does not have them."""
    found: Counts = dict.fromkeys(COUNTED)
    if (trace := counted_rank(run)) is not None:
        # Of the usual step: a sum over steps would differ with extra work of some of them (logging).
        found |= {name: usual(trace, counted) for name, counted in counted_of_steps(run).items()}
    found |= _of_compiling(run)
    found["peak_memory"] = _peak_memory(run)
    return found


@remembered
def counted_rank(run: LoadedRun) -> Trace | None:
    """The rank with most launches in the usual step; None where nothing was recorded."""
    traces = [trace for trace in run.traces if trace.source.events]
    return max(traces, key=lambda trace: usual(trace, Counted(work(trace))), default=None)


class Counted(NamedTuple):
    """The events that one quantity counts: ``step``, ``name``, and ``op``, the row of ``host_events`` that
    made it (or null); ``measure`` where each counts for more than one."""

    events: pl.DataFrame
    measure: pl.Expr = pl.len()


@remembered
def counted_of_steps(run: LoadedRun) -> dict[str, Counted]:
    """The events that the counts of steps are of, by the names of the counts, of ``counted_rank``."""
    if (trace := counted_rank(run)) is None:
        return {}
    host = trace.host_events
    kind, name = pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String)
    device = launched_in_steps(trace, belonging(run).filter(pl.col("rank") == trace.rank))
    copies = device.filter(kind == "memcpy")
    found = {
        "launches": Counted(device),
        "copies": Counted(copies),
        "copied_bytes": Counted(copies, pl.col("bytes").fill_null(0).sum()),
        "pageable_copies": Counted(copies.filter(matching(copies, "name", PAGEABLE_COPY))),
    }
    if host.is_empty():
        return found
    eager = pl.col("graph").cast(pl.String).is_in([OUTSIDE["graph"], UNATTRIBUTED])
    waits = host.filter(matching(host, "name", SYNCHRONIZATION))
    around = host["name"].gather(waits["parent"]).cast(pl.String)
    calls = {
        "syncs": waits.with_columns(around=around).with_columns(name=pl.coalesce("around", name)),
        "ops": host.filter(pl.col("category").cast(pl.String) == "cpu_op"),
        "graph_calls": graph_calls(trace).with_columns(name="graph"),
    }
    return {
        **found,
        "eager_kernels": Counted(device.filter(kind == "kernel", eager)),
        **{what: Counted(_marked(trace, events).with_columns(op="id")) for what, events in calls.items()},
    }


def _marked(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    if trace.steps.is_empty():
        return events.with_columns(step=pl.lit(0, pl.UInt32))
    return between_marks(trace, events)


def usual(trace: Trace, counted: Counted) -> float:
    """How many events, or how much of them, the usual step has: the middle one, or the smaller of two."""
    events, measure = counted
    if trace.steps.is_empty():
        return float(events.select(measure).item() or 0)
    steps = leading_of(trace)["step"].to_list()
    sums = dict(events.group_by("step").agg(count=measure).select("step", "count").iter_rows())
    return float(median_low([sums.get(step, 0) for step in steps]))


_COMPILING: dict[str, Callable[[CompiledProgram], float]] = {
    "graph_breaks": lambda log: len(log.graph_breaks),  # places, as in reports
    "recompilations": lambda log: sum(row.count for row in log.recompilations),
    "compile_failures": lambda log: sum(frame.status in ("failed", "skipped") for frame in log.frames),
    "graphs": lambda log: len(log.graphs),
    "generated_kernels": lambda log: len(log.kernels),
    "guards": lambda log: sum(frame.guards or 0 for frame in log.frames),
    "cache_hits": lambda log: log.fx_cache.hit + log.aot_cache.hit,
    "cache_misses": lambda log: log.fx_cache.miss + log.aot_cache.miss,
    "compile_s": lambda log: sum(frame.compile_s for frame in log.frames),
}


def _of_compiling(run: LoadedRun) -> Counts:
    """The counts of a compile log; None where none was to be written."""
    if run.compilation is not None:
        return {name: float(count(run.compilation)) for name, count in _COMPILING.items()}
    watched = run.manifest is not None and run.manifest.options.get("compile_log") is True
    return dict.fromkeys(_COMPILING, 0.0 if watched else None)


def _peak_memory(run: LoadedRun) -> float | None:
    """The peak of a device's memory; a process' memory on the host differs from run to run."""
    if run.manifest is not None and run.manifest.environment.devices:
        peaks = [record.peak_memory_bytes for record in run.manifest.ranks if record.peak_memory_bytes]
        if peaks:
            return float(max(peaks))
    recorded = memory_statistics(run)["peak_allocated"].to_list()[:1]
    recorded = recorded or [one.history.requested for one in histories(run).found]
    return float(max(recorded)) if recorded else None
