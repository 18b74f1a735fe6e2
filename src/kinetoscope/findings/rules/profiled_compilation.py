"""The recording contains compiling.

What it finds
    Dynamo, AOTAutograd and Inductor at work inside the recorded window: the first call of a compiled
    function, or a recompilation.

Why it is slow
    Compiling takes seconds, once. In the table it buries the steady state, and it shows ops that never ran on
    the device: the compiler traces the function with fake tensors, so ``aten::mul``, ``aten::add`` and
    ``prims::…`` appear on the CPU, once, without a kernel; and autotuning launches kernels that the program
    never requested.

How it decides
    The time inside events that torch marks ``(dynamo_timed)`` is at least 1 % of the window. Recording a CUDA
    graph alone does not count.

What to do
    Call the compiled function two or three times before the profiler starts, with the shapes that it will
    see.

Source
    The forum thread "Profiling torch.compile CUDA code": "aten::add, aten::mul … all happen on CPU".
"""

from kinetoscope.analysis.compiled.regions import compiling
from kinetoscope.findings.rule import *

SHARE = 0.01

ROLE = "symptom"


def find(view: RankView) -> Findings:
    spans = compiling(view.trace, *view.bounds)
    time = intervals.total(spans)
    if time < SHARE * view.length_ns:
        return
    us, share = view.us(time), time / view.length_ns
    events = view.compiler_events
    longest = events.sort("duration_ns", descending=True)
    traced, launched = _ops_inside(view, spans)
    others = (
        f"{traced} ops on the CPU are the compiler tracing with fake tensors, and {launched} device events "
        "are it autotuning or preparing: neither is the program's own work"
    )
    yield Finding(
        title=f"Compiling takes {time / 1e6:.0f} ms of the recording ({share:.0%}): this is not the steady "
        "state",
        saving=savings.once(view, us, "time inside Dynamo, AOTAutograd and Inductor; paid once"),
        at_least="medium",
        evidence=[
            evidence.of(view, f"{len(events)} compiler phases", longest),
            evidence.of(view, others, events.head(1)),
        ],
        advice="Call the compiled function a few times before the profiler starts.",
        snippet="for _ in range(3):\n    compiled(x)\ntorch.cuda.synchronize()  # then start the profiler",
        source=evidence.source(view, events["id"]),
    )


def _ops_inside(view: RankView, spans: pl.DataFrame) -> tuple[int, int]:
    """Ops that began while compiling and launched nothing, and device events launched meanwhile."""
    host, device = view.trace.host_events, view.trace.device_events
    ops = host.select("id", "start_ns").filter(
        matching(host, "category", "^cpu_op$") & matching(host, "name", "^(aten|prims)::")
    )
    traced = intervals.beginning_in(ops, spans).filter(
        ~pl.col("id").is_in(device["op"].drop_nulls().implode())
    )
    launches = pl.DataFrame({"start_ns": host["start_ns"].gather(device["launch"])}).drop_nulls()
    return len(traced), len(intervals.beginning_in(launches, spans))
