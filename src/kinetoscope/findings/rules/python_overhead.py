"""Python code of yours keeps the device waiting.

What it finds
    A function of the program (not of a library) whose own Python takes time in which the device has nothing
    to do. Needs a recording with stacks (``with_stack=True``). In a program without a device, a function
    in which its thread runs no op for a tenth of the step or more: Python, NumPy and other libraries.

Why it is slow
    The thread that launches is interpreting Python: loops over elements, string work, logging, bookkeeping.

How it decides
    From the time inside each of the program's functions, what was spent in ops, runtime calls and other
    Python functions is taken out (those of libraries that score, log and write count as the caller's); what
    is left and coincides with idle time is the function's own. Stacks make Python slower: it is an upper
    bound unless the step's time without the profiler is known. Without a device: the function in which most
    time passes without an op, in pauses of 100 µs or more that most steps have there and samples show as
    well, in a program that trains or is known not to wait for requests. How much of it can go is not known.

What to do
    Take it out of the step, do it every hundredth step or in another thread, or make it a tensor op.

Source
    PyTorch profiler documentation, ``with_stack``.
"""

from kinetoscope.analysis.events.rows import END
from kinetoscope.analysis.events.torch_names import GARBAGE_COLLECTION
from kinetoscope.analysis.replay.host import QUIET_NS
from kinetoscope.findings.in_force import trains
from kinetoscope.findings.program_lines import never_waits, of_thread
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.results_on_host import OTHERS
from kinetoscope.findings.rules.tensors_of_lists import reading

CANDIDATES = 12  # functions looked at: those with most time
# Libraries that launch nothing: what they compute is done for the function that calls them.
LEAVES = (
    r"(^|/)(sklearn|numpy|scipy|pandas|PIL|cv2|jiwer|evaluate|nltk|sacrebleu|rouge_score|tensorboard|wandb|mlflow"
    r"|tqdm|json|csv|pickle|logging|re|copy|random|statistics|string)(/\S+)?\.py\(\d+\): "
)
FRAME = "python_function"
WORKING = "cpu_op|cuda_runtime|cuda_driver|hip_runtime"


def find(view: RankView) -> Findings:
    if view.on_cpu:
        yield from _between_ops(view)
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


def _between_ops(view: RankView) -> Findings:
    """The finding on the line of a program without a device at which its thread runs no op for longest."""
    if view.lines is None or not (trains(view) or never_waits(view)):
        return
    others = [one.select("lane", "start_ns", END) for one in (view.host(OTHERS), reading(view))]
    known = intervals.union(pl.concat(others), ["lane"])
    calls = view.called.with_columns(until_ns=pl.col("start_ns").shift(-1).over("lane"))
    calls = calls.with_columns(before=view.lines.rows["before"].gather(calls["id"]).shift(-1))
    silent = calls.select("lane", "before", start_ns="end_ns", end_ns="until_ns").drop_nulls("before")
    silent = silent.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    silent = silent.filter(pl.col("duration_ns") >= QUIET_NS)
    silent = silent.filter(2 * intervals.covered(known, silent, ["lane"]) < silent["duration_ns"])
    silent = intervals.beginning_in(silent, view.trace.steps.select("start_ns", END, step="id"))
    # Of a thread that the machine took off its core, each step shows another function.
    function = pl.col("before").str.extract_groups(r"^(?<file>.*):\d+ (?<name>.*)$")
    silent = silent.with_columns(function=function).drop_nulls("function")
    each = silent.group_by("function", "step").agg(pl.sum("duration_ns")).group_by("function")
    usual = pl.col("duration_ns").sort().reverse().get(view.steps // 2, null_on_oob=True)
    longest = each.agg(usual_ns=usual).drop_nulls().sort("usual_ns", "function").tail(1)
    if longest.is_empty():
        return
    us, name = whole(longest["usual_ns"][0]) / 1000, longest["function"][0]["name"]
    own = silent.filter(pl.col("function") == longest["function"][0])
    lines = own.group_by("before").agg(pl.sum("duration_ns")).sort("duration_ns", "before")["before"]
    line = str(lines[-1]).partition(" ")[0]
    if name == "<module>":
        seen = [one for one in of_thread(view) if one.line == line.rpartition("/")[2]]
    else:
        seen = [one for one in of_thread(view) if one.function == name]
    seen = [one for one in seen if not one.loads and (one.library or not one.calls)]
    own_us = min(us, sum(one.time_us for one in seen))
    if us < HIGH * view.step_us or own_us < HIGH * view.own_step_us:
        return
    into = next((f", which calls {one.library} {one.calls}" for one in seen if one.library), "")
    where = f"The script ({line})" if name == "<module>" else f"{name} ({line})"
    saving = savings.host(view, own, "the time without an op in that function")
    yield Finding(
        subject=line,
        title=f"{where}{into} runs no op for {numbers.time(own_us)} of each {view.unit}, but "
        "Python or a library such as NumPy",
        affected_us=own_us,
        saving=savings.not_predicted(saving, "how much of that can go is not known"),
        at_least="medium",
        evidence=evidence.of_steps(view, f"{len(own)} times of 100 µs or more without an op"),
        advice="Do it less often, once before the loop, or as an op on whole tensors.",
        source=line,
    )


def _mostly(leaves: pl.DataFrame, us: float, view: RankView) -> str:
    """The function of a library that most of the time is spent in, where there is one."""
    by_name = leaves.group_by("text").agg(pl.col("duration_ns").sum()).sort("duration_ns", "text")
    if by_name.is_empty() or view.us_of(by_name.tail(1)) < us / 2:
        return ""
    return (
        f", mostly in {by_name['text'][-1].rpartition(': ')[2]} of {by_name['text'][-1].partition('/')[0]},"
    )
