"""The device waits for the next batch.

What it finds
    Idle time while the training thread sits in the DataLoader's ``__next__``.

Why it is slow
    The batch is made when it is requested (``num_workers=0``), or the workers make batches more slowly than
    the device consumes them.

How it decides
    Where the recording timed steps without the profiler: the median of their waiting for the loader, less the
    part that is hidden behind device work, since the step would still take the device that long. In a
    program without a device, workers and steps share the cores: on n of them the nth part of the
    waiting remains. Else: idle time of the cause ``data-loading``; in a recording without device work, the
    time in ``__next__`` itself.

What to do
    More workers (``num_workers``), ``persistent_workers=True``, ``prefetch_factor``, ``pin_memory=True``; do
    the decoding once and store the result; move augmentation to the device.

Source
    PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
"""

import math

from kinetoscope.analysis.events.torch_names import DATA_LOADER
from kinetoscope.analysis.passes.as_it_runs import StepAsItRuns
from kinetoscope.findings.rule import *

ENOUGH = 8  # workers to try where their number is not known
MOST_TIMES = 8  # so many times the workers are the most that is advised


def find(view: RankView) -> Findings:
    calls = view.inside(view.host(DATA_LOADER))
    own = view.as_it_runs
    if own is not None and own.timed.waiting is not None:
        yield from _measured(view, own, own.timed.waiting.data_us, calls)
        return
    if calls.is_empty():
        return
    if len(view.work):
        waiting, basis = "The device waits", "idle time while the host waits for a batch"
        idle = view.idle("data-loading")
        us, saving = view.us_of(idle, "idle_ns"), savings.idle(view, idle, basis)
    else:
        waiting, basis = "The step waits", "time in the loader"
        us, saving = view.us_of(calls), savings.host(view, calls, basis)
    alone = calls["name"].cast(pl.String).str.contains("SingleProcess").any()
    yield Finding(
        title=f"{waiting} {us / 1000:.1f} ms per {view.unit} for data ({us / view.step_us:.0%} of it)"
        + (": the loader has no workers" if alone else ""),
        saving=saving,
        evidence=[evidence.of(view, f"{len(calls)} calls of the loader's __next__", calls)],
        advice="Let workers make batches ahead of time."
        if alone
        else "The workers do not keep up: more of them, a larger prefetch_factor, or less work per sample.",
        snippet=_snippet(view, ENOUGH),
        source=evidence.source(view, calls["id"]),
    )


def _measured(view: RankView, own: StepAsItRuns, data_us: float, calls: pl.DataFrame) -> Findings:
    """The waiting for data as measured in the program's own steps."""
    step_us = own.step_us
    saved_us = max(0.0, min(data_us, step_us - (own.busy_us or 0.0)))
    basis = "waiting for the loader, measured in steps without the profiler: with enough workers it is gone"
    cores = view.run.manifest.environment.cpu_count if view.run.manifest else 0
    if cores and own.busy_us is None:
        saved_us *= 1 - 1 / cores
        basis += f", but for what they take of the {numbers.count(cores, 'core')} that the step computes on"
    elif saved_us < data_us:
        basis += f"; {numbers.time(data_us - saved_us)} of it is hidden behind device work"
    if saved_us < LOW * step_us:
        return
    workers = view.record.steps.loader_workers if view.record else None
    shown = (
        f"measured without the profiler, {own.timed.step.n} steps: {numbers.time(data_us)} of "
        f"{numbers.time(step_us)} per step in the loader's __next__"
    )
    recorded = own.timed.recorded_data_us
    if recorded is not None and own.data_differs:
        shown += f" ({numbers.time(recorded)} in the recorded steps, which is not the program's)"
    enough = enough_workers(workers, step_us, data_us)
    enough = min(enough, cores) if cores else enough
    yield Finding(
        title=f"The step waits {numbers.time(data_us)} for data ({min(data_us / step_us, 1.0):.0%} of it)"
        + (": the loader has no workers" if workers == 0 else ""),
        saving=savings.unreplayed(view, saved_us, basis),
        evidence=[evidence.of(view, shown, calls if len(calls) else view.trace.steps)],
        advice=_advice(workers, enough) + _pinned(view),
        snippet=_snippet(view, max(enough, workers or 1)),
        source=evidence.source(view, calls["id"]),
    )


def enough_workers(workers: int | None, step_us: float, data_us: float) -> int:
    """How many workers keep up with a step that does not wait.

    The present workers make one batch per step, so that their number grows as the step gets shorter. Without
    any, making a batch takes as long as the waiting for it.
    """
    rest_us = max(step_us - data_us, step_us / MOST_TIMES)
    if workers is None:
        return ENOUGH
    return max(workers + 1, math.ceil((workers * step_us if workers else data_us) / rest_us))


def _advice(workers: int | None, enough: int) -> str:
    if workers == 0:
        return f"Let workers make batches ahead of time: {numbers.count(enough, 'worker')} should do."
    if workers is None:
        return "The workers do not keep up: more of them, a larger prefetch_factor, or less work per sample."
    slow = f"{numbers.count(workers, 'worker')} cannot keep up"
    if enough <= workers:
        return (
            f"{slow}, and there are no cores for more: do less work per sample, or do it once and store it."
        )
    return f"{slow}: try {enough} if there are cores for them, or do less work per sample."


def _pinned(view: RankView) -> str:
    """More workers bring nothing where handing over a batch is what takes time."""
    if view.kernels("Pageable").is_empty():
        return ""
    return " The batch is copied from pageable memory: pin_memory=True as well."


def _snippet(view: RankView, workers: int) -> str:
    pinned = "pin_memory=True, " if len(view.work) else ""
    return f"DataLoader(dataset, num_workers={workers}, {pinned}persistent_workers=True, prefetch_factor=4)"
