"""Python code of yours keeps the device waiting.

What it finds
    A function of the program (not of a library) whose own Python takes time in which the device has nothing
    to do. Needs a recording with stacks (``with_stack=True``).

Why it is slow
    The thread that launches is interpreting Python: loops over elements, string work, logging, bookkeeping.

How it decides
    From the time inside each of the program's functions, what was spent in ops, runtime calls and in other
    Python functions (built-in ones count as the caller's) is taken out; what is left and coincides with idle
    time of the device is the function's own. Recording stacks makes Python slower, so the share is an upper
    bound unless the step's time without the profiler is known.

What to do
    Take it out of the step, do it every hundredth step or in another thread, or make it a tensor op.

Source
    PyTorch profiler documentation, ``with_stack``.
"""

from kinetoscope.analysis.events.torch_names import GARBAGE_COLLECTION
from kinetoscope.findings.rule import *

CANDIDATES = 12  # functions looked at: those with most time
WORKING = "cpu_op|cuda_runtime|cuda_driver|hip_runtime"


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    events = host.select(
        "event", "name", "start_ns", "duration_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns")
    )
    frames, working = (
        view.inside(events.filter(matching(host, "category", f"^({category})$")))
        for category in ("python_function", WORKING)
    )
    collected = events.filter(matching(host, "name", GARBAGE_COLLECTION))  # a rule of its own
    if frames.is_empty() or view.work.is_empty():
        return
    names = frames.group_by("name").agg(pl.col("duration_ns").sum()).sort("duration_ns", descending=True)
    of_program = [name for name in names["name"].cast(pl.String) if evidence.user_line(name)]
    named = frames.with_columns(pl.col("name").cast(pl.String).alias("text"))
    for name in of_program[:CANDIDATES]:
        own = named.filter(pl.col("text") == name)
        around = own.select("start_ns", pl.col("end_ns").alias("until")).sort("start_ns")
        others = (
            named.filter((pl.col("text") != name) & pl.col("text").str.contains(r"\.py\("))
            .sort("start_ns")
            .join_asof(around, on="start_ns")
            .filter(pl.col("end_ns") <= pl.col("until"))
        )
        taken = pl.concat([table.select("start_ns", "end_ns") for table in (working, others, collected)])
        left = intervals.subtract(own, taken)
        idle = intervals.intersect(left, view.gaps)
        us = view.us(intervals.total(idle))
        saving = savings.idle(view, idle, "idle time during the function's own Python")
        if saving.share < MEDIUM:
            continue
        yield Finding(
            subject=name,
            title=f"The device waits while {name} runs Python",
            affected_us=us,
            saving=saving,
            at_most="medium" if view.unprofiled_us is None else "high",
            evidence=[evidence.of(view, f"{len(own)} calls", own)],
            advice="Take it out of the step, do it less often, or make it a tensor op.",
            source=evidence.user_line(name),
        )
