"""One op launches hundreds of tiny kernels.

What it finds
    An op that is called again and again in a step for work of a few microseconds each: a Python loop over
    parameters, list elements or time steps.

Why it is slow
    Each call pays for Python, the dispatcher and a launch; the device's share of it is negligible.

How it decides
    Ops with at least 50 kernels per step whose median is below 5 µs and whose host time, taken out, would
    shorten the step. Ops inside an optimizer belong to ``optimizer-not-fused``; compiled regions to
    ``compile-tax``.

What to do
    Do them at once: one op on a stacked tensor, ``torch._foreach_*`` on the list, or compile the loop.

Source
    "Profiling in PyTorch", part 1: "One event has a huge # of Calls".
"""

from kinetoscope.findings.rule import *

LISTED = "^(elementwise|copy|memset|reduction)$"  # what torch._foreach_* does on lists of tensors
CALLS = 50  # fewer calls are ordinary: a model of fifty layers has fifty of everything
APART_NS = 20_000  # of Python between the calls of one loop
TINY_NS = 5_000  # shorter than any launch

ROLE = "symptom"


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    work = view.work
    eager = work.select("id", "op", "op_name", "duration_ns").filter(
        matching(work, "op_name", "^aten::") & (work["kind"] == "kernel") & matching(work, "category", LISTED)
    )
    ops = (
        eager.group_by("op_name")
        .agg(
            pl.len().alias("calls"),
            pl.col("duration_ns").median().alias("median_ns"),
            pl.col("op").unique().sort(),
            pl.col("id"),
        )
        .filter((pl.col("calls") >= CALLS * view.steps) & (pl.col("median_ns") < TINY_NS))
        .sort("calls", pl.col("op_name").cast(pl.String), descending=[True, False])
    )
    if ops.is_empty():
        return
    calls = host.select("id", "lane", "start_ns", "duration_ns")[ops["op"].explode().sort()]
    names = ops["op_name"].cast(pl.String).to_list()
    kernels, typical = ops.select(pl.sum("calls"), pl.median("median_ns")).row(0)
    yield Finding(
        title=f"{', '.join(names[:2])}{' and others' if len(names) > 2 else ''}: "
        f"{view.per_step(kernels):,.0f} kernels per {view.unit} of {numbers.time(typical / 1000)}",
        saving=savings.host(
            view, in_a_row(calls, APART_NS), "these calls' host time, were they one for each op"
        ),
        at_most="medium",
        evidence=[
            evidence.of(view, f"{count} calls of {name}", host[rows])
            for name, count, rows in ops.head(4).select("op_name", "calls", "op").iter_rows()
        ],
        advice="Do them at once: stack the tensors, or use torch._foreach_* on the list"
        + ("." if compiles(view) else "; or compile the loop."),
        snippet="torch._foreach_mul_(tensors, 0.99)",
        source=evidence.source(view, calls["id"]),
    )
