"""The device waits for the host to launch its work.

What it finds
    Steps in which the device is busy less than half of the time because each launch takes the host longer
    than the kernel takes the device.

Why it is slow
    An eager op costs the host 5 to 20 µs: Python, dispatcher, shape checks, the launch itself. A kernel of
    two microseconds is over before the next is launched, so the step takes as long as the host needs to issue
    it and a faster device would change nothing.

How it decides
    Busy time, without what collectives only waited for another recorded rank, is below half of the steps'
    time, and at least half of the idle time is ``launch-bound``: the work that ended each gap was launched
    after the device had run out, with nothing else holding up the thread. Silent where graphs are replayed
    and such idle time is above 100 µs for each of them. All of it is promised where one graph can hold the
    step; half where something rules that out (many waits, a scaler, checkpointing, accumulation). Where
    compiled code launches most, the idle time that ends with any launch of a compiled graph but its first.

What to do
    Give the device more work per launch: a larger batch (in training; in serving it makes a single answer
    slower), batched ops, ``torch.compile``. If shapes are fixed, replay the step as a CUDA graph
    (``torch.compile(mode="reduce-overhead")`` or ``torch.cuda.CUDAGraph``): one launch then starts all of it.
    Measures that are in force already, or that failed, are not advised.

Source
    "Profiling in PyTorch", part 1: "Self CPU time total ≫ Self CUDA time total".
"""

from kinetoscope.findings.program_lines import that_launch
from kinetoscope.findings.rule import *

# Below half, the host and not the device sets the pace; from there on single gaps are `launch-gap`'s.
BUSY = 0.5
LAUNCH_BOUND = 0.5  # of the idle time: the rest may have other causes, which have rules of their own
# Device activities a launch, from which on graphs do most of the work; and what launching one takes at most.
REPLAYED, A_REPLAY_US = 2, 100.0

ROLE = "symptom"


def find(view: RankView) -> Findings:
    idle = view.us_of(view.gaps, "idle_ns")
    late = view.gaps.filter(pl.col("cause") == "launch-bound")
    waiting = view.us_of(late, "idle_ns")
    if view.work.is_empty() or view.working_share >= BUSY or waiting < LAUNCH_BOUND * idle:
        return
    launches = view.per_step(view.work["launch"].n_unique())
    if len(view.work) >= REPLAYED * view.work["launch"].n_unique() and waiting > A_REPLAY_US * launches:
        return
    kernels = view.work.filter(pl.col("kind") == "kernel")
    kernels, what = (kernels, "kernels") if len(kernels) else (view.work, "copies and memsets")
    others = view.per_step(len(view.work) - len(kernels))
    and_others = f" and {others:,.0f} copies and memsets" if round(others) else ""
    typical = max(0, int(kernels["duration_ns"].sum()) - view.waited_ns) / max(1, len(kernels)) / 1000
    busy, share = numbers.time(view.working_us), numbers.percent(view.working_share)
    but = "" if share == numbers.percent(view.busy_share) else ", without its waiting for other ranks"
    remedy = fewer_launches(view)
    saved = savings.idle if remedy.part < 1 else savings.captured
    late_launch = "the idle time that ends with a late launch"
    saving = whole = saved(view, late, f"{late_launch}, all of it")
    if remedy.part < 1:
        halves = late.with_columns(share=pl.lit(remedy.part))
        saving = saved(view, halves, f"half of {late_launch}, an estimate")
    elif remedy.of_graphs:
        saving = saved(view, inside_graphs(view, late), f"{late_launch} inside a compiled graph")
    shown = (
        f"busy {busy} of {numbers.time(view.own_step_us)} per {view.unit}; "
        f"{numbers.time(whole.us)} idle while the next launch is late"
    )
    longest = late.sort("idle_ns", descending=True).head(3)
    begin, line = that_launch(view, view.work["launch"].drop_nulls().unique()) or ("", None)
    yield Finding(
        title=f"The device is busy {share} of the {view.unit}{but}: launching "
        f"{view.per_step(len(kernels)):,.0f} {what} of {numbers.time(typical)} each{and_others} takes longer "
        "than running them",
        saving=saving if saving is whole else replace(saving, most_us=whole.us),
        after="graph-break" if remedy.of_graphs else "",
        evidence=[evidence.of(view, shown, kernels), *evidence.of_gaps(view, longest)],
        advice=remedy.advice + begin,
        source=line,
        snippet=remedy.snippet,
        proof=commands.tune(view, remedy.mode) if remedy.mode else None,
    )
