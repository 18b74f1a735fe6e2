"""The same kernel on the same work takes different times.

What it finds
    A kernel at the same place of each step (of a server's: of one phase), with the same grid, whose time
    differs from step to step.

Why it is slow
    The device's clock changes (idle, boost, heat, power limit), something else runs on it (another stream,
    another process, a copy), or the time depends on the data (conflicting atomics). A mean hides it.

How it decides
    The n-th launch of a kernel and grid in each of at least three steps, 10 µs or longer: the time above the
    median, summed. Recorded NVML readings show which of the reasons it may be.

What to do
    Read all steps, not the mean. ``nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE`` shows whether clocks were
    throttled; for measuring, lock them (``nvidia-smi --lock-gpu-clocks``). If another stream overlaps, see
    whether it has to.

Source
    "Profiling in PyTorch", part 1: "Why does the same kernel take more time compared to others?"
"""

from kinetoscope.analysis.time.phases import ENGINE_PHASES, phases_of
from kinetoscope.findings.rule import *

STEPS = 3  # with two, which is usual is not known
LONG_NS = 10_000
SPREAD = 1.3  # longest over median: clocks alone vary by some per cent


def find(view: RankView) -> Findings:
    if view.unit != "step" or view.steps < STEPS:
        return
    place = ["name", "grid", "nth", "phase"]
    kernels = view.known.filter((pl.col("part") == "compute") & (pl.col("duration_ns") >= LONG_NS))
    # A server's steps of other phases do other work by the same kernels.
    phase = pl.when(pl.col("phase").is_in(ENGINE_PHASES)).then("phase")
    phases = phases_of(view.trace).select("step", phase)
    kernels = kernels.join(phases, on="step", maintain_order="left")
    kernels = (
        kernels.with_columns(nth=pl.col("id").cum_count().over("step", "name", "grid"))
        .with_columns(usual_ns=pl.col("duration_ns").median().over(place), seen=pl.len().over(place))
        .filter(pl.col("seen") >= STEPS)
        .with_columns(saved_ns=(pl.col("duration_ns") - pl.col("usual_ns")).clip(lower_bound=0))
    )
    slow = kernels.filter(pl.col("duration_ns") > SPREAD * pl.col("usual_ns"))
    basis = "the time above each launch's own median over the steps"
    for group, saving in savings.heaviest(view, slow, "name", basis=basis):
        worst = group.sort("saved_ns", descending=True)
        name, longest, usual = worst.select("name", "duration_ns", "usual_ns").row(0)
        yield Finding(
            subject=name,
            title=f"{short_name(name)} takes up to {numbers.time(longest / 1000)} where "
            f"{numbers.time(usual / 1000)} is usual ({len(group)} slow launches)",
            saving=saving,
            at_most="medium",
            evidence=[evidence.of(view, f"{len(group)} slow launches", worst), *_clocks(view)],
            advice="Look at all steps, at the clocks, and at what else ran on the device at these times.",
            source=evidence.source(view, worst["op"]),
        )


def _clocks(view: RankView) -> Iterable[Evidence]:
    start, end = (bound / 1000 for bound in view.bounds)
    for sample in view.record.clocks if view.record else ():
        reasons = ", ".join(sample.throttle_reasons) or "not throttled"
        yield Evidence(
            f"NVML, {sample.moment}: {sample.sm_clock_mhz} MHz of {sample.max_sm_clock_mhz}, "
            f"{sample.temperature_c} °C, {sample.power_w} W, {reasons}",
            start,
            end,
        )
