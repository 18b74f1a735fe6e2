"""The device waits while an op computes on the CPU.

What it finds
    A CPU op (a sort, a random permutation, a large copy) that runs for a millisecond or more while the device
    has nothing to do.

Why it is slow
    The launching thread computes instead of launching. The same op on the device is often a hundred times
    faster.

How it decides
    Idle time of the cause ``host-op`` whose host event is an op (category ``cpu_op``): a millisecond or more
    of its own time with nothing recorded inside. An op that launches device work itself does not compute on
    the CPU; it is loading its kernel, which is ``cold-start-step``'s.

What to do
    Make its inputs on the device (``device="cuda"``), or do it in the data loader's workers ahead of time.

Source
    "Profiling in PyTorch", part 1: drill into the CPU lane under the gap.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope.findings import evidence, savings
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import Scene

# Ops whose own time on the host is the compiler's or the runtime's, not a computation of theirs.
NOT_COMPUTING = (
    r"^(Torch-Compiled Region|## Call CompiledFxGraph|TorchDynamo|AOTDispatcher|Pregraph|CompiledFunction"
    r"|record_param_comms|nccl|c10d|gloo|triton_|aten::(empty|_foreach_|to$))"
)


def find(scene: Scene) -> Iterable[Finding]:
    host = scene.trace.host_events
    idle = scene.gaps.filter((pl.col("cause") == "host-op") & pl.col("host_event").is_not_null())
    idle = idle.with_columns(
        host["name"].gather(idle["host_event"]).cast(pl.String).alias("op"),
        host["category"].gather(idle["host_event"]).cast(pl.String).alias("sort"),
    ).filter(
        (pl.col("sort") == "cpu_op")
        & ~pl.col("op").str.contains(NOT_COMPUTING)
        & ~pl.col("host_event").is_in(scene.trace.device_events["op"].drop_nulls().implode())
    )
    for (op,), group in idle.group_by("op", maintain_order=True):
        us = scene.us_of(group, "idle_ns")
        longest = group.sort("idle_ns", descending=True).head(3)
        yield Finding(
            subject=str(op),
            title=f"The device waits {us / 1000:.1f} ms a {scene.unit} while {op} computes on the CPU",
            saving=savings.idle(scene, group, "the device's idle time during the op"),
            evidence=evidence.of_gaps(scene, longest),
            advice="Run it on the device, or ahead of time in another thread.",
            source=evidence.source(scene, longest["host_event"]),
        )
