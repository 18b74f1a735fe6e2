"""Memory is taken from and given back to the driver in the steady state.

What it finds
    ``cudaMalloc``, ``cudaFree`` and their kin in every step: ``torch.cuda.empty_cache()`` in the loop, shapes
    that never repeat, memory so tight that the allocator must flush and retry, or a library with an allocator
    of its own.

Why it is slow
    Each call takes up to a millisecond, and ``cudaFree`` waits for the device to finish all it has.

How it decides
    Such calls in at least two steps, in half of the steps or more (without steps: ten in the later half of
    its launches, and then it is at most medium). The saving is the time that the device idles during the
    calls and as long again behind them. The allocator's history (`run --memory`) shows what the program gave
    back itself, and where.

What to do
    Remove ``empty_cache()``; ``PYTORCH_ALLOC_CONF=expandable_segments:True`` against fragmentation; pad to a
    few shapes; leave some memory free.

Source
    PyTorch CUDA semantics, "Memory management".
"""

from kinetoscope.analysis.events.enclosing import outermost
from kinetoscope.analysis.events.torch_names import ALLOCATION
from kinetoscope.analysis.memory.growth import GivenBack, given_back
from kinetoscope.findings.rule import *

BEHIND_NS = 20_000  # what the next launch takes to arrive
WITHOUT_STEPS = 10  # calls: a warm-up makes a handful


def find(view: RankView) -> Findings:
    host = view.trace.host_events
    # Those that the driver makes inside a call of the runtime are the same ones.
    calls = _in_steady_state(view, host.filter(outermost(host, matching(host, "name", ALLOCATION))))
    again = view.recurs(calls) if view.unit == "step" else len(calls) >= WITHOUT_STEPS
    if calls.is_empty() or not again:
        return
    # cudaFree has emptied the queue: the launches behind a call come late as well.
    behind = calls.with_columns(pl.col("duration_ns") * 2 + BEHIND_NS)
    idle = view.idle_during(behind)
    us = view.us(intervals.total(idle))
    change = no_wait(calls["id"]) | without_host(calls) | without_idle(view.trace, idle)
    emptied = [time for time in _given_back(view) if time.cause == "empty_cache"]
    line = next((time.line for time in emptied if time.line), None)
    longest = calls.sort("duration_ns", descending=True).head(8)
    yield Finding(
        title=f"{view.per_step(len(calls)):,.0f} driver allocations and frees per {view.unit} leave the "
        "device idle" + (", with empty_cache() in the loop" if emptied else ""),
        affected_us=us,
        saving=savings.of(view, change, "the calls, and the device's idle time during them"),
        at_most="high" if view.unit == "step" else "medium",
        evidence=[evidence.of(view, "the longest calls", longest)],
        advice="Let the caching allocator keep its memory: no empty_cache() in the loop, few distinct "
        "shapes.",
        snippet="PYTORCH_ALLOC_CONF=expandable_segments:True",
        source=line or evidence.source(view, calls["parent"]),
    )


def _given_back(view: RankView) -> list[GivenBack]:
    """Memory that the steps gave back to the driver, by the allocator's history."""
    times = [
        time
        for one in view.memory_in_steps
        for time in given_back(one.history, one.held.boundaries_ns if one.held else ())
    ]
    return [time for time in times if time.step and time.again_bytes]


def _in_steady_state(view: RankView, calls: pl.DataFrame) -> pl.DataFrame:
    """The calls of the steps; without steps, those of the later half of the launches."""
    if view.unit == "step":
        return intervals.beginning_in(calls, spans(view.trace.steps))
    half = view.trace.host_events["start_ns"][view.trace.device_events["launch"].drop_nulls()].median()
    return calls.filter(pl.col("start_ns") > half) if half is not None else calls.clear()
