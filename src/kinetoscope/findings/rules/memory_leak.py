"""Memory is allocated in every step, and never given back.

What it finds
    Lines whose allocations outlive their step, one more with each step: losses that are summed up with
    their graphs, outputs that are appended to a list, hooks that keep activations.

Why it is slow
    It is not, until memory is full; then the program dies, thousands of steps later.

How it decides
    Of the allocations of one stack more are alive at each boundary of the recorded steps than at the one
    before, three boundaries at least. Its size is taken at the peak, or when an allocation failed: the
    allocations of that line, and those of the variables that refer to some of it.

What to do
    Keep numbers, not tensors: ``total += loss.item()``, or ``loss.detach()`` where the graph is kept; move
    tensors that must be kept to the host.

Source
    PyTorch FAQ, "My model reports out of memory".
"""

from typing import Any  # a row of a table: its values are of their columns' types

from kinetoscope.analysis.memory.growth import growth, held_at_peak
from kinetoscope.analysis.memory.peak import RankHistory
from kinetoscope.findings.rule import *

SMALL = 4096  # bytes per step: a million steps fill no device
STEPS = 100_000


def find(view: RankView) -> Findings:
    start, end = view.bounds
    for one in view.memory_in_steps:
        rows = growth(one.history, one.held.boundaries_ns if one.held else ())
        for row in rows.head(savings.SHOWN_GROUPS).iter_rows(named=True):
            if row["grows"] != "allocations" or row["bytes_per_step"] < SMALL:
                continue
            names = f", in {', '.join(row['names'])}" if row["names"] else ""
            rate = numbers.size(row["bytes_per_step"])
            peaks = (at.history for at in view.memory if at.history.device == one.history.device)
            held_bytes = [held_at_peak(at, row["line"], row["owner"], row["names"]) for at in peaks]
            yield Finding(
                title=f"{rate} more are kept with every step, allocated by {row['owner']}{names}",
                saving=savings.nothing("its size now; it grows with every step"),
                saving_bytes=max(row["bytes"], *held_bytes),
                evidence=[Evidence(_until_full(one, row), start / 1000, end / 1000)],
                advice="Keep numbers instead of tensors (.item()), or tensors without graphs (.detach()).",
                at_least="high" if view.ran_out or _fills(one, row) else "medium",
                source=row["line"] or None,
                subject=f"{one.history.device} {row['line']} {row['owner']}",
            )


def _until_full(one: RankHistory, row: dict[str, Any]) -> str:
    text = f"at {row['line'] or row['owner']}"
    if (steps := _steps_until_full(one, row)) is not None:
        text += f"; the free memory of the device is used up after {float(f'{steps:.2g}'):,g} steps more"
    return text


def _steps_until_full(one: RankHistory, row: dict[str, Any]) -> int | None:
    free = one.history.counters.free_bytes if one.history.counters else 0
    return free // row["bytes_per_step"] if free else None


def _fills(one: RankHistory, row: dict[str, Any]) -> bool:
    steps = _steps_until_full(one, row)
    return steps is not None and steps < STEPS
