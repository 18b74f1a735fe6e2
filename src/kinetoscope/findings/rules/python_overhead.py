"""Python code of yours keeps the device waiting.

What it finds
    A function of the program (not of a library) whose own Python takes time in which the device has nothing
    to do. Needs a recording with stacks (``with_stack=True``).

Why it is slow
    The thread that launches is interpreting Python: loops over elements, string work, logging, bookkeeping.

How it decides
    From the time inside each of the program's functions, what was spent in ops, runtime calls and in other
    Python functions (built-in ones and those of libraries that score, log and write count as the caller's) is
    taken out; what is left and coincides with idle time of the device is the function's own. Recording stacks
    makes Python slower, so the share is an upper bound unless the step's time without the profiler is known.

What to do
    Take it out of the step, do it every hundredth step or in another thread, or make it a tensor op.

Source
    PyTorch profiler documentation, ``with_stack``.
"""

from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.events.torch_names import GARBAGE_COLLECTION
from kinetoscope.findings.rule import *

CANDIDATES = 12  # functions looked at: those with most time
# Libraries that launch nothing: what they compute is done for the function that calls them.
LEAVES = (
    r"(^|/)(sklearn|numpy|scipy|pandas|PIL|cv2|jiwer|evaluate|nltk|sacrebleu|rouge_score|tensorboard|wandb|mlflow"
    r"|tqdm|json|csv|pickle|logging|re|copy|random|statistics|string)(/\S+)?\.py\(\d+\): "
)
FRAME = "python_function"
WORKING = "cpu_op|cuda_runtime|cuda_driver|hip_runtime"


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    if view.work.is_empty() or not matching(host, "category", f"^({FRAME})$").any():
        return
    events = host.select("event", "name", "start_ns", "duration_ns", END)
    frames, working = (
        view.inside(events.filter(matching(host, "category", f"^({category})$")))
        for category in (FRAME, WORKING)
    )
    collected = events.filter(matching(host, "name", GARBAGE_COLLECTION))  # a rule of its own
    if frames.is_empty():
        return
    names = frames.group_by("name").agg(pl.col("duration_ns").sum()).sort("duration_ns", descending=True)
    texts = names["name"].cast(pl.String)
    of_program = [name for name in texts.filter(~texts.str.contains(LEAVES)) if evidence.user_line(name)]
    named = frames.with_columns(text=pl.col("name").cast(pl.String))
    leaf = pl.col("text").str.contains(LEAVES)
    leaves = named.filter(leaf).sort("start_ns")
    for name in of_program[:CANDIDATES]:
        own = named.filter(pl.col("text") == name)
        around = own.select("start_ns", until="end_ns").sort("start_ns")
        others = (
            named.filter((pl.col("text") != name) & pl.col("text").str.contains(r"\.py\(") & ~leaf)
            .sort("start_ns")
            .join_asof(around, on="start_ns")
            .filter(pl.col("end_ns") <= pl.col("until"))
        )
        taken = pl.concat([table.select("start_ns", "end_ns") for table in (working, others, collected)])
        idle = intervals.intersect(intervals.subtract(own, taken), view.gaps)
        us = view.us(intervals.total(idle))
        saving = savings.idle(view, idle, "idle time during the function's own Python")
        if saving.share < MEDIUM:
            continue
        called = leaves.join_asof(around, on="start_ns").filter(pl.col("end_ns") <= pl.col("until"))
        yield Finding(
            subject=name,
            title=f"The device waits while {name} runs Python{_mostly(called, us, view)}",
            affected_us=us,
            saving=saving,
            at_most="medium" if view.unprofiled_us is None else "high",
            evidence=[evidence.of(view, f"{len(own)} calls", own)],
            advice="Take it out of the step, do it less often, or make it a tensor op.",
            source=evidence.user_line(name),
        )


def _mostly(leaves: pl.DataFrame, us: float, view: RankView) -> str:
    """The function of a library that most of the time is spent in, where there is one."""
    by_name = leaves.group_by("text").agg(pl.col("duration_ns").sum()).sort("duration_ns", "text")
    if by_name.is_empty() or view.us_of(by_name.tail(1)) < us / 2:
        return ""
    return (
        f", mostly in {by_name['text'][-1].rpartition(': ')[2]} of {by_name['text'][-1].partition('/')[0]},"
    )
