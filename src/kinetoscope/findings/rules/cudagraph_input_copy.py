"""Inputs are copied into a CUDA graph's own memory at every call.

What it finds
    ``mode="reduce-overhead"`` or ``"max-autotune"``: before each replay, inputs that are not at the recorded
    addresses are copied there (``aten::_foreach_copy_`` next to ``cudaGraphLaunch``).

Why it is slow
    A graph replays with the addresses that it was recorded with. For large inputs the copies cost more than
    the saved launches; for the founding forum thread's A*B+C, twice the fused kernel itself.

How it decides
    Copy kernels launched by an op that has a ``cudaGraphLaunch`` as its sibling inside the same compiled
    graph.

What to do
    If the inputs stay where they are between calls (weights, static buffers), mark them
    (``torch._dynamo.mark_static_address(x)``) or write the next batch into the same tensor. If launches are
    no problem (the device is busy anyway), use the default mode.

Source
    The forum thread "Profiling torch.compile CUDA code": 7.7 ms of ``multi_tensor_apply_kernel`` next to 4.7
    ms of ``triton_poi_fused_add_mul_0``; PyTorch documentation of CUDAGraph Trees.
"""

from kinetoscope.analysis.events.torch_names import GRAPH_LAUNCH
from kinetoscope.findings.rule import *

COPIES = r"^aten::(_foreach_copy_|copy_)$"


def find(view: RankView) -> Findings:
    graphs = view.host(GRAPH_LAUNCH)
    if graphs.is_empty():
        return
    # CUDA graph trees: copies and launch are children of one "## Call CompiledFxGraph" or of its wrapper.
    copying = view.host(COPIES).filter(pl.col("parent").is_in(graphs["parent"].drop_nulls().implode()))
    around = view.trace.host_events["name"][copying["parent"]].cast(pl.String)
    copying = copying.filter(around.str.contains("CompiledFxGraph|Torch-Compiled|CompiledFunction"))
    # The first call of a graph records it, from copies of its own.
    copies = view.work.filter(pl.col("op").is_in(copying["id"].implode()))
    if copies.is_empty():
        return
    us = view.us_of(copies)
    replay = view.us_of(view.work.filter(pl.col("launch").is_in(graphs["id"].implode())))
    yield Finding(
        title="Copies into CUDA-graph inputs; the graphs themselves take "
        f"{numbers.time(replay)} per {view.unit}",
        affected_us=us,
        saving=savings.device(view, copies, "the copies' own time", saved="duration_ns"),
        evidence=[evidence.of(view, f"{len(copies)} copies before {len(graphs)} graph launches", copies)],
        advice="Keep the inputs at fixed addresses, or use the default mode where launches are not the "
        "limit.",
        snippet="torch._dynamo.mark_static_address(x)  # or torch.compile(fn) without a mode",
        source=evidence.source(view, copying["id"]),
        proof=commands.tune(view, mode="default"),
    )
