"""Python's garbage collector stops the step.

What it finds
    Collections of Python's cyclic garbage collector inside the steps (recorded with
    ``_ExperimentalConfig(record_python_gc_info=True)`` and stacks).

Why it is slow
    A full collection visits every container object that is alive: a model, its dataset index and a compiler's
    caches are millions of them, tens of milliseconds at a time, in which nothing is launched.

How it decides
    The time in ``Python GC`` events inside the steps that the device spent idle (all of it, without device
    work) is at least half a per cent of the step.

What to do
    ``gc.collect(); gc.freeze()`` once set-up is done; raise the threshold (``gc.set_threshold(100_000, 20,
    100)``); or ``gc.disable()`` and collect every few hundred steps, on all ranks at the same step.

Source
    torchtitan's ``gc_freq``; CPython's gc module.
"""

from kinetoscope.analysis.events.torch_names import GARBAGE_COLLECTION
from kinetoscope.findings.rule import *


def find(view: RankView) -> Findings:
    pauses = view.inside(view.host(GARBAGE_COLLECTION))
    if pauses.is_empty():
        return
    stopped = view.idle_during(pauses) if len(view.work) else intervals.union(spans(pauses))
    us = view.us(intervals.total(stopped))
    longest = pauses.sort("duration_ns", descending=True)
    yield Finding(
        title=f"Python's garbage collector stops the {view.unit} "
        f"({view.per_step(len(pauses)):.0f} collections)",
        affected_us=us,
        saving=savings.host(view, pauses, "the collections' time"),
        evidence=[evidence.of(view, f"{len(pauses)} collections", longest)],
        advice="Freeze what lives for ever after set-up and collect at moments of your choosing.",
        snippet="gc.collect(); gc.freeze(); gc.disable()  # then gc.collect() every few hundred steps",
        source=evidence.source(view, pauses["parent"]),
    )
