"""One kernel is most of the device's time.

What it finds
    A kernel with half or more of the busy time.

Why it is slow
    It need not be: a program that does one thing has one kernel. But nothing else is worth looking at first.

How it decides
    Its share of device time is at least 50 %. What a speed-up by k would buy is share × (1 − 1/k) of busy
    time, on the critical path; the title gives it for k = 2. Nothing is promised: by how much the kernel can
    get faster is not known from its name (``low-flops`` and ``low-bandwidth`` know it where limits are
    known).

What to do
    Look at it with ``kinetoscope bench``: its bandwidth, its FLOP/s, other configurations. Or give it less to
    do.

Source
    "Profiling in PyTorch", part 1: "One event dominates CUDA total"; Amdahl's law.
"""

from kinetoscope.findings.rule import *

SHARE = 0.5
BUSY = 0.5  # in a step that waits for the host, no kernel is hot

ROLE = "symptom"


def find(view: RankView) -> Findings:
    if view.busy_share < BUSY:
        return
    work = view.work.filter(pl.col("part") != "communication")
    total = int(work["duration_ns"].sum())
    by_name = work.group_by("name").agg(pl.sum("duration_ns"), pl.len()).sort("duration_ns", descending=True)
    if len(by_name) < 2 or (share := int(by_name["duration_ns"][0]) / max(total, 1)) < SHARE:
        return
    name = str(by_name["name"][0])
    hot = view.known.filter(pl.col("name") == name)
    half = savings.device(view, hot, "this kernel twice as fast", saved=pl.col("duration_ns") / 2)
    if half.share < LOW:
        return
    yield Finding(
        title=f"{short_name(name)} is {share:.0%} of device time ({view.per_step(len(hot)):,.0f} launches a "
        f"{view.unit}): twice as fast, the {view.unit} would be {half.share:.0%} shorter",
        saving=savings.nothing("a what-if: by how much the kernel can get faster is not known"),
        at_least="info",
        at_most="info",
        evidence=[evidence.of(view, f"{len(hot)} launches", hot.sort("duration_ns", descending=True))],
        advice="Start here: see what limits it, before anything else.",
        source=evidence.source(view, hot["op"]),
        proof=commands.bench(view, name),
    )
