"""Something is kept in every step, and never given back.

What it finds
    Lines whose allocations outlive their step, one more with each step: losses that are summed up with
    their graphs, outputs that are appended to a list, hooks that keep activations.

Why it is slow
    It is not, until memory is full; then the program dies, thousands of steps later.

How it decides
    Of the allocations of one stack, more are alive at each boundary of the recorded steps than at the one
    before, three boundaries at least.

What to do
    Keep numbers, not tensors: ``total += loss.item()``, or ``loss.detach()`` where the graph is what is
    kept; move what must be kept to the host.

Source
    PyTorch FAQ, "My model reports out of memory".
"""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope import numbers
from kinetoscope.analysis.memory.growth import growth
from kinetoscope.findings import savings
from kinetoscope.findings.model import Evidence, Finding
from kinetoscope.findings.scene import Scene

SMALL = 4096  # bytes a step: a million steps fill no device
STEPS = 100_000


def find(scene: Scene) -> Iterable[Finding]:
    start, end = scene.bounds
    for one in scene.memory:
        rows = growth(one.history, one.held.boundaries_ns if one.held else ())
        for row in rows.head(savings.SHOWN_GROUPS).iter_rows(named=True):
            if row["grows"] != "allocations" or row["bytes_per_step"] < SMALL:
                continue
            held = f", held by {', '.join(row['names'])}" if row["names"] else ""
            rate = numbers.size(row["bytes_per_step"])
            yield Finding(
                title=f"{rate} more are kept with every step, allocated by {row['owner']}{held}",
                saving=savings.nothing("what the recorded steps kept; it grows with every step"),
                saving_bytes=row["bytes"],
                evidence=[Evidence(f"at {row['line'] or row['owner']}", start / 1000, end / 1000)],
                advice="Keep numbers instead of tensors (.item()), or tensors without graphs (.detach()).",
                at_least="high" if scene.ran_out or _fills(one.history.counters, row) else "medium",
                source=row["line"] or None,
                subject=f"{one.history.device} {row['line']} {row['owner']}",
            )


def _fills(counters: object, row: dict[str, int]) -> bool:
    """Whether it fills what is free of the device within ``STEPS``."""
    free = getattr(counters, "free_bytes", 0)
    return bool(free) and row["bytes_per_step"] * STEPS > free
