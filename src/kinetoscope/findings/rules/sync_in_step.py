"""The host stops to wait for the device, and the device then waits for the host.

What it finds
    Calls inside the steps that need a value from the device: ``.item()``, ``.cpu()``, ``bool(tensor)``,
    ``nonzero``, indexing with a mask, ``print`` of a tensor, ``torch.cuda.synchronize()``.

Why it is slow
    The host cannot launch ahead while it waits. When the value arrives the queue is empty, and the device
    idles until the host has launched the next work.

How it decides
    Idle time whose cause is ``synchronization``: the device ran dry while its launching thread sat in a
    synchronising call, or on the way from there to the next launch. The op around the call says what asked
    for it. The flush at the end of the recording does not count.

What to do
    Keep the value on the device (``torch.where`` for a branch, accumulate the loss as a tensor), read it some
    steps later or every hundredth step, copy with ``non_blocking=True`` into pinned memory and read it after
    the next step.

Source
    PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.replay.change import no_wait
from kinetoscope.findings import evidence, savings
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import Scene

# What the op around a synchronising call means in the user's program.
ASKED_BY = {
    "aten::_local_scalar_dense": ".item(), float(t), int(t) or bool(t)",
    "aten::item": ".item(), float(t), int(t) or bool(t)",
    "aten::nonzero": "nonzero() or indexing with a mask: the result's size is only known on the device",
    "aten::masked_select": "masked_select(): the result's size is only known on the device",
    "aten::unique2": "unique(): the result's size is only known on the device",
    "aten::_unique2": "unique(): the result's size is only known on the device",
    "aten::equal": "torch.equal() returns a Python bool",
    "aten::is_nonzero": "bool(tensor), as in `if tensor:`",
    "aten::copy_": "a copy between host and device that blocks",
    "aten::_to_copy": "a copy between host and device that blocks",
}


def find(scene: Scene) -> Iterable[Finding]:
    idle = scene.gaps.filter((pl.col("cause") == "synchronization") & pl.col("host_event").is_not_null())
    if idle.is_empty():
        return
    host = scene.trace.host_events
    asking = host["parent"].gather(idle["host_event"])
    idle = idle.with_columns(
        asking.alias("op"),
        host["name"].gather(asking).cast(pl.String).fill_null("the program").alias("asked_by"),
        host["name"].gather(idle["host_event"]).cast(pl.String).alias("call"),
    )
    for (asked_by, call), group in idle.group_by("asked_by", "call", maintain_order=True):
        times = scene.per_step(group["host_event"].n_unique())
        us = scene.us_of(group, "idle_ns")
        longest = group.sort("idle_ns", descending=True).head(3)
        meaning = ASKED_BY.get(str(asked_by))
        yield Finding(
            subject=f"{asked_by} {call}",
            title=f"{asked_by} waits for the device {times:.0f} times a {scene.unit} ({call}): "
            f"{numbers.time(us)} idle",
            saving=savings.of(scene, no_wait(group["host_event"]), "the steps without these waits"),
            evidence=evidence.of_gaps(scene, longest),
            advice=(f"This is {meaning}. " if meaning else "")
            + "Keep the value on the device, or read it later, after the next step has been launched.",
            snippet="running_loss += loss.detach()  # and .item() once every hundred steps",
            source=evidence.source(scene, longest["op"]),
        )
