"""Allocations succeed only once cached memory was given back to the driver.

What it finds
    Memory so full, or so cut up, that the allocator gives all of its free segments back to the driver to have
    room for one more allocation.

Why it is slow
    It waits for the device to finish all it has, and the segments that are given back are requested again in
    the next step. What comes next is an error.

How it decides
    By the allocator's history (`run --memory`): segments given back, and directly afterwards one taken, all
    by the same allocation, in the recorded steps; where the allocator counts its retries, it counted some.

What to do
    ``PYTORCH_ALLOC_CONF=expandable_segments:True``; pad lengths that change to a few sizes; a smaller batch,
    or what the other findings on memory would free.

Source
    PyTorch CUDA semantics, "Optimizing memory usage with PYTORCH_ALLOC_CONF".
"""

from kinetoscope.analysis.memory.growth import given_back
from kinetoscope.findings.rule import *


def find(view: RankView) -> Findings:
    start, end = view.bounds
    for one in view.memory_in_steps:
        times = [
            time
            for time in given_back(one.history, one.held.boundaries_ns if one.held else ())
            if time.cause == "room" and time.step
        ]
        if not times:
            continue
        most = max(times, key=lambda time: time.bytes)
        steps = len({time.step for time in times})
        yield Finding(
            title=f"In {numbers.count(steps, 'recorded step')} there was room only once "
            f"{numbers.size(most.bytes)} of cached memory had been given back to the driver",
            saving=savings.nothing("the history of allocations; what the calls take is the driver's time"),
            evidence=[Evidence(f"for the allocation at {most.line or 'autograd'}", start / 1000, end / 1000)],
            advice="Let segments grow and shrink by pages; pad lengths that change to a few sizes.",
            at_least="high" if view.ran_out else "medium",
            snippet="PYTORCH_ALLOC_CONF=expandable_segments:True",
            source=most.line or None,
            subject=str(one.history.device),
        )
