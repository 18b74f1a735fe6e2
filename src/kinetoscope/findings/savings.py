"""The time that a change would save of a step by itself, and how serious that makes it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from msgspec.structs import replace

from kinetoscope import numbers
from kinetoscope.analysis.cost.roofline import costed
from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.kernels.chains import elementwise_chains
from kinetoscope.analysis.ranks.rows import RankVerdict
from kinetoscope.analysis.replay.change import (
    NOTHING,
    Changes,
    ReplayChange,
    at_once,
    shorten,
    without_host,
    without_idle,
)
from kinetoscope.analysis.replay.host import is_op
from kinetoscope.analysis.time import intervals
from kinetoscope.findings import evidence
from kinetoscope.findings.model import SEVERITIES, Finding, Proof, Saving, Severity
from kinetoscope.findings.rank_view import RankView, launched_within

# Severity is the share of the step that the advice would save. Above a tenth it is the first thing to do;
# below three hundredths it disappears in the noise from run to run; below half a hundredth it is not worth
# reading.
HIGH, MEDIUM, LOW = 0.10, 0.03, 0.005

# Of a kernel's time, however little it computes: launching its blocks and waiting for the last.
FIXED_NS = 3_000
GRAPH_PAUSE_NS = 0  # single launches leave a device 1 to 3 µs between kernels, a CUDA graph hardly anything
MAY_SAVE = 2.0  # what may be saved counts half of what surely is, in severity and order
SHOWN_GROUPS = 4  # findings of one rule on one rank: kernels beyond the worst few are noise


def severity(saving: Saving, at_least: Severity | None = None, at_most: Severity = "high") -> Severity | None:
    """How serious a saving is, by its share of the step; None: not worth a line. Device time that is freed
    off the critical path is low from ``MEDIUM`` of the busy time on, and information from ``LOW`` on. A
    saving under a condition counts half."""
    level: Severity | None
    share = saving.share / MAY_SAVE if saving.condition else saving.share
    if share >= LOW:
        level = "high" if share >= HIGH else "medium" if share >= MEDIUM else "low"
    else:
        level = "low" if saving.freed_share >= MEDIUM else "info" if saving.freed_share >= LOW else at_least
    if level is None:
        return None
    place, most, least = map(SEVERITIES.index, (level, at_most, at_least or "info"))
    return SEVERITIES[max(most, min(place, least))]


def nothing(basis: str) -> Saving:
    return Saving(0.0, basis, False, 0.0)


def not_predicted(most: Saving, why: str) -> Saving:
    """A change that may save as much as ``most``, or nothing: no number is better than a wrong one."""
    basis = f"not predicted: {why}; at most {numbers.time(most.us)}"
    return Saving(0.0, basis, False, 0.0, most_us=most.us)


def if_so(saving: Saving, condition: str) -> Saving:
    """A saving that is known where the condition holds, which no trace shows: "it saves this if …"."""
    return replace(saving, condition=condition)


OF_THE_PROFILER = nothing("the profiler's own cost; a run without it does not pay this")


def of(view: RankView, change: ReplayChange, basis: str) -> Saving:
    us = view.would_save(change)
    if view.unprofiled_us is not None:
        basis += "; of the step's time without the profiler"
    return Saving(us, basis, True, us / view.own_step_us, change=change)


def batches(view: RankView, change: ReplayChange, basis: str) -> Saving:
    """The saving if the data loader's workers take less time for a batch, which a step waits for."""
    us = view.saves(change)
    return Saving(us, basis, True, us / view.own_step_us, change=change)


def by_comparison(verdict: RankVerdict, what: str, together: Changes | None = None) -> Saving:
    """The cost that the comparison of ranks found; ``together`` is what goes of the recorded steps."""
    us, share = verdict.cost_us or 0.0, verdict.cost_share or 0.0
    basis = f"{what}; by a replay of all ranks' collectives"
    return Saving(us, basis, us > 0, share, together=together, compared_us=us)


def unreplayed(view: RankView, us: float, basis: str) -> Saving:
    """A saving that no replay of the recorded steps can show: paid once, or measured without the profiler."""
    us = min(us, view.own_step_us)
    return Saving(us, basis, us > 0, us / view.own_step_us, unreplayed_us=us)


def rare(view: RankView, us: float, basis: str) -> Saving:
    """The time that rare long steps add to the mean step, or a part of it: usual steps' replay lacks it."""
    return Saving(us, basis, True, us / (view.own_step_us + view.rare_us), unreplayed_us=us)


def once(view: RankView, us: float, basis: str) -> Saving:
    """A cost that a recording paid once: the program's own steps, where they are known, do not."""
    return nothing(basis) if view.cold or view.unprofiled_us is not None else unreplayed(view, us, basis)


def device(
    view: RankView,
    events: pl.DataFrame,
    basis: str,
    saved: str | pl.Expr = "saved_ns",
    more: ReplayChange = NOTHING,
) -> Saving:
    """The saving if device events (``id``) are shortened, each by ``saved`` nanoseconds, and ``more`` of the
    step goes with them. What is gone takes the ops and calls with it that launch nothing else. Without a
    device it is the ops that are shortened (``RankView.computed``)."""
    shorter = events.select("id", saved_ns=saved)
    freed = view.us_of(shorter, "saved_ns")
    if freed < LOW * view.step_us and more.is_empty:  # too little for any severity: no replay is needed
        return nothing(basis)
    if view.on_cpu:
        ops = view.trace.host_events.select("id", "lane", "start_ns", "duration_ns").join(shorter, on="id")
        share = (pl.col("saved_ns") / pl.col("duration_ns")).clip(0, 1)
        return of(view, without_host(ops.with_columns(share=share)) | more, basis)
    change = shorten(shorter["id"], shorter["saved_ns"]) | _calls(view, shorter) | more
    us = view.would_save(change)
    of_it = f"{numbers.time(freed)} of device time per {view.unit}"
    if not more.is_empty:
        basis += f", among it {of_it}"
    else:
        part = "all" if us >= 0.95 * freed else f"{of_it}, {numbers.time(us)}"
        basis += f"; {part} of it on the critical path"
    freed_share = freed / max(view.busy_us, 1e-9)
    most = max(us, freed_share * view.own_busy_us)
    critical = us >= 0.25 * freed or not more.is_empty
    return Saving(us, basis, critical, us / view.own_step_us, freed_share, change, most_us=most)


def _calls(view: RankView, shorter: pl.DataFrame) -> ReplayChange:
    """The host time of ops and calls that launch nothing else than what is removed. Of ops that may be the
    first of their sort, and load what they use, the launches alone."""
    trace = view.trace
    gone = shorter.filter(shorter["saved_ns"] >= trace.device_events["duration_ns"][shorter["id"]])
    if gone.is_empty():
        return NOTHING
    removed = launched_within(trace, trace.device_events["launch"][gone["id"].unique()])
    calls = (removed > 0) & (removed == view.launched_within) & is_op(trace)
    if view.cold or view.unit != "step":
        calls &= trace.host_events["id"].is_in(view.launched["launch"].implode())
    rows = trace.host_events["id"].filter(calls)
    outermost = rows.filter(~calls[trace.host_events["parent"][rows]].fill_null(False))
    return without_host(trace.host_events[["lane", "start_ns", "duration_ns"]][outermost])


def called(view: RankView, events: pl.DataFrame, share: float = 1.0) -> ReplayChange:
    """Host events of whose time ``share`` goes away with the device work that is saved (see ``device``);
    without a device, of their time around the ops that compute in them."""
    if view.cold:
        return NOTHING
    if view.on_cpu:
        own = pl.col("share") if "share" in events.columns else pl.lit(share)
        events = events.select("lane", "start_ns", END, share=own)
        ops = view.trace.host_events.select("lane", "start_ns", END)[view.computed["id"]]
        around = intervals.subtract(events, ops, ["lane"])
        around = intervals.beginning_in(around, events, ["lane"])
        events = around.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    return without_host(events, share)


def host(view: RankView, events: pl.DataFrame, basis: str, share: float = 1.0) -> Saving:
    """The saving if ``share`` of host events' time goes away, or their own column ``share``."""
    return warm(view, of(view, without_host(events, share), basis))


def idle(view: RankView, intervals: pl.DataFrame, basis: str) -> Saving:
    """The saving if the host does not keep the device waiting in these intervals of its idle time."""
    return warm(view, of(view, without_idle(view.trace, intervals), basis))


def warm(view: RankView, saving: Saving) -> Saving:
    """A saving of host time: of a program's first steps not known, whose host loads what they use."""
    return not_predicted(saving, "only first steps were recorded, start-up and all") if view.cold else saving


def captured(view: RankView, intervals: pl.DataFrame, basis: str) -> Saving:
    """The saving if a CUDA graph does the launches of these intervals of idle time."""
    return of(view, without_idle(view.trace, intervals) | at_once(GRAPH_PAUSE_NS), basis)


def compiled(view: RankView, eager: pl.DataFrame) -> Saving:
    """The saving if chains of elementwise kernels in this eager work are each one."""
    if view.work.is_empty():
        return nothing("not known: no recording of what runs eagerly")
    return fused(view, elementwise_chains(view.work, eager))


def fused(view: RankView, chains: pl.DataFrame) -> Saving:
    """The saving if each ``chain`` of kernels (``analysis.kernels.chains``) is one, launched once."""
    return device(view, chains, "each eager chain as one kernel, which stores no result but the last")


def heaviest(
    view: RankView, events: pl.DataFrame, *by: str, basis: str
) -> Iterator[tuple[pl.DataFrame, Saving]]:
    """The groups of device events that would save most (column ``saved_ns``), ``SHOWN_GROUPS`` at most, and
    what each saves; one kernel of many, off the critical path, is left out."""
    if view.us(float(events["saved_ns"].sum())) < LOW * view.step_us:  # then no group does
        return
    top = events.group_by(*by, maintain_order=True).agg(together_ns=pl.col("saved_ns").sum())
    top = top.sort("together_ns", descending=True, maintain_order=True).head(SHOWN_GROUPS)
    numbered = top.select(*by).with_row_index("group")
    rows = events.select(*by).with_row_index("row").join(numbered, on=list(by), maintain_order="left")
    for number in range(len(top)):
        group = events[rows["row"].filter(rows["group"] == number)]
        saving = device(view, group, basis)
        if severity(saving) not in (None, "info"):
            yield group, saving


def within_peaks(view: RankView, events: pl.DataFrame) -> pl.DataFrame:
    """Device events (``op``, ``duration_ns``, ``saved_ns``) that save no more than leaves their op the time
    which its bytes and FLOPs take at the device's peak rates, where these are known."""
    if events.is_empty():
        return events
    seconds = pl.max_horizontal(
        pl.col("bytes") / pl.col("peak_bandwidth"), pl.col("flops") / pl.col("peak_flops")
    )
    calls = costed(view.trace, (1e9 * seconds).alias("least_ns")).drop_nulls()
    of_op = calls.with_columns(op=view.trace.device_events["op"][calls["id"]]).sort("op").group_by("op")
    least = of_op.agg(least=(pl.col("least_ns").sum() / pl.col("time_ns").sum()).clip(upper_bound=1.0))
    most = pl.col("duration_ns") * (1 - pl.col("least").fill_null(0.0))
    return (
        events.join(least, on="op", how="left", maintain_order="left")
        .with_columns(saved_ns=pl.min_horizontal("saved_ns", most))
        .drop("least")
    )


def slow_calls(
    view: RankView, calls: pl.DataFrame, share: pl.Expr, *, below: float, possible: float, basis: str
) -> Iterator[tuple[pl.DataFrame, Saving]]:
    """Op ``calls`` (rows of ``analysis.roofline.costed``) that are far from what the device can do, by kernel
    and op, where it is worth a line that they would run at ``possible`` of the peak (``basis``: in words):
    the calls with their ``share`` of the peak, ``below`` which they are slow, those that would save most
    first, and what they save."""
    slow = calls.with_columns(share=share).filter(pl.col("share") < below)
    slow = slow.with_columns(saved_ns=pl.col("time_ns") * (1 - pl.col("share") / possible))
    for group, saving in heaviest(view, slow, "name", "op_name", basis=basis):
        yield group.sort("saved_ns", descending=True), saving


def together(calls: pl.DataFrame, amount: str) -> tuple[float, float]:
    """The rate of all ``slow_calls`` of a group (bytes, FLOPs a nanosecond), and as a part of the peak."""
    time_ns = int(calls["time_ns"].sum())
    return int(calls[amount].sum()) / time_ns, float((calls["share"] * calls["time_ns"]).sum()) / time_ns


def finding_of_calls(
    view: RankView, calls: pl.DataFrame, saving: Saving, *,
    title: str, shown: str, advice: str, snippet: str | None, proof: Proof | None,
) -> Finding:  # fmt: skip
    """The finding on ``slow_calls`` of one op that one kernel does."""
    events = view.trace.device_events[calls["id"].sort()]
    return Finding(
        subject=f"{calls['name'][0]} {calls['op_name'][0]}",
        title=title,
        saving=saving,
        at_most="medium",
        evidence=[evidence.of(view, shown, events)],
        advice=advice,
        snippet=snippet,
        source=evidence.source(view, events["op"]),
        proof=proof,
    )
