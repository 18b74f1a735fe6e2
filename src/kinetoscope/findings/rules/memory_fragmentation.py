"""Free memory lies in holes that nothing fits into.

What it finds
    Memory that the allocator has of the driver, that is free, and that lies between blocks in use.

Why it is slow
    A block never moves: where sizes change from step to step, a hole of last step's size may fit nothing
    of this step's. More is asked of the driver, until it has none; then everything cached is given back,
    and that waits for the device.

How it decides
    At the peak of the recorded steps, what is reserved less what tensors asked for, less the rounding of
    blocks to 512 bytes and less segments that hold nothing at all. A twentieth of what is reserved
    remains in any case. Not where segments are expandable already.

What to do
    ``PYTORCH_ALLOC_CONF=expandable_segments:True``: segments grow by pages, and holes are given back. Pad
    lengths to a few sizes.

Source
    PyTorch CUDA semantics, "Optimizing memory usage with PYTORCH_ALLOC_CONF".
"""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope import numbers
from kinetoscope.analysis.memory.peak import split
from kinetoscope.findings import memory
from kinetoscope.findings.model import Finding
from kinetoscope.findings.scene import Scene

IN_ANY_CASE = 0.05


def find(scene: Scene) -> Iterable[Finding]:
    for one in scene.memory:
        parts = dict(split(one.history).select("part", "bytes").iter_rows())
        holes = parts["fragmentation"]
        freed = int(holes - IN_ANY_CASE * one.history.reserved)
        if one.history.snapshot.settings.get("expandable_segments"):
            continue
        found = memory.finding(
            scene,
            one,
            freed,
            title=f"{numbers.size(holes)} of {numbers.size(one.history.reserved)} reserved are free, in "
            "holes between blocks in use",
            advice="Let segments grow and shrink by pages; pad lengths that change to a few sizes.",
            basis="the holes at the peak, less a twentieth that remains",
            snippet="PYTORCH_ALLOC_CONF=expandable_segments:True",
        )
        if found:
            yield found
