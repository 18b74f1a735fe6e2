"""Weaknesses that show only in the run as a whole: its ranks, its passes, its end."""

from __future__ import annotations

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.health.notes import DEGRADED, INFO, NEVER, Note, gravity, share_of
from kinetoscope.analysis.idle.waiting import waiting
from kinetoscope.analysis.passes.as_it_runs import as_it_runs
from kinetoscope.analysis.time.window import window
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

DIED = "died-while-recording"
# Slow steps over quick ones, p90 over p10: beyond it the median says little of what a change would save.
UNEVEN = 1.5


def of_the_run(run: Run) -> list[Note]:
    """The notes on a whole run."""
    return [
        *_died(run),
        *_ended(run),
        *_ranks_absent(run),
        *_first_collective(run),
        *_inflation(run),
        *_busy_machine(run),
    ]


def _died(run: Run) -> list[Note]:
    """A process that a fault ended while the recorder was at work in it."""
    records = run.manifest.ranks if run.manifest else ()
    deaths = ((record.rank, record.died_recording()) for record in records)
    return [Note(DIED, DEGRADED, text, rank=rank) for rank, text in deaths if text is not None]


def _ended(run: Run) -> list[Note]:
    """A program that was killed, or failed, or was over before it had settled. One that was recorded whole
    and ended as it was to is as it was to be."""
    notes: list[Note] = []
    for record in run.manifest.ranks if run.manifest else ():
        how = "" if record.exit == "ok" else f" ({record.exit})"
        as_a_whole = record.steps.found_by in ("whole", "program")
        if record.trace is None or (as_a_whole and not how):
            continue
        if as_a_whole:
            text = f"the program ended before its time{how}: this is what it did until then"
            notes.append(Note("ended", DEGRADED if record.steps.cold else INFO, text, rank=record.rank))
        elif record.steps.cold:
            text = (
                f"the program ended{how} before its steps had settled: these are its first, start-up and all"
            )
            notes.append(Note("cold", DEGRADED, text, rank=record.rank))
        elif how:
            text = f"the program ended before its time{how}, after these steps had been recorded"
            notes.append(Note("ended", INFO, text, rank=record.rank))
    return notes


def _ranks_absent(run: Run) -> list[Note]:
    def world(trace: Trace) -> int:
        match trace.metadata.get("distributedInfo"):
            case {"world_size": int(size)}:
                return size
            case _:
                return 1

    size = max((world(trace) for trace in run.traces), default=1)
    if size <= len(run.traces):
        return []
    text = f"{len(run.traces)} of {size} ranks are here: how long collectives waited is an estimate"
    return [Note("ranks-absent", INFO, text)]


def _first_collective(run: Run) -> list[Note]:
    """The first collective of a recording waits until every other rank's profiler has started."""
    notes: list[Note] = []
    for trace in run.traces:
        collectives = waiting(run).filter(pl.col("rank") == trace.rank).sort("start_ns")
        first, length = collectives.head(1), window(trace).length_ns
        waited = int(first["waiting_ns"].sum())
        # It must wait for ten times longer than the others do on average to be the profiler's doing.
        usual = whole(collectives["waiting_ns"].slice(1).mean())
        share = waited / max(length, 1)
        if len(collectives) < 3 or share < 0.01 or waited <= 10 * usual:
            continue
        text = (
            f"the first collective waited {waited / 1e6:,.2f} ms ({share:.1%} of the window), far longer "
            "than the others: the other ranks' profilers had not started; communication is overstated by it"
        )
        how = gravity(share, 0.05, 0.5)
        notes.append(Note("first-collective-skew", how, text, share_of(trace, first), trace.rank))
    return notes


def _inflation(run: Run) -> list[Note]:
    notes: list[Note] = []
    for rank, own in as_it_runs(run).items():
        if own.inflation is None or own.recorded_us is None:
            continue
        factor = own.inflation
        longer = f"{factor - 1:+.0%}" if factor <= 2 else f"{factor:,.1f} times as long"
        text = (
            f"a step took {numbers.time(own.recorded_us)} with the profiler and {numbers.time(own.step_us)} "
            f"without ({longer}): host times and idle time are inflated, device times are not"
        )
        # Profiling an eager program costs 10 to 30 %; above a quarter, idle time says more of the profiler.
        if factor > 1.05:
            notes.append(Note("profiling-inflation", gravity(factor, 1.25, NEVER), text, rank=rank))
    return notes


def _busy_machine(run: Run) -> list[Note]:
    """More that wanted to run than there are cores: what takes turns with the program is not in its trace."""
    environment = run.manifest.environment if run.manifest else None
    if environment is None or not environment.cpu_count or environment.load_average is None:
        return []
    load, cores = environment.load_average, environment.cpu_count
    if load <= cores:
        return []
    times = [own.timed.step for own in as_it_runs(run).values()]
    uneven = max((step.p90 / step.p10 for step in times), default=1.0)
    text = f"the machine was busy: a load of {load:.1f} on {cores} cores when the program began"
    if uneven > UNEVEN:
        text += f"; its steps differ by {uneven - 1:.0%}, and host times by as much"
    # The load is the whole machine's, the cores those the program may use: even steps show that it had them.
    return [Note("busy-machine", gravity(uneven, UNEVEN, NEVER), text)]
