"""Intervals of the step where the device waits for launches.

What it finds
    A device that is busy most of the time, and yet runs out of work where the host falls behind.

Why it is slow
    While a long kernel runs, the host can launch ahead. A run of short kernels uses that lead up, and from
    then on the device waits for each launch.

How it decides
    Busy at least half of the time (below that it is ``overhead-bound``) and launch-bound idle time of at
    least 3 % of the step, in at least half of the steps; a first step with more than twice the idle time of
    the others is left out. The places with the longest gaps are named by the op that was launched too late.
    Half of the time is promised where something in the step rules out a graph of it.

What to do
    Fuse the short ops (``torch.compile`` the region), batch them (``torch._foreach_*``), or take the region
    into a CUDA graph. Ops whose result is not needed at once can be moved to where the queue is long.

Source
    "Profiling in PyTorch", part 1: gaps between kernels in a step.
"""

from kinetoscope.analysis.idle.gaps import TIMES
from kinetoscope.findings.program_lines import that_launch
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.overhead_bound import BUSY

LEAST_TIMES = 1  # in the median step: a gap that most steps do not have is an accident of the others
ACCIDENT = 2.0  # times as much idle time in the first recorded step as in the median of the others
BASIS = "the idle time that ends with a late launch"
ROLE = "symptom"


def find(view: RankView) -> Findings:
    # The device is empty when a recording begins: the time to the first launch is no gap of the program.
    late = view.gaps.filter((pl.col("cause") == "launch-bound") & (pl.col("start_ns") > view.first_work_ns))
    late, times = _usual(view, late)
    if view.working_share < BUSY or times < LEAST_TIMES or view.us_of(late, "idle_ns") < LOW * view.step_us:
        return
    remedy = fewer_launches(view)
    late = inside_graphs(view, late) if remedy.of_graphs else late
    if remedy.part < 1:
        saving = savings.idle(
            view, late.with_columns(share=pl.lit(remedy.part)), f"half of {BASIS}, an estimate"
        )
    elif capturable(view):
        saving = savings.captured(view, late, f"{BASIS}, in a CUDA graph, which pauses less between kernels")
    else:
        saving = savings.idle(view, late, BASIS)
    if saving.share < MEDIUM:
        return
    longest = late.sort("idle_ns", descending=True).head(4)
    launches = view.trace.device_events["launch"][late["next"]].drop_nulls().unique()
    begin, line = that_launch(view, launches) or ("", None)
    yield Finding(
        title=f"{times:,.0f} times per {view.unit} the device is idle because the host has not launched the "
        "next kernel yet",
        saving=saving,
        evidence=evidence.of_gaps(view, longest),
        advice=remedy.advice + begin,
        source=line or evidence.source(view, longest["host_event"]),
        proof=commands.tune(view, remedy.mode) if remedy.mode else None,
    )


def _usual(view: RankView, late: pl.DataFrame) -> tuple[pl.DataFrame, float]:
    """The late launches, without a first step's that has many more, and how many the median step has."""
    steps = view.trace.steps.select("start_ns", step="id").sort("start_ns")
    if steps.is_empty():
        return late, view.per_step(int(late.group_by("device").agg(TIMES)["next"].sum()))
    late = late.sort("start_ns").join_asof(steps, on="start_ns")
    each = (
        steps.select("step")
        .join(late.group_by("step").agg(idle_ns=pl.col("idle_ns").sum(), times=TIMES), on="step", how="left")
        .fill_null(0)
        .sort("step")
    )
    others = each["idle_ns"][1:]
    if len(others) > 1 and each["idle_ns"][0] > ACCIDENT * float(pl.select(others.median()).item()):
        late = late.filter(pl.col("step") != each["step"][0])
    return late.drop("step"), float(pl.select(each["times"].median()).item())
