"""CUDA graphs are prepared anew in most steps.

What it finds
    Compiled functions with ``mode="reduce-overhead"`` or ``"max-autotune"`` that meet a size of their inputs
    for which they have no graph, step after step; graphs that a program captures in each step.

Why it is slow
    A graph replays one size. For each new one the first call warms up and the second captures, which takes
    the host milliseconds, and keeps the graph's memory; where sizes hardly repeat, nothing is ever replayed.

How it decides
    Half of the recorded steps and at least two prepare or capture a graph, of a program that has run for
    longer than its first steps. The host's time in compiled functions that do goes, but for that of the ops
    and launches in them; of a program's own captures, all of it.

What to do
    Fill inputs up to one size or a few; or leave CUDA graphs out: ``dynamic=True`` without the mode.

Source
    PyTorch documentation, "CUDAGraph Trees", dynamic shapes; pytorch/pytorch issue 119640.
"""

from kinetoscope.analysis.compiled.regions import region_around
from kinetoscope.analysis.events.torch_names import (
    CAPTURE_BEGIN,
    CAPTURE_END,
    COMPILER_PHASE,
    ENTRY,
    GRAPH_RECORDING,
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
    gone = pl.concat([_entered(view, prepared["id"]), _captured(view)])
    yield Finding(
        title=f"CUDA graphs are prepared anew in {each} of {len(steps)} recorded steps",
        affected_us=view.us_of(gone),
        saving=savings.host(view, gone, "the host's time for it, but for that of ops and launches"),
        at_least="low",
        evidence=[evidence.of(view, "where graphs are prepared", prepared)],
        advice="Give what the graph takes one size, or few (fill up to the largest), so that graphs are "
        "replayed; or leave CUDA graphs out: torch.compile(model, dynamic=True) without a mode.",
        snippet="model = torch.compile(model, dynamic=True)",
    )


def _entered(view: RankView, prepared: pl.Series) -> pl.DataFrame:
    """The compiled regions around these events, with the ``share`` of their time that serves no op."""
    host, around = view.trace.host_events, region_around(view.trace)
    regions = around.gather(prepared).drop_nulls().unique().sort()
    is_own = matching(host, "name", f"{ENTRY}|{PREPARES}|{COMPILER_PHASE}")
    own = host.select(own_ns="self_ns", id=around).filter(is_own & around.is_in(regions.implode()))
    costs = own.group_by("id").agg(pl.col("own_ns").sum())
    found = host[regions].join(costs, on="id", maintain_order="left")
    return found.select(*SEGMENT, share=pl.col("own_ns") / pl.col("duration_ns"))


def _captured(view: RankView) -> pl.DataFrame:
    """The times of threads from the begin of each capture to its end."""
    ends = view.host(CAPTURE_END).select("lane", "start_ns", ends_ns="start_ns").sort("start_ns")
    begins = view.inside(view.host(CAPTURE_BEGIN)).select("lane", "start_ns").sort("start_ns")
    found = begins.join_asof(ends, on="start_ns", by="lane", strategy="forward", check_sortedness=False)
    length = pl.col("ends_ns") - pl.col("start_ns")
    return found.with_columns(duration_ns=length, share=1.0).drop_nulls().select(*SEGMENT, "share")
