"""The program as it runs without the profiler: its step, how busy the device is in it, why it idles.

The step is timed without a profiler; the device's work takes as long with one as without; so what is left of
the step is idle time. Its causes are those of the recorded idle time, from the pass that slows the program
least, with what the other pass knows of them.
"""

from __future__ import annotations

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.passes.loader import Loader, loader
from kinetoscope.analysis.passes.match import Match, match
from kinetoscope.analysis.passes.unprofiled import Unprofiled, unprofiled
from kinetoscope.analysis.time import intervals
from kinetoscope.analysis.time.phases import leading_of
from kinetoscope.recording.manifest import RankRecord
from kinetoscope.sources.run import LoadedRun
from kinetoscope.statistics.distribution import median
from kinetoscope.trace.model import Trace

MATCHED = 0.9  # of the light pass' kernels: with fewer, the full pass alone says why the device idles
AGREES = 0.1  # recorded and unprofiled waiting for data may differ by so much of either,
MATTERS = 0.01  # or by so much of the step
DATA, COLLECTING = "data-loading", "garbage-collection"


class StepAsItRuns(Struct, frozen=True):
    """One rank's step without the profiler; times in µs per step. ``busy_us`` (None without recorded device
    work) and ``idle`` by cause sum to ``timed.step.median``; ``recorded_us`` is the median step as recorded;
    ``basis`` says in words what all this rests on. ``loader`` is None without workers."""

    rank: int
    timed: Unprofiled
    busy_us: float | None
    idle: dict[str, float]
    recorded_us: float | None
    basis: str
    loader: Loader | None = None

    @property
    def step_us(self) -> float:
        return self.timed.step.median

    @property
    def busy_fraction(self) -> float | None:
        return None if self.busy_us is None else self.busy_us / self.step_us

    @property
    def inflation(self) -> float | None:
        """How many times as long the recorded step is."""
        return None if self.recorded_us is None else self.recorded_us / self.step_us


@remembered
def as_it_runs(run: LoadedRun) -> dict[int, StepAsItRuns]:
    """The steps that were timed without the profiler, by rank; none of a bare trace."""
    found: dict[int, StepAsItRuns] = {}
    for record in run.records:
        timed = unprofiled(record.steps)
        if timed is not None and timed.step.median > 0:
            step = _of_rank(run, record, timed)
            found[record.rank] = replace(step, loader=loader(record.steps, step.step_us, step.busy_us))
    return found


def loaders_of(run: LoadedRun) -> dict[int, Loader]:
    """By rank, the data loader whose workers make its batches."""
    return {rank: step.loader for rank, step in as_it_runs(run).items() if step.loader is not None}


def slowest(run: LoadedRun) -> StepAsItRuns | None:
    """The step of the rank whose step takes longest: the others wait for it."""
    return max(as_it_runs(run).values(), key=lambda rank: rank.step_us, default=None)


@remembered
def light_run(run: LoadedRun) -> LoadedRun:
    return LoadedRun(run.light)


def _of_rank(run: LoadedRun, record: RankRecord, timed: Unprofiled) -> StepAsItRuns:
    passes = ({trace.rank: trace for trace in traces} for traces in (run.traces, run.light))
    full, light = (traces.get(record.rank) for traces in passes)
    words = f"{timed.step.n} {timed.words}"
    if full is None or full.steps.is_empty():
        profiled_s = record.steps.profiled_step_s
        recorded_us = None if profiled_s is None else 1e6 * profiled_s
        return StepAsItRuns(record.rank, timed, None, {}, recorded_us, words)
    recorded_us = median(leading_of(full)["duration_ns"].to_list()) / 1000
    worked = _busy(light) if light is not None else None
    by = light if worked is not None and light is not None else full
    worked = worked or _busy(full)
    if worked is None:
        return StepAsItRuns(record.rank, timed, None, {}, recorded_us, words)
    device, busy_us = worked
    joined = match(by, full) if by is not full else None
    recorded, origin = _idle(run, full, device, joined)
    longer = busy_us > timed.step.median
    busy_us = min(busy_us, timed.step.median)
    causes, waited = _scaled(recorded, timed.step.median - busy_us, timed)
    matched = None if joined is None else joined.share
    kernels = "" if matched is None else f", {matched:.0%} of its kernels matched"
    which = "full" if joined is None else "light"
    basis = f"device time of the {which} pass ({len(by.steps)} steps{kernels}) over {words}"
    if longer:
        basis += "; the device's work took longer than that step, so it is busy all of it"
    elif causes:
        basis += f"; idle time by cause scaled from {origin}"
    if waited:
        basis += f"; {waited}"
    return StepAsItRuns(record.rank, timed, busy_us, causes, recorded_us, basis)


def _busy(trace: Trace) -> tuple[int, float] | None:
    """The device that did most of the steps' work, and how long it was busy with it, µs per leading step."""
    own = leading_of(trace)["step"]
    launched = work(trace).filter(pl.col("step").is_in(own.implode()))
    lengths = intervals.length(intervals.union(launched, ["device"]), ["device"]).sort("length_ns", "device")
    if lengths.is_empty():
        return None
    device, length_ns = lengths.row(-1)
    return device, length_ns / len(own) / 1000


def _idle(run: LoadedRun, full: Trace, device: int, joined: Match | None) -> tuple[dict[str, float], str]:
    """A device's idle time by cause, ns: the light pass' with the full one's causes, or the full one's."""
    recorded = _gaps(run, full.rank, device)
    if joined is None:
        return _sums(recorded), "the full pass"
    if joined.share < MATCHED:
        return _sums(recorded), "the full pass, since the passes' kernels differ"
    causes = laid_over(_gaps(light_run(run), full.rank, device), recorded, joined.rows)
    if not causes:
        return _sums(recorded), "the full pass, since the device was never idle in the light one"
    return causes, "the light pass, its causes the full one's before the same kernels"


def _gaps(run: LoadedRun, rank: int, device: int) -> pl.DataFrame:
    """The pieces of a device's gaps: (next, cause, idle_ns)"""
    return (
        gaps(run)
        .filter((pl.col("rank") == rank) & (pl.col("device") == device))
        .select("next", pl.col("cause").cast(pl.String), idle_ns=pl.col("end_ns") - pl.col("start_ns"))
    )


def laid_over(light: pl.DataFrame, full: pl.DataFrame, rows: pl.DataFrame) -> dict[str, float]:
    """Idle time of one pass by the causes that the other knows: a gap takes the causes of the gap before the
    same kernel, in their proportions, or keeps its own. ``light``, ``full``: pieces of gaps (``next``,
    ``cause``, ``idle_ns``); ``rows``: which row of the full pass each of the light one's is."""
    known = full.filter(pl.col("idle_ns") > 0).join(rows, left_on="next", right_on="full")
    share = pl.col("idle_ns") / pl.col("idle_ns").sum().over("light")
    known = known.select(pl.col("light").alias("next"), "cause", share=share)
    whole = light.filter(pl.col("next").is_not_null()).group_by("next").agg(pl.col("idle_ns").sum())
    taken = whole.join(known, on="next").select("cause", idle_ns=pl.col("idle_ns") * pl.col("share"))
    left = light.join(known.select("next").unique(), on="next", how="anti")
    left = left.select("cause", pl.col("idle_ns").cast(pl.Float64))
    return _sums(pl.concat([taken, left]))


def _sums(pieces: pl.DataFrame) -> dict[str, float]:
    sums = pieces.group_by("cause").agg(pl.col("idle_ns").sum().cast(pl.Float64)).sort("cause")
    return {cause: idle_ns for cause, idle_ns in sums.iter_rows() if idle_ns > 0}


def _scaled(recorded: dict[str, float], idle_us: float, timed: Unprofiled) -> tuple[dict[str, float], str]:
    """Idle time by cause, longest first, so that it sums to ``idle_us``. Where the recorded steps waited for
    data as the unprofiled ones did not, the measured waiting stands; so does what the garbage collector
    takes. The other causes share the rest."""
    if idle_us <= 0:
        return {}, ""
    causes, measured, words = dict(recorded) or {"unexplained": 1.0}, dict[str, float](), list[str]()
    waiting, left_us = timed.waiting, idle_us
    if waiting is not None and waiting.gc_us > MATTERS * timed.step.median:
        measured[COLLECTING] = min(waiting.gc_us, left_us)
        words.append(f"collecting garbage as measured without the profiler, {waiting.gc_us:,.0f} µs")
        left_us -= measured[COLLECTING]
    if data_differs(timed) and waiting is not None and timed.recorded_data_us is not None:
        measured[DATA] = min(waiting.data_us, left_us)
        words.append(
            f"waiting for data as measured without the profiler, {waiting.data_us:,.0f} µs, "
            f"not as recorded, {timed.recorded_data_us:,.0f} µs"
        )
        left_us -= measured[DATA]
    others = {cause: ns for cause, ns in causes.items() if cause not in measured}
    if not others and left_us > 0:  # then there is none to share the rest with
        others = {"unexplained": 1.0}
    together = sum(others.values())
    found = measured | {cause: share / together * left_us for cause, share in others.items()}
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {cause: us for cause, us in ordered if us > 0}, "; ".join(words)


def data_differs(timed: Unprofiled) -> bool:
    """Whether the recorded steps waited for data as the unprofiled ones did not."""
    if timed.waiting is None or timed.recorded_data_us is None:
        return False
    real, recorded = timed.waiting.data_us, timed.recorded_data_us
    return abs(real - recorded) > max(AGREES * max(real, recorded), MATTERS * timed.step.median)
