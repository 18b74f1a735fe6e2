"""Intervals of the step where the device waits for launches.

What it finds
    A device that is busy most of the time, and yet runs out of work where the host falls behind.

Why it is slow
    While a long kernel runs, the host can launch ahead. A run of short kernels uses that lead up, and from
    then on the device waits for each launch.

How it decides
    Busy at least half of the time (below that it is ``overhead-bound``) and launch-bound idle time of at
    least 3 % of the step. The places with the longest gaps are named by the op that was launched too late.

What to do
    Fuse the short ops (``torch.compile`` the region), batch them (``torch._foreach_*``), or take the region
    into a CUDA graph. Ops whose result is not needed at once can be moved to where the queue is long.

Source
    "Profiling in PyTorch", part 1: gaps between kernels in a step.
"""

from kinetoscope.analysis.idle.gaps import TIMES
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.overhead_bound import BUSY

LEAST_TIMES = 0.5  # per step: a gap that most steps do not have is an accident of the others
ROLE = "symptom"


def find(view: RankView) -> Findings:
    # The device is empty when a recording begins: the time to the first launch is no gap of the program.
    late = view.gaps.filter((pl.col("cause") == "launch-bound") & (pl.col("start_ns") > view.first_work_ns))
    times = view.per_step(int(late.group_by("device").agg(TIMES)["next"].sum()))
    if view.working_share < BUSY or times < LEAST_TIMES or view.us_of(late, "idle_ns") < LOW * view.step_us:
        return
    basis = "the idle time that ends with a late launch, all of it"
    saving = (savings.captured if capturable(view) else savings.idle)(view, late, basis)
    if saving.share < MEDIUM:
        return
    remedy = fewer_launches(view)
    longest = late.sort("idle_ns", descending=True).head(4)
    yield Finding(
        title=f"{times:.0f} times per {view.unit} the device is idle because the host has not launched the "
        f"next kernel yet: {numbers.time(saving.us)}, {saving.share:.0%} of the {view.unit}",
        saving=saving,
        evidence=evidence.of_gaps(view, longest),
        advice=remedy.advice,
        source=evidence.source(view, longest["host_event"]),
        proof=commands.tune(view, remedy.mode) if remedy.mode else None,
    )
