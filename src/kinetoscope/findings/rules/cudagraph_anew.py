"""CUDA graphs are prepared anew in most steps.

What it finds
    Compiled functions with ``mode="reduce-overhead"`` or ``"max-autotune"`` that meet a size of their inputs
    for which they have no graph, step after step; graphs that a program captures in each step.

Why it is slow
    A graph replays one size. For each new one the first call warms up and the second captures, which takes
    the host milliseconds, and keeps the graph's memory; where sizes hardly repeat, nothing is ever replayed.

How it decides
    Half of the recorded steps and at least two prepare or capture a graph, of a program that has run for
    longer than its first steps. The host's time in compiled functions that do goes, but for that of launches:
    also that of ops, which find kernels for the new size in the run that warms up, and of waits. Of a
    program's own captures all of it goes.

What to do
    Fill inputs up to one size or a few, such as multiples of 64; or leave CUDA graphs out where sizes vary:
    ``torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True``, or ``dynamic=True`` without the
    mode. Ops then still meet each new size.

Source
    PyTorch documentation, "CUDAGraph Trees", dynamic shapes; pytorch/pytorch issue 119640.
"""

from kinetoscope.analysis.compiled.regions import region_around
from kinetoscope.analysis.events.torch_names import (
    CAPTURE_BEGIN,
    CAPTURE_END,
    GRAPH_RECORDING,
    SYNCHRONIZATION,
)
from kinetoscope.findings.rule import *

# Inductor marks so where a function meets a size that it has no graph for.
PREPARES = rf"^cudagraphify\.get_container$|{GRAPH_RECORDING}"


def find(view: RankView) -> Findings:
    steps = view.trace.steps
    cold = view.record is not None and view.record.steps.cold
    prepared = view.inside(view.host(f"{PREPARES}|{CAPTURE_BEGIN}"))
    each = steps["start_ns"].search_sorted(prepared["start_ns"]).n_unique()
    if cold or each < max(2, len(steps) / 2):
        return
    entered = _entered(view, prepared["id"])
    gone = pl.concat([entered.select(*SEGMENT, "share"), _captured(view)])
    waits = view.host(SYNCHRONIZATION)["id"]
    waits = waits.filter(view.inside_of(entered["id"]).gather(waits).is_not_null())
    change = without_host(gone) | no_wait(waits)
    yield Finding(
        title=f"CUDA graphs are prepared anew in {each} of {len(steps)} recorded steps",
        affected_us=view.us_of(gone),
        saving=savings.of(view, change, "the host's time for it, but for that of launches"),
        at_least="low",
        evidence=[evidence.of(view, "where graphs are prepared", prepared)],
        advice="Give what the graph takes one size, or few (fill up to the largest, or to multiples of 64), "
        "so that graphs are replayed. Short of that leave CUDA graphs out where sizes vary: "
        "torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True, or no mode.",
        snippet="size = -(-size // 64) * 64  # of inputs that are filled up",
    )


def _entered(view: RankView, prepared: pl.Series) -> pl.DataFrame:
    """The compiled regions around these events, with the ``share`` of their time that serves no launch."""
    host, around = view.trace.host_events, region_around(view.trace)
    regions = around.gather(prepared).drop_nulls().unique().sort()
    calls = host.select("duration_ns", id=around)[view.launched["launch"]]
    costs = calls.group_by("id").agg(launches_ns=pl.sum("duration_ns"))
    found = host[regions].join(costs, on="id", how="left", maintain_order="left")
    return found.with_columns(share=1 - pl.col("launches_ns").fill_null(0) / pl.col("duration_ns"))


def _captured(view: RankView) -> pl.DataFrame:
    """The times of threads from the begin of each capture to its end."""
    ends = view.host(CAPTURE_END).select("lane", "start_ns", ends_ns="start_ns").sort("start_ns")
    begins = view.inside(view.host(CAPTURE_BEGIN)).select("lane", "start_ns").sort("start_ns")
    found = begins.join_asof(ends, on="start_ns", by="lane", strategy="forward", check_sortedness=False)
    length = pl.col("ends_ns") - pl.col("start_ns")
    return found.with_columns(duration_ns=length, share=1.0).drop_nulls().select(*SEGMENT, "share")
