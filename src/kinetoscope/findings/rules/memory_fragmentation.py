"""Free memory lies in holes that nothing fits into.

What it finds
    Memory that the allocator took from the driver beyond the most that blocks ever needed at once.

Why it is slow
    A block never moves. Where sizes change from step to step, a hole that a block of the last step left may
    fit nothing of this step. The allocator then requests more from the driver, until the driver has none
    left; then it gives back everything that is cached, and that waits for the device.

How it decides
    The memory reserved at the peak, less the most that blocks ever had of it and a twentieth of that, where
    this is a tenth of the reserved memory and at least 20 MiB, and segments are not expandable already. (In
    programs whose sizes never change, up to 7 % was measured.) It is only a bound where the allocator's
    counters are missing or were reset.

What to do
    ``PYTORCH_ALLOC_CONF=expandable_segments:True``: segments grow by pages, and holes are given back. Pad
    lengths to a few sizes.

Source
    PyTorch CUDA semantics, "Optimizing memory usage with PYTORCH_ALLOC_CONF".
"""

from kinetoscope.analysis.memory.peak import DeviceHistory, split
from kinetoscope.findings.rule import *

IN_ANY_CASE = 0.05  # of what blocks have; 0.03 was measured, where segments are expandable
MUCH = 0.1  # of what is reserved
AT_A_TIME = 20 << 20  # bytes of a segment for blocks of 1 to 10 MiB


def find(view: RankView) -> Findings:
    for one in view.memory:
        used, reserved = _used(one.history), one.history.reserved
        freed = int(reserved - (1 + IN_ANY_CASE) * used)
        is_expandable = one.history.snapshot.settings.get("expandable_segments")
        if is_expandable or freed < max(AT_A_TIME, MUCH * reserved):
            continue
        for found in memory.finding(
            view,
            one,
            freed,
            title=f"{numbers.size(reserved)} are reserved where blocks {_had(one.history)} "
            f"{numbers.size(used)}: the rest is free, in pieces that did not fit",
            advice="Let segments grow and shrink by pages; pad lengths that change to a few sizes.",
            basis="what is reserved, less the most that blocks had and a twentieth of it",
            snippet="PYTORCH_ALLOC_CONF=expandable_segments:True",
        ):
            yield replace(found, saving_bytes_at_most=not _is_known(one.history))


def _used(history: DeviceHistory) -> int:
    """Bytes that blocks had at most: at the peak, or earlier by the history or the allocator's account."""
    rounding = dict(split(history).select("part", "bytes").iter_rows())["rounding"]
    now = history.requested + rounding
    if history.failed_bytes:
        return now
    counted = history.counters.peak_allocated_bytes if history.counters else 0
    return max(now, history.most_requested, counted)


def _had(history: DeviceHistory) -> str:
    if history.failed_bytes:
        return "had"
    return "never had more than" if _is_known(history) else "are not known to have had more than"


def _is_known(history: DeviceHistory) -> bool:
    counters = history.counters
    is_whole = counters is not None and counters.peak_requested_bytes >= history.most_requested
    return bool(history.failed_bytes) or is_whole
