"""The recording contains compiling.

What it finds
    Dynamo, AOTAutograd and Inductor at work inside the recorded window: the first call of a compiled function, or a
    recompilation.

Why it is slow
    Compiling takes seconds, once. In the table it buries the steady state, and it shows ops that never ran on the
    device: the compiler traces the function with fake tensors, so ``aten::mul``, ``aten::add`` and ``prims::…`` appear
    on the CPU, once, without a kernel; and autotuning launches kernels that the program never asked for.

How it decides
    The time inside events that torch marks ``(dynamo_timed)`` is at least 1 % of the window. Recording a CUDA graph
    alone does not count.

What to do
    Call the compiled function two or three times before the profiler starts, with the shapes that it will see.

Source
    The forum thread "Profiling torch.compile CUDA code": "aten::add, aten::mul … all happen on CPU".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.analysis.compiled.compiling import compiling
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import intervals
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.scene import Scene, scenes

SHARE = 0.01


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        stretches = compiling(scene.trace, *scene.bounds)
        time = intervals.total(stretches)
        if time < SHARE * scene.length_ns:
            continue
        us = time / scene.steps / 1000
        share = time / scene.length_ns
        events = scene.compiler_events
        traced, launched = _ops_inside(scene, stretches)
        yield Finding(
            title=f"Compiling takes {time / 1e6:.0f} ms of the recording ({share:.0%}): this is not the steady state",
            severity="high" if share >= 0.1 else "medium",
            saving=Saving(us, "time inside Dynamo, AOTAutograd and Inductor; paid once", True, share),
            evidence=[
                scene.evidence(f"{len(events)} compiler phases", events.sort("duration_ns", descending=True)),
                scene.evidence(
                    f"{traced} ops on the CPU are the compiler tracing with fake tensors, and {launched} device events "
                    "are it autotuning or preparing: neither is the program's own work",
                    events.head(1),
                ),
            ],
            advice="Call the compiled function a few times before the profiler starts.",
            snippet="for _ in range(3):\n    compiled(x)\ntorch.cuda.synchronize()  # then start the profiler",
            source=scene.source(events["id"]),
            rank=scene.rank,
        )


def _ops_inside(scene: Scene, stretches: pl.DataFrame) -> tuple[int, int]:
    """Ops that began while compiling and launched nothing, and device events launched meanwhile."""
    host = scene.trace.host_events
    ops = host.select("id", "start_ns").filter(
        matching(host, "category", "^cpu_op$") & matching(host, "name", "^(aten|prims)::")
    )
    began = ops.sort("start_ns").join_asof(
        stretches.sort("start_ns").select("start_ns", "end_ns"), on="start_ns", check_sortedness=False
    )
    began = began.filter(pl.col("start_ns") < pl.col("end_ns"))
    launches = scene.trace.device_events.select(
        host["start_ns"].gather(scene.trace.device_events["launch"]).alias("start_ns")
    ).drop_nulls()
    meanwhile = launches.sort("start_ns").join_asof(
        stretches.sort("start_ns").select("start_ns", "end_ns"), on="start_ns", check_sortedness=False
    )
    quiet = began.filter(~pl.col("id").is_in(scene.trace.device_events["op"].drop_nulls().implode()))
    return len(quiet), len(meanwhile.filter(pl.col("start_ns") < pl.col("end_ns")))
