"""The step of one run as an account: every microsecond has one owner, so that accounts can be subtracted.

The device's busy time goes to launches: where streams overlap, an instant belongs to the launch that began
first. Its idle time goes to causes; where the host was late (``launch-bound``), it goes to the launch that
ended the gap, since it disappears with that launch. Without a device the step is the host's: ops, and the
time around them.
"""

from __future__ import annotations

from collections import Counter

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import LIBRARY_FRAME
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.attribution import belonging
from kinetoscope.analysis.passes.as_it_runs import as_it_runs
from kinetoscope.analysis.passes.match import aligned
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.phases import leading_of
from kinetoscope.analysis.time.window import periods, window
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.distribution import median
from kinetoscope.trace.model import Trace, with_arguments
from kinetoscope.trace.schema import typed

WHOLE = 0  # the step of all work where none were recorded

FRAME = r"^(.*\.py)\(\d+\): (.*)$"  # the line moves with every edit above it: names leave it out


def host_ops(trace: Trace, steps: pl.Series) -> pl.DataFrame:
    """The ops of the steps' own threads, each with the time that is in no op below it."""
    host = trace.host_events
    name = pl.col("name").cast(pl.String)
    found = _inside(trace, steps, host.filter(matching(host, "category", "^cpu_op$")))
    found = with_arguments(found, trace.host_arguments, "input_dims")
    return found.sort("step", "start_ns", "id").select(
        "id", "step", pl.col("start_ns").alias("at_ns"), name.alias("name"), pl.col("id").alias("op"),
        name.alias("op_name"), pl.lit("host").alias("category"), pl.lit("no module").alias("module"),
        pl.lit("eager").alias("graph"), _shape(pl.col("input_dims")).alias("shape"),
        pl.col("self_ns").alias("own_ns"), "duration_ns",
    )  # fmt: skip


def _shape(dims: pl.Expr) -> pl.Expr:
    """The JSON of recorded shapes without its spaces: which there are differs between who wrote the trace."""
    return dims.cast(pl.String).fill_null("").str.replace_all(" ", "", literal=True)


def functions(trace: Trace, steps: pl.Series) -> pl.DataFrame:
    """The time of these threads outside of ops by the innermost of the program's own functions: ``who`` (""
    where none is known), ``host_event`` (one of its frames) and ``ns``. Empty without Python stacks."""
    host = trace.host_events
    is_frame = matching(host, "category", "^python_function$") & matching(host, "name", FRAME)
    own = nearest(host, is_frame & ~matching(host, "name", LIBRARY_FRAME))
    outside = host.with_columns(own=own).filter(~matching(host, "category", "^cpu_op$"))
    found = _inside(trace, steps, outside)
    frames = host["name"].gather(found["own"]).cast(pl.String)
    return (
        found.with_columns(who=frames.str.replace(FRAME, "$2 ($1)").fill_null(""))
        .group_by("who", maintain_order=True)
        .agg(host_event=pl.col("own").drop_nulls().first(), ns=pl.col("self_ns").sum())
        .filter(pl.lit(is_frame.any()), pl.col("ns") > 0)
    )


def _inside(trace: Trace, steps: pl.Series, events: pl.DataFrame) -> pl.DataFrame:
    """The events that begin in one of the steps (``step``), on its thread; without steps, the busiest's."""
    if not len(trace.steps):
        most = events["lane"].mode().sort().head(1)
        return events.filter(pl.col("lane").is_in(most.implode())).with_columns(step=pl.lit(WHOLE, pl.UInt32))
    lanes = trace.host_events["lane"].gather(trace.steps["host_event"])
    marks = trace.steps.select("start_ns", END, step="id").with_columns(lanes)
    return intervals.beginning_in(events, marks.filter(pl.col("step").is_in(steps.implode())), ["lane"])


LAUNCH_BOUND = "launch-bound"
OUTSIDE_OF_OPS, NOTHING_RAN = "outside of ops", "nothing ran"

PIECES = {
    "id": pl.UInt32, "step": pl.UInt32, "at_ns": pl.Int64, "name": pl.String, "op": pl.UInt32,
    "op_name": pl.String, "category": pl.String, "module": pl.String, "graph": pl.String, "shape": pl.String,
    "own_ns": pl.Int64, "duration_ns": pl.Int64,
}  # fmt: skip
IDLE = {"cause": pl.String, "who": pl.String, "host_event": pl.UInt32, "us": pl.Float64}


class Account(Struct, frozen=True, eq=False):
    """The step of one rank: the slowest, as the others wait for it. Times are µs per step."""

    # run, trace: whose step it is
    run: LoadedRun
    trace: Trace
    step_us: float
    unit: str  # ``step``, or ``recording`` where no steps were recorded
    basis: str  # ``as it runs`` (timed without the profiler) or ``as recorded``
    on_device: bool  # False where only the host was recorded: pieces are ops then
    # one row a place in the step, in order: ``name``, ``op`` (a row of ``host_events``), ``op_name``,
    # ``category``, ``module``, ``graph``, ``shape``, ``us`` (busy time that is its own), ``idle_us`` (launch-
    # bound time before it), ``duration_us`` (of one launch), ``launches`` (a step)
    launches: pl.DataFrame
    # the rest of the step, by ``cause`` and ``who`` (an op, a call), ``host_event`` and ``us``
    idle: pl.DataFrame
    busy_by_step_us: tuple[float, ...] = ()  # the device's time in each of the steps; empty of a host's

    @property
    def busy_us(self) -> float:
        return float(self.launches["us"].sum())

    @property
    def device_share(self) -> float:
        """The part of the step in which the device works; 0 of a host's."""
        return min(1.0, self.busy_us / self.step_us) if self.on_device and self.step_us else 0.0


@remembered
def account(run: LoadedRun) -> Account | None:
    """The account of the program as it runs; None where nothing ran, as with compile logs alone."""
    traces = [trace for trace in run.traces if trace.source.events]
    return _account(run, max(traces, key=lambda trace: _step_us(run, trace))) if traces else None


@remembered
def recorded_account(run: LoadedRun) -> Account | None:
    """The account of the recorded steps, even where others were timed: to compare with a bare trace."""
    traces = [trace for trace in run.traces if trace.source.events]
    return _account(run, max(traces, key=_recorded_us), recorded=True) if traces else None


def _step_us(run: LoadedRun, trace: Trace) -> float:
    own = as_it_runs(run).get(trace.rank)
    return _recorded_us(trace) if own is None else own.step_us


def _recorded_us(trace: Trace) -> float:
    lengths = leading_of(trace)["duration_ns"].to_list() if len(trace.steps) else []
    return (median(lengths) if lengths else window(trace).length_ns) / 1000


def _account(run: LoadedRun, trace: Trace, *, recorded: bool = False) -> Account:
    own = None if recorded else as_it_runs(run).get(trace.rank)
    length_us = _recorded_us(trace) if own is None else own.step_us
    by_cause = None if own is None or own.busy_us is None else own.idle
    steps = leading_of(trace)["step"] if len(trace.steps) else pl.Series([WHOLE], dtype=pl.UInt32)
    device = _device(trace, steps)
    on_host = device is None and not trace.devices
    pieces = host_ops(trace, steps) if on_host else _pieces(run, trace, steps, device)
    pieces = pieces.select(typed(PIECES))
    placed = _placed(pieces)
    places = _places(placed, len(steps))
    recorded_busy_us = float(places["us"].sum())
    if on_host:
        factor = length_us / _recorded_us(trace) if _recorded_us(trace) else 1.0
    else:
        busy_us = own.busy_us if own is not None and own.busy_us is not None else recorded_busy_us
        factor = busy_us / recorded_busy_us if recorded_busy_us else 1.0
    factor = min(factor, length_us / recorded_busy_us) if recorded_busy_us else factor
    places = places.with_columns(pl.col("us") * factor)
    idle_us = max(0.0, length_us - float(places["us"].sum()))
    if device is None:
        idle = _by_function(trace, steps, idle_us) if on_host else _all_idle(NOTHING_RAN, idle_us)
        before = pl.DataFrame(schema={"place": pl.UInt32, "idle_us": pl.Float64})
    else:
        idle, before = _idle(run, trace, device, placed, by_cause, idle_us)
    places = places.join(before, on="place", how="left", maintain_order="left").with_columns(
        pl.col("idle_us").fill_null(0.0)
    )
    unit = "step" if len(trace.steps) else "recording"
    basis = "as recorded" if own is None else "as it runs"
    by_step = () if on_host else _by_step(pieces, steps, factor)
    return Account(run, trace, length_us, unit, basis, not on_host, places, idle, by_step)


def _by_step(pieces: pl.DataFrame, steps: pl.Series, factor: float) -> tuple[float, ...]:
    """The busy time of each step (µs), times ``factor``."""
    sums = dict(pieces.group_by("step").agg(pl.col("own_ns").sum()).iter_rows())
    return tuple(sums.get(step, 0) / 1000 * factor for step in steps.to_list())


def _device(trace: Trace, steps: pl.Series) -> int | None:
    """The device that did most of these steps' work; None without any."""
    table = work(trace)
    if len(trace.steps):
        table = table.filter(pl.col("step").is_in(steps.implode()))
    most = table.group_by("device").agg(pl.col("duration_ns").sum()).sort("duration_ns", "device").tail(1)
    return None if most.is_empty() else int(most["device"][0])


def _pieces(run: LoadedRun, trace: Trace, steps: pl.Series, device: int | None) -> pl.DataFrame:
    """The launches of these steps, in order, with the busy time that is each one's own."""
    host = trace.host_events
    table = belonging(run).filter(pl.col("rank") == trace.rank, pl.col("device") == pl.lit(device, pl.Int32))
    if len(trace.steps):
        table = launched_in_steps(trace, table.filter(pl.col("step").is_in(steps.implode())))
    else:
        table = table.with_columns(step=pl.lit(WHOLE, pl.UInt32))
    table = table.sort("start_ns", "id")
    reached = pl.col("end_ns").cum_max().shift(1).fill_null(pl.col("start_ns").min())
    launched = host["start_ns"].gather(table["launch"])
    table = table.with_columns(dims=trace.argument("input_dims", table["op"])).with_columns(
        own_ns=(pl.col("end_ns") - pl.max_horizontal("start_ns", reached)).clip(0),
        at_ns=pl.coalesce(launched, "start_ns"),
        shape=pl.concat_str(
            _shape(pl.col("dims")), pl.col("grid", "block").cast(pl.String).fill_null(""), separator="|"
        ),
        op=pl.coalesce("op", "launch"),
    )  # fmt: skip
    return table.sort("step", "at_ns", "start_ns", "id")


def launched_in_steps(trace: Trace, device: pl.DataFrame) -> pl.DataFrame:
    """Device work without what was launched before the recording began and runs on into the first step."""
    steps = periods(trace)
    if steps.is_empty() or not trace.device_events["launch"].count():
        return device
    return device.filter(pl.col("launch").is_not_null() | (pl.col("start_ns") >= steps["start_ns"].min()))


def _all_idle(cause: str, idle_us: float) -> pl.DataFrame:
    return pl.DataFrame({"cause": [cause], "who": [""], "host_event": [None], "us": [idle_us]}, IDLE)


def _by_function(trace: Trace, steps: pl.Series, idle_us: float) -> pl.DataFrame:
    """The rest of a host's step by the program's functions, where Python stacks name them."""
    found = functions(trace, steps)
    if found.is_empty():
        return _all_idle(OUTSIDE_OF_OPS, idle_us)
    found = found.with_columns(cause=pl.lit(OUTSIDE_OF_OPS), us=pl.col("ns") / pl.col("ns").sum() * idle_us)
    return found.select(typed(IDLE))


def _placed(pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces with their ``place`` in the step: that of the step whose launches most others repeat, behind
    which additional launches of other steps have theirs."""
    same = ["name", "op_name", "shape"]
    codes = pieces.select(same).unique(maintain_order=True).with_row_index("code")
    pieces = pieces.join(codes, on=same, how="left", maintain_order="left")
    by_step = {
        step: (ids, tuple(found))
        for step, ids, found in pieces.group_by("step", maintain_order=True).agg("id", "code").iter_rows()
    }
    if not by_step:
        return pieces.with_columns(place=pl.lit(None, pl.UInt32))
    sequences = [found for _, found in by_step.values()]
    ((usual, _),) = Counter(sequences).most_common(1)
    places: dict[int, int] = {}
    for ids, found in by_step.values():
        places |= {ids[i]: j for i, j in aligned(found, usual)}
    known = pl.DataFrame(list(places.items()), {"id": pl.UInt32, "place": pl.UInt32}, orient="row")
    pieces = pieces.join(known, on="id", how="left", maintain_order="left")
    additional = pl.col("code") + len(usual)  # equal ones of several steps are one place
    return pieces.with_columns(place=pl.coalesce("place", additional))


def _places(placed: pl.DataFrame, steps: int) -> pl.DataFrame:
    return (
        placed.group_by("place", maintain_order=True)
        .agg(
            pl.col("name", "op", "op_name", "category", "module", "graph", "shape").first(),
            us=pl.col("own_ns").sum() / 1000 / steps,
            duration_us=pl.col("duration_ns").mean() / 1000,
            launches=pl.len() / steps,
        )
        .sort("place")
    )


def _idle(
    run: LoadedRun,
    trace: Trace,
    device: int,
    placed: pl.DataFrame,
    # the idle time of each cause in the step as it runs; None: as recorded
    by_cause: dict[str, float] | None,
    idle_us: float,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Idle time by cause and who, and the launch-bound part by place, together ``idle_us``."""
    found = gaps(run).filter(pl.col("rank") == trace.rank, pl.col("device") == pl.lit(device, pl.Int32))
    found = found.join(placed.select(next="id", place="place"), on="next", how="left", maintain_order="left")
    other_steps = pl.col("next").is_not_null() & pl.col("place").is_null()
    found = found.filter(~other_steps).select(
        pl.col("cause").cast(pl.String),
        "place",
        "host_event",
        who=pl.when(pl.col("cause") == "unexplained")
        .then(pl.col("text").cast(pl.String))
        .otherwise(_callers(trace, found.filter(~other_steps)["host_event"])),
        ns=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64),
    )
    recorded = dict(found.group_by("cause", maintain_order=True).agg(pl.col("ns").sum()).iter_rows())
    whole = sum(recorded.values())
    wanted = by_cause or {cause: ns / whole for cause, ns in recorded.items() if whole}
    together = sum(wanted.values())
    wanted = {cause: part / together * idle_us for cause, part in wanted.items() if together}
    if not wanted:
        wanted = {"unexplained": idle_us}
    factors = {cause: us / recorded[cause] for cause, us in wanted.items() if recorded.get(cause)}
    found = found.with_columns(
        us=pl.col("ns") * pl.col("cause").replace_strict(factors, default=0.0, return_dtype=pl.Float64)
    )
    here = (pl.col("cause") == LAUNCH_BOUND) & pl.col("place").is_not_null()
    before = found.filter(here).group_by("place", maintain_order=True).agg(idle_us=pl.col("us").sum())
    idle = (
        found.filter(~here)
        .group_by("cause", "who", maintain_order=True)
        .agg(pl.col("host_event").drop_nulls().first(), pl.col("us").sum())
        .filter(pl.col("us") > 0)
        .select(typed(IDLE))
    )
    unseen = [(cause, "", None, us) for cause, us in wanted.items() if cause not in factors and us > 0]
    idle = pl.concat([idle, pl.DataFrame(unseen, IDLE, orient="row")])
    return idle, before


def _callers(trace: Trace, events: pl.Series) -> pl.Series:
    """The op around each of these calls, or the call where none is."""
    host = trace.host_events
    around = host["name"].gather(host["parent"].gather(events)).cast(pl.String)
    itself = host["name"].gather(events).cast(pl.String)
    around = around.set(around.str.contains(r"^(ProfilerStep#|nn\.Module: |.*\.py\()").fill_null(False), None)
    return pl.select(pl.coalesce(around, itself, pl.lit(""))).to_series()
