"""Parts, by which ranks are compared: one rank's trace, mapped to tables of some tens of kilobytes.

A thousand ranks are compared without their traces: each is read by itself, and what is kept of it is a part.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import polars as pl
from msgspec.structs import replace

from kinetoscope.analysis.collectives.recorded import (
    COLLECTIVES,
    PAIR,
    REPEATED,
    collectives,
    host_of,
    world_size,
)
from kinetoscope.analysis.events.backward import updates
from kinetoscope.analysis.events.rows import END, constant, matching
from kinetoscope.analysis.events.torch_names import AUTOGRAD_NODE, BASE, SYNCHRONIZATION
from kinetoscope.analysis.idle import causes
from kinetoscope.analysis.idle.gaps import gaps_of
from kinetoscope.analysis.kernels.names import short_names
from kinetoscope.analysis.kernels.work import DEVICE, work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.ranks.lateness import CAUSES, OWN_WORK
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.busy import busy_intervals
from kinetoscope.analysis.time.window import periods, window
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

FORWARD, BACKWARD, UPDATE = "forward", "backward", "optimizer"
COMPUTED = {
    "step": pl.String,
    "what": pl.String,
    "launched_ns": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


def segments(trace: Trace) -> pl.DataFrame:
    """One row per segment of one sort between whose launches no collective was launched, in that order:
    ``step``, ``what`` (``FORWARD``, ``BACKWARD``, ``UPDATE``), ``launched_ns`` (of its first kernel) and from
    when to when its kernels ran (``start_ns``, ``end_ns``). Of a rank that neither sends nor receives nothing
    is kept."""
    met = collectives(trace)
    if not (met["semantics"] == PAIR).any():
        return pl.DataFrame(schema=COMPUTED)
    own = work(trace).filter(pl.col("part") != "communication", pl.col("launch").is_not_null())
    host = trace.host_events
    calls = host[own["launch"]]
    table = (
        own.select(_named(trace, own), "start_ns", "end_ns")
        .with_columns(
            calls["start_ns"].alias("launched_ns"),
            _within(host.filter(matching(host, "name", AUTOGRAD_NODE)), calls).alias(BACKWARD),
            _within(updates(trace), calls).alias(UPDATE),
        )
        .select(
            "step",
            pl.when(BACKWARD).then(pl.lit(BACKWARD)).when(UPDATE).then(pl.lit(UPDATE))
            .otherwise(pl.lit(FORWARD)).alias("what"),
            "launched_ns", "start_ns", "end_ns",
        )
        .sort("launched_ns")
    )  # fmt: skip
    launches = met.select(pl.col("launched_ns").drop_nulls().sort()).with_row_index("met")
    table = table.join_asof(launches, on="launched_ns", check_sortedness=False)
    cut = [pl.col(name).ne_missing(pl.col(name).shift(1)) for name in ("step", "what", "met")]
    return (
        table.group_by(pl.any_horizontal(cut).cum_sum().alias("segment"), maintain_order=True)
        .agg(pl.col("step", "what", "launched_ns").first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .select(typed(COMPUTED))
    )


def _named(trace: Trace, table: pl.DataFrame) -> pl.Series:
    """The name of each row's step; empty outside of steps."""
    return trace.steps["name"].gather(table["step"]).fill_null("").alias("step")


def _within(events: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Whether calls lie within these events on their own thread."""
    events = events.select("lane", "start_ns", END)
    instants = calls.select("lane", "start_ns", end_ns=pl.col("start_ns") + 1)
    return intervals.covered(intervals.union(events, ["lane"]), instants, ["lane"]) > 0


WALL_CLOCK_NS = 10**18  # September 2001; what is less is the time since something else
KERNELS = 40  # names of a rank, those of most time; the rest is one row per step
REST = "others"
# What a rank's device did on its own between two collectives: they sum to ``own_ns``.
APPROACH = ["busy", *causes.CAUSES]
AT_ITS_END_NS = 2_000  # what begins so near to a collective's end waited for it
MOST_INTERVALS = 4096  # that are kept of what a device computed while a collective ran

PARTED = {**COLLECTIVES, **OWN_WORK}
OVERLAPPED = {"device": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
KERNEL_TIMES = {"step": REPEATED, "name": REPEATED, "launches": pl.UInt32, "duration_ns": pl.Int64}
STEPS = {"name": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a part's rank, in addition to its tables; times are ns, those of devices the sum of all."""

    rank: int
    numbered: bool = True  # the trace itself says its rank
    world: int | None = None
    host: str = ""
    path: str = ""
    bytes: int = 0
    events: int = 0
    damages: tuple[str, ...] = ()
    device: str = ""
    start_ns: int = 0
    began_ns: int = 0  # when its window began, on the wall clock; 0 where the trace does not say that
    job: str = ""  # the job that it is of, as ``kinetoscope map --job`` was given it
    window_ns: int = 0
    busy_ns: int = 0
    compute_ns: int = 0
    copy_ns: int = 0


class RankPart(msgspec.Struct, frozen=True, eq=False):
    """Args:
    collectives: columns of ``PARTED``: ``collectives`` with what its rank did on its own from its collective
        before to this one (``own_ns``, null for the first, and what of it is of ``CAUSES``): from
        start to start, less the time for which the device could do nothing but wait for a collective to end.
        ``host_ns``: how long its host took from that one's launch to this one's while it did not wait for the
        device. ``overlapping_ns``: how much of its own a rank did from the collective's start until nothing
        was left to do; ``blocked_ns``: from then until its end.
    kernels: columns of ``KERNEL_TIMES``.
    steps: columns of ``STEPS``, by the device's clock.
    overlapped: columns of ``OVERLAPPED``: when the device computed or copied while a collective ran; of more
        than ``MOST_INTERVALS`` those with the shortest pauses between them are one.
    computed: columns of ``COMPUTED``: of a pipeline's stage what it computed between sends and receives."""

    facts: RankFacts
    collectives: pl.DataFrame
    kernels: pl.DataFrame
    steps: pl.DataFrame
    overlapped: pl.DataFrame = msgspec.field(default_factory=lambda: pl.DataFrame(schema=OVERLAPPED))
    computed: pl.DataFrame = msgspec.field(default_factory=lambda: pl.DataFrame(schema=COMPUTED))


Part = TypeVar("Part", bound=RankPart)


@remembered
def part(trace: Trace) -> RankPart:
    within, lost = window(trace), gaps_of(trace)
    own = work(trace)
    facts = RankFacts(
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
        began_ns=_on_wall_clock(trace, within.start_ns),
        window_ns=within.length_ns,
        busy_ns=intervals.total(intervals.clip(busy_intervals(trace), within.start_ns, within.end_ns)),
        compute_ns=intervals.total(intervals.union(own.filter(pl.col("part") == "compute"), DEVICE)),
        copy_ns=intervals.total(intervals.union(own.filter(pl.col("part") == "copy"), DEVICE)),
    )
    steps = periods(trace).select(STEPS.keys()) if len(trace.steps) else pl.DataFrame(schema=STEPS)
    met = _approached(trace, lost, overlapped := _overlapped(trace))
    return RankPart(facts, met, _kernels(trace), steps, _fewer(overlapped), segments(trace))


def renumbered(part: Part, rank: int) -> Part:
    facts = msgspec.structs.replace(part.facts, rank=rank, numbered=True)
    table = part.collectives.with_columns(rank=pl.lit(rank, pl.Int32))
    return replace(part, facts=facts, collectives=table)


def placed(part: Part, host: str, job: str = "") -> Part:
    """The part with the host that its recording names, where the trace itself does not, and with its job."""
    facts = msgspec.structs.replace(part.facts, host=part.facts.host or host, job=job or part.facts.job)
    return part if facts == part.facts else replace(part, facts=facts)


def _on_wall_clock(trace: Trace, at_ns: int) -> int:
    """Times are counted from a base that the file names; in older files they are those of the wall clock."""
    match trace.metadata.get(BASE):
        case int(base) | float(base):
            return int(base) + at_ns
        case _:
            return at_ns if at_ns > WALL_CLOCK_NS else 0


def _overlapped(trace: Trace) -> pl.DataFrame:
    """When a device computed or copied while a collective ran, merged."""
    is_collective = pl.col("part") == "communication"
    communicated, other = (
        intervals.union(work(trace).filter(one), ["device"]) for one in (is_collective, ~is_collective)
    )
    found = intervals.intersect(communicated, other, ["device"])
    return found.select(typed(OVERLAPPED))


def _fewer(overlapped: pl.DataFrame) -> pl.DataFrame:
    """At most ``MOST_INTERVALS``: the shortest pauses are closed."""
    pause = pl.col("start_ns") - pl.col("end_ns").shift(1).over("device")
    table = overlapped.with_columns(pause=pause)
    longest = table["pause"].drop_nulls().sort(descending=True)
    if len(table) <= MOST_INTERVALS:
        return overlapped
    begins = pl.col("pause").is_null() | (pl.col("pause") > longest[MOST_INTERVALS - 1])
    return (
        table.group_by("device", begins.cum_sum().alias("interval"), maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").last())
        .drop("interval")
    )


def _approached(trace: Trace, lost: pl.DataFrame, overlapped: pl.DataFrame) -> pl.DataFrame:
    """The collectives, with their rank's own work before and during each."""
    table = collectives(trace).with_columns(
        since_ns=pl.col("start_ns").shift(1).over("device"), at=pl.col("end_ns") - AT_ITS_END_NS
    )
    # What began to run in a collective did not wait for its end: from the last of it on nothing was left to
    # do.
    last = table.select("device", "at").with_row_index("row").sort("at").join_asof(
        overlapped.sort("start_ns"), left_on="at", right_on="start_ns", by="device", check_sortedness=False,
        allow_exact_matches=False,
    ).sort("row")["end_ns"]  # fmt: skip
    table = table.drop("at").with_columns(
        done_ns=pl.max_horizontal("start_ns", pl.min_horizontal(last.fill_null(0), "end_ns")),
        first=pl.col("since_ns").is_null(),
        since_ns=pl.coalesce("since_ns", "start_ns"),
    )
    between, blocked, overlapping = _covered(trace, lost, overlapped, table)
    own = table["start_ns"] - table["since_ns"] - blocked
    nothing = constant(0, len(table), pl.Int64)
    between["start-or-end"] += own - sum(between.values(), nothing)
    return table.with_columns(
        own.set(table["first"], None).alias("own_ns"),
        _host(trace, table).alias("host_ns"),
        **{cause: sum((between[name] for name in of), nothing) for cause, of in CAUSES.items()},
        overlapping_ns=pl.col("done_ns") - pl.col("start_ns") - overlapping,
        blocked_ns=pl.col("end_ns") - pl.col("done_ns"),
    ).select(typed(PARTED))


def _host(trace: Trace, table: pl.DataFrame) -> pl.Series:
    """From launch to launch, less synchronisations: there a host waits for others, or for its own device."""
    host = trace.host_events.filter(matching(trace.host_events, "name", SYNCHRONIZATION))
    waits = intervals.union(host.select("start_ns", END))
    waited = intervals.covered_until(waits, table.select(at=pl.col("launched_ns").fill_null(0)))
    return table.select((pl.col("launched_ns") - waited).diff().over("device")).to_series()


def _covered(
    trace: Trace, lost: pl.DataFrame, overlapped: pl.DataFrame, table: pl.DataFrame
) -> tuple[dict[str, pl.Series], pl.Series, pl.Series]:
    """From a collective's start to the next one's: how long the device computed or copied, and was idle for
    each cause; how long a collective blocked it; and how long another one did until nothing was left to do
    during it. All in one search: calls cost, rows do not."""
    own = work(trace)
    is_collective = pl.col("part") == "communication"
    names = [*APPROACH, "communication", "overlapped", "blocked"]
    cover = pl.Enum(names)
    key = ["cover", "device"]
    covers = [
        one.select(what.cast(pl.String).cast(cover).alias("cover"), "device", "start_ns", "end_ns")
        for one, what in (
            (own.filter(~is_collective), pl.lit("busy")),
            (lost, pl.col("cause")),
            (own.filter(is_collective), pl.lit("communication")),
            (overlapped, pl.lit("overlapped")),
            (table.drop("start_ns").rename({"done_ns": "start_ns"}), pl.lit("blocked")),
        )
    ]
    edges = [
        *((name, bound) for name in names for bound in ("since_ns", "start_ns")),
        *(("blocked", bound) for bound in ("start_ns", "done_ns")),
    ]
    each = pl.int_range(len(edges) * len(table), dtype=pl.UInt32, eager=True) // max(1, len(table))
    instants = pl.DataFrame(
        {
            "cover": pl.Series([name for name, _ in edges], dtype=cover)[each],
            "device": pl.concat([table["device"]] * len(edges)),
            "at": pl.concat([table[bound] for _, bound in edges]),
        }
    )
    until = intervals.covered_until(intervals.union(pl.concat(covers), key), instants, key)
    cut = [until.slice(len(table) * k, len(table)) for k in range(len(edges))]
    lengths = [after - before for before, after in zip(cut[::2], cut[1::2], strict=True)]
    between = dict(zip(names, lengths, strict=False))
    blocked = between.pop("blocked")
    between["unexplained"] += between.pop("communication") - between.pop("overlapped") - blocked
    return between, blocked, lengths[-1]


def _kernels(trace: Trace) -> pl.DataFrame:
    """Launches and time of kernels by step and name; steps are empty where none was recorded."""
    computing = work(trace).filter(pl.col("part") == "compute")
    table = (
        computing.select("name", "duration_ns", _named(trace, computing))
        .group_by("name", "step")
        .agg(pl.len().alias("launches"), pl.col("duration_ns").sum())
    )
    most = table.group_by(pl.col("name").cast(pl.String)).agg(pl.col("duration_ns").sum())
    texts = most.sort("duration_ns", "name", descending=[True, False])["name"].head(KERNELS).to_list()
    short = dict(zip(texts, short_names(texts), strict=True))
    return (
        table.with_columns(pl.col("name").cast(pl.String).replace_strict(short, default=REST))
        .group_by("step", "name")
        .agg(pl.col("launches", "duration_ns").sum())
        .sort("step", "duration_ns", "name", descending=[False, True, False])
        .select(typed(KERNEL_TIMES))
    )
