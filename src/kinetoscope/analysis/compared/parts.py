"""What ranks are compared by: one rank's trace, mapped to tables of some tens of kilobytes.

A thousand ranks are compared without their traces: each is read by itself, and what is kept of it is a part.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec
import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import SYNCHRONIZATION
from kinetoscope.analysis.idle.causes import CAUSES
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.kernels.names import short_names
from kinetoscope.analysis.kernels.work import DEVICE, work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.ranks.collectives import COLLECTIVES, collectives, host_of, world_size
from kinetoscope.analysis.ranks.stretches import COMPUTED, stretches
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.busy import busy_intervals
from kinetoscope.analysis.time.periods import periods
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace

KERNELS = 40  # names of a rank, those of most time; the rest is one row a step
REST = "others"
# What the device did from the end of one collective to the start of the next: columns that sum to ``own_ns``.
APPROACH = ["busy", *CAUSES]
# A collective is cut into so many stretches, and of each it is kept how much of it the device computed
# beside.
STRETCHES = 8

PARTED = {
    **COLLECTIVES,
    "own_ns": pl.Int64,
    "host_ns": pl.Int64,
    **dict.fromkeys(APPROACH, pl.Int64),
    "beside_ns": pl.List(pl.Int64),
}
KERNEL_TIMES = {"step": pl.String, "name": pl.String, "launches": pl.UInt32, "duration_ns": pl.Int64}
STEPS = {"name": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a part says of its rank beside its tables. Times are ns; those of devices are the sum of all."""

    rank: int
    numbered: bool = True
    """The trace itself says its rank."""
    world: int | None = None
    host: str = ""
    path: str = ""
    bytes: int = 0
    events: int = 0
    damages: tuple[str, ...] = ()
    device: str = ""
    start_ns: int = 0
    window_ns: int = 0
    busy_ns: int = 0
    compute_ns: int = 0
    copy_ns: int = 0
    idle_ns: dict[str, int] = {}


@dataclass(frozen=True, eq=False)
class Part:
    """Args:
    collectives: columns of ``PARTED``: ``collectives`` with what the device did since the one before
        (``own_ns`` and its parts; null for the first), ``host_ns``, how long its host took from that one's
        launch to this one's while it did not wait for the device, and ``beside_ns``, how long it computed or
        copied in each of ``STRETCHES`` equal stretches of it.
    kernels: columns of ``KERNEL_TIMES``.
    steps: columns of ``STEPS``, by the device's clock.
    computed: columns of ``COMPUTED``: of a pipeline's stage what it computed between sends and receives.
    """

    facts: Facts
    collectives: pl.DataFrame
    kernels: pl.DataFrame
    steps: pl.DataFrame
    computed: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COMPUTED))


@remembered
def part(trace: Trace) -> Part:
    """The part of one trace."""
    run, within = Run((trace,)), window(trace)
    own = work(trace)
    lost = gaps(run).with_columns(length=pl.col("end_ns") - pl.col("start_ns"))
    facts = Facts(
        rank=trace.rank,
        numbered="distributedInfo" in trace.metadata,
        world=world_size(trace),
        host=host_of(trace.source.path),
        path=trace.source.path,
        bytes=trace.source.bytes,
        events=trace.source.events,
        damages=() if trace.source.complete else tuple(damage.text for damage in trace.source.damages),
        device=trace.devices[0].name if trace.devices else "",
        start_ns=within.start_ns,
        window_ns=within.length_ns,
        busy_ns=intervals.total(intervals.clip(busy_intervals(trace), within.start_ns, within.end_ns)),
        compute_ns=intervals.total(intervals.union(own.filter(pl.col("part") == "compute"), DEVICE)),
        copy_ns=intervals.total(intervals.union(own.filter(pl.col("part") == "copy"), DEVICE)),
        idle_ns={
            str(cause): int(length)
            for cause, length in lost.group_by("cause").agg(pl.col("length").sum()).iter_rows()
        },
    )
    steps = periods(trace).select(STEPS.keys()) if len(trace.steps) else pl.DataFrame(schema=STEPS)
    return Part(facts, _approached(trace, lost), _kernels(trace), steps, stretches(trace))


def renumbered(part: Part, rank: int) -> Part:
    """The same part, of the rank that it is known to be."""
    facts = msgspec.structs.replace(part.facts, rank=rank, numbered=True)
    table = part.collectives.with_columns(pl.lit(rank, pl.Int32).alias("rank"))
    return replace(part, facts=facts, collectives=table)


def placed(part: Part, host: str) -> Part:
    """The same part, of a host that its recording names, where the trace itself does not."""
    if part.facts.host or not host:
        return part
    return replace(part, facts=msgspec.structs.replace(part.facts, host=host))


def _approached(trace: Trace, lost: pl.DataFrame) -> pl.DataFrame:
    """The collectives, with what came before each."""
    table = collectives(trace).with_columns(
        pl.col("end_ns").cum_max().shift(1).over("device").alias("free_ns")
    )
    table = table.with_columns(
        pl.col("free_ns").is_null().alias("first"),
        pl.min_horizontal(pl.col("free_ns").fill_null(pl.col("start_ns")), "start_ns").alias("free_ns"),
    )
    between, beside = _covered(trace, lost, table)
    own = table["start_ns"] - table["free_ns"]
    between["start-or-end"] += own - sum(between.values(), pl.zeros(len(table), pl.Int64, eager=True))
    return table.with_columns(
        own.set(table["first"], None).alias("own_ns"),
        _host(trace, table).alias("host_ns"),
        *(length.alias(name) for name, length in between.items()),
        pl.DataFrame(beside).select(pl.concat_list(pl.all())).to_series().alias("beside_ns"),
    ).select(pl.col(name).cast(dtype) for name, dtype in PARTED.items())


def _host(trace: Trace, table: pl.DataFrame) -> pl.Series:
    """From launch to launch, less synchronisations: there a host waits for others, or for its own device."""
    host = trace.host_events.filter(matching(trace.host_events, "name", SYNCHRONIZATION))
    waits = intervals.union(host.select("start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns")))
    waited = intervals.covered_until(waits, table.select(at=pl.col("launched_ns").fill_null(0)))
    return table.select((pl.col("launched_ns") - waited).diff().over("device")).to_series()


def _covered(
    trace: Trace, lost: pl.DataFrame, table: pl.DataFrame
) -> tuple[dict[str, pl.Series], list[pl.Series]]:
    """How much of each way the device computed or copied, and was idle for each cause; and how much of each
    of the ``STRETCHES`` of a collective it computed or copied. All in one search: calls cost, rows do not."""
    key = ["cover", "device"]
    covers = [
        one.select(cover.cast(pl.String).alias("cover"), "device", *intervals.BOUNDS)
        for one, cover in (
            (work(trace).filter(pl.col("part") != "communication"), pl.lit("busy")),
            (lost, pl.col("cause")),
        )
    ]
    stretch = (pl.col("end_ns") - pl.col("start_ns")) / STRETCHES
    bounds = [(pl.col("start_ns") + stretch * k).cast(pl.Int64) for k in range(STRETCHES + 1)]
    edges = [
        *((name, pl.col(bound)) for name in APPROACH for bound in ("free_ns", "start_ns")),
        *(("busy", bound) for bound in bounds),
    ]
    instants = [table.select(pl.lit(cover).alias("cover"), "device", at=at) for cover, at in edges]
    until = intervals.covered_until(intervals.union(pl.concat(covers), key), pl.concat(instants), key)
    cut = [until.slice(len(table) * k, len(table)) for k in range(len(edges))]
    ways, inside = cut[: 2 * len(APPROACH)], cut[2 * len(APPROACH) :]
    return (
        {name: ways[2 * k + 1] - ways[2 * k] for k, name in enumerate(APPROACH)},
        [(after - before).alias(str(k)) for k, (before, after) in enumerate(pairwise(inside))],
    )


def _kernels(trace: Trace) -> pl.DataFrame:
    """Launches and time of kernels by step and name; steps are empty where none was recorded."""
    names = trace.steps.select(pl.col("id").alias("step"), pl.col("name").alias("step_name"))
    table = (
        work(trace)
        .filter(pl.col("part") == "compute")
        .join(names, on="step", how="left")
        .group_by("name", pl.col("step_name").fill_null("").alias("step"))
        .agg(pl.len().alias("launches"), pl.col("duration_ns").sum())
    )
    most = table.group_by("name").agg(pl.col("duration_ns").sum()).top_k(KERNELS, by="duration_ns")["name"]
    texts = most.cast(pl.String).to_list()
    short = dict(zip(texts, short_names(texts), strict=True))
    return (
        table.with_columns(pl.col("name").cast(pl.String).replace_strict(short, default=REST))
        .group_by("step", "name")
        .agg(pl.col("launches", "duration_ns").sum())
        .sort("step", "duration_ns", "name", descending=[False, True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in KERNEL_TIMES.items())
    )
