"""Inputs are copied into a CUDA graph's own memory at every call.

What it finds
    ``mode="reduce-overhead"`` or ``"max-autotune"``: before each replay, inputs that are not at the recorded addresses
    are copied there (``aten::_foreach_copy_`` next to ``cudaGraphLaunch``).

Why it is slow
    A graph replays with the addresses that it was recorded with. For large inputs the copies cost more than the saved
    launches; for the founding forum thread's A*B+C, twice the fused kernel itself.

How it decides
    Copy kernels launched by an op that has a ``cudaGraphLaunch`` as its sibling inside the same compiled graph.

What to do
    If the inputs stay where they are between calls (weights, static buffers), mark them
    (``torch._dynamo.mark_static_address(x)``) or write the next batch into the same tensor. If launches are no
    problem (the device is busy anyway), use the default mode.

Source
    The forum thread "Profiling torch.compile CUDA code": 7.7 ms of ``multi_tensor_apply_kernel`` beside 4.7 ms of
    ``triton_poi_fused_add_mul_0``; PyTorch documentation of CUDAGraph Trees.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.events.torch_names import GRAPH_LAUNCH
from kinetoscope.analysis.run import Run
from kinetoscope.bench.tune.settings import Setting
from kinetoscope.findings.model import Finding
from kinetoscope.findings.proof import commands as proofs
from kinetoscope.findings.scene import scenes, severity

COPIES = r"^aten::(_foreach_copy_|copy_)$"


def find(run: Run) -> Iterable[Finding]:
    for scene in scenes(run):
        graphs = scene.host(GRAPH_LAUNCH)
        if graphs.is_empty():
            continue
        host = scene.trace.host_events
        # cudagraph trees: the copies and the launch are children of one "## Call CompiledFxGraph" or of its wrapper.
        copying = scene.host(COPIES).filter(pl.col("parent").is_in(graphs["parent"].drop_nulls().implode()))
        around = host["name"].gather(copying["parent"]).cast(pl.String)
        copying = copying.filter(around.str.contains("CompiledFxGraph|Torch-Compiled|CompiledFunction"))
        # The first call of a graph records it, from copies of its own.
        copies = scene.work.filter(pl.col("op").is_in(copying["id"].implode()))
        if copies.is_empty():
            continue
        saving = scene.device_saving(
            copies.with_columns(pl.col("duration_ns").alias("saved_ns")), "the copies' own time"
        )
        level = severity(saving)
        if level is None:
            continue
        us = scene.per_step(int(copies["duration_ns"].sum())) / 1000
        launched = scene.work.filter(pl.col("launch").is_in(graphs["id"].implode()))
        replay = scene.per_step(int(launched["duration_ns"].sum())) / 1000
        yield Finding(
            title=f"Copies into CUDA-graph inputs take {numbers.time(us)} a {scene.unit}; the graphs themselves take {numbers.time(replay)}",
            severity=level,
            saving=saving,
            evidence=[scene.evidence(f"{len(copies)} copies before {len(graphs)} graph launches", copies)],
            advice="Keep the inputs at fixed addresses, or use the default mode where launches are not the limit.",
            snippet="torch._dynamo.mark_static_address(x)  # or torch.compile(fn) without a mode",
            source=scene.source(copying["id"]),
            proof=proofs.tune(scene, Setting(mode="default")),
            rank=scene.rank,
        )
