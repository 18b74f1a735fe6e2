"""The device waits for the next batch.

What it finds
    Idle time while the training thread sits in the DataLoader's ``__next__``.

Why it is slow
    The batch is made when it is requested (``num_workers=0``), or the workers make batches more slowly than
    the device consumes them: then the step takes as long as they do, and nothing else that gets faster
    shortens it. Or a batch is ready, and the training thread takes long to unpack it.

How it decides
    Where the recording timed steps without the profiler, by how long they waited for the loader, summed over
    whole rounds of its workers. A batch that was ready still has to be taken over, which more workers do not
    shorten. W workers that make one batch per step need W steps for each: enough are as many as make that
    longer than the step without waiting. They share the cores with the program: on n cores a step takes at
    least the nth part of one batch and the rest of the step. Where all cores would not keep up, the middle
    between the saving of workers alone and all of the waiting is promised. Without workers, all of the
    loading goes that device work does not hide; of a loader that picks samples out of tensors all but the
    copying into the batch; without a device all but the nth part. Where no steps were timed, it is idle time
    of the cause ``data-loading``, or the time in ``__next__``.

What to do
    As many workers as suffice (``num_workers``), ``persistent_workers=True``, ``pin_memory``, which unpacks
    batches in a thread of its own; do the decoding once and store the result; move augmentation to the
    device; keep on the device what fits there.

Source
    PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
"""

import math

from kinetoscope.analysis.events.torch_names import DATA_LOADER
from kinetoscope.analysis.passes.as_it_runs import StepAsItRuns, data_differs
from kinetoscope.analysis.passes.loader import Loader
from kinetoscope.findings.loaders import GATHERS, picks, with_workers
from kinetoscope.findings.program_lines import of_loader
from kinetoscope.findings.rule import *

ENOUGH = 8  # workers to try where their number is not known
MOST_TIMES = 8  # so many times the workers are the most that is advised


def find(view: RankView) -> Findings:
    calls = view.inside(view.host(DATA_LOADER))
    own = view.as_it_runs
    if own is not None and own.loader is not None:
        yield from _of_workers(view, own, own.loader, calls)
    elif own is not None and own.timed.waiting is not None:
        yield from _measured(view, own, own.timed.waiting.data_us, calls)
    elif len(calls):
        yield _recorded(view, calls)


def _of_workers(view: RankView, own: StepAsItRuns, loader: Loader, calls: pl.DataFrame) -> Findings:
    """The loader's workers are too slow for the step, or their batches take long to take over."""
    workers, source = numbers.count(loader.workers, "worker"), evidence.source(view, calls["id"])
    seen = calls if len(calls) else view.trace.steps
    if not loader.binds:
        share = _measured_share(view, calls, loader.handover_us)
        basis = "taking over batches that are ready, as measured without the profiler"
        saving = savings.host(view, calls, basis, share)
        if saving.us >= LOW * own.step_us:
            if view.kernels("Pageable").is_empty():
                saving = savings.not_predicted(saving, "who else would unpack the batch is not known")
            yield Finding(
                title=f"Taking over a batch that is ready takes {numbers.time(loader.handover_us)} per step "
                f"({loader.handover_us / own.step_us:.0%} of it)",
                saving=saving,
                evidence=[evidence.of(view, f"{len(calls)} calls of the loader's __next__", seen)],
                advice=_unpacked(view) + f" More workers than the {workers} bring nothing.",
                at_least="info",
                source=source,
            )
        return
    cores = _cores(view)
    least_us = _shortest_step_us(view, loader, cores)
    needed = math.ceil(loader.batch_us / max(loader.compute_us, loader.step_us / MOST_TIMES))
    enough = min(needed, cores) if cores else needed
    more = enough > loader.workers
    cheaper = "do less work per sample (decode once and store it, augment on the device)"
    advice = f"{workers} cannot keep up"
    basis = (
        f"a worker takes {numbers.time(loader.batch_us)} for a batch, so {workers} make one each "
        f"{numbers.time(loader.step_us)}; without waiting a step takes {numbers.time(loader.compute_us)}"
    )
    if not more:
        advice += f", and there are no cores for more: {cheaper}."
    elif enough < needed:
        advice += (
            f", nor would {enough}, as many as there are cores: {cheaper}. With {enough} workers alone a "
            f"step takes {numbers.time(least_us)}."
        )
        basis += "; the middle between that and what the cores can make is promised"
        least_us = (least_us + loader.compute_us) / 2
    else:
        advice += f": try {enough}, or {cheaper}."
    saving = savings.batches(view, faster_loader(least_us / loader.step_us), basis)
    if saving.us < LOW * own.step_us:
        return
    yield Finding(
        title=f"The step waits {numbers.time(loader.waiting_us)} for data "
        f"({loader.waiting_us / own.step_us:.0%} of it): its loader sets the pace",
        saving=saving,
        evidence=[evidence.of(view, _shown(own, loader.waiting_us), seen)],
        advice=advice + _pinned(view),
        snippet=with_workers(view, enough if more else loader.workers),
        source=source,
    )


def _shortest_step_us(view: RankView, loader: Loader, cores: int) -> float:
    """The shortest step that workers on these cores can feed, however many."""
    if cores and view.own_busy_us <= 0:  # the step computes on all of them
        return loader.compute_us + loader.waiting_us / cores
    if not cores or loader.workers >= cores:  # then only cheaper batches help
        return 0.0
    return (loader.batch_us + loader.compute_us) / cores


def _cores(view: RankView) -> int:
    """The cores of a rank's machine that are its own; 0: not known."""
    manifest = view.run.manifest
    if manifest is None:
        return 0
    here = view.record.host if view.record else ""
    ranks = sum(record.host == here for record in manifest.ranks)
    return max(1, manifest.environment.cpu_count // max(1, ranks)) if manifest.environment.cpu_count else 0


def _measured_share(view: RankView, calls: pl.DataFrame, us: float) -> float:
    """The part of the loader's recorded calls that makes ``us`` a step at the replay's pace, and no more: the
    recorded steps may have waited for more batches, or been shorter."""
    recorded = view.us_of(calls) * view.replay.pace
    share = min(1.0, us / recorded) if recorded > 0 else 1.0
    saved_us = view.would_save(without_host(calls, share))
    return share * us / saved_us if saved_us > us else share


def _measured(view: RankView, own: StepAsItRuns, data_us: float, calls: pl.DataFrame) -> Findings:
    """The time in the loader as measured in the program's own steps, without known workers."""
    workers = view.record.steps.loader_workers if view.record else None
    picking, picked = picks(view)
    basis = "time in the loader, measured in steps without the profiler: "
    cores = _cores(view)
    kept = 1.0
    if len(picking):
        kept = 1 - view.us_of(picked.filter(matching(picked, "name", GATHERS))) / view.us_of(picking)
        basis += "with one index a batch it is gone, but for the copying into the batch"
    else:
        basis += "with enough workers it is gone"
    if cores and own.busy_us is None and picking.is_empty():
        kept = 1 - 1 / cores
        basis += f", but for what they take of the {numbers.count(cores, 'core')} that the step computes on"
    if workers == 0 and len(calls):
        saving = savings.host(view, calls, basis, kept * _measured_share(view, calls, data_us))
    else:
        shown_us = max(0.0, min(data_us, own.step_us - (own.busy_us or 0.0)))
        if shown_us < data_us:
            basis += f"; {numbers.time(data_us - shown_us)} of it is hidden behind device work"
        saving = savings.unreplayed(view, kept * shown_us, basis)
    if saving.us < LOW * own.step_us:
        return
    enough = enough_workers(workers, own.step_us, data_us)
    enough = min(enough, cores) if cores else enough
    yield Finding(
        title=f"The step waits {numbers.time(data_us)} for data ({min(data_us / own.step_us, 1.0):.0%} of it)"
        + (_PICKS if len(picking) else ": the loader has no workers" if workers == 0 else ""),
        saving=saving,
        evidence=[evidence.of(view, _shown(own, data_us), calls if len(calls) else view.trace.steps)],
        advice=(_AT_ONCE if len(picking) else _advice(workers, enough))
        + (of_loader(view) if workers == 0 else "")
        + _pinned(view),
        snippet=_BATCHES if len(picking) else with_workers(view, max(enough, workers or 1)),
        source=evidence.source(view, calls["id"]),
    )


_PICKS = ": the loader picks samples one by one out of tensors"
_AT_ONCE = "Take each batch with one index: workers would pick one by one as well, and send it on."
_BATCHES = (
    "sampler = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)\n"
    "DataLoader(dataset, sampler=sampler, batch_size=None)"
)


def _recorded(view: RankView, calls: pl.DataFrame) -> Finding:
    """The waiting in a recording whose steps were not timed without the profiler."""
    if len(view.work):
        waiting, basis = "The device waits", "idle time while the host waits for a batch"
        idle = view.idle("data-loading")
        us, saving = view.us_of(idle, "idle_ns"), savings.idle(view, idle, basis)
    else:
        waiting, basis = "The step waits", "time in the loader"
        us, saving = view.us_of(calls), savings.host(view, calls, basis)
    alone = calls["name"].cast(pl.String).str.contains("SingleProcess").any()
    return Finding(
        title=f"{waiting} {us / 1000:.1f} ms per {view.unit} for data ({us / view.step_us:.0%} of it)"
        + (": the loader has no workers" if alone else ""),
        saving=saving,
        evidence=[evidence.of(view, f"{len(calls)} calls of the loader's __next__", calls)],
        advice="Let workers make batches ahead of time." if alone else TOO_SLOW,
        snippet=with_workers(view, ENOUGH),
        source=evidence.source(view, calls["id"]),
    )


TOO_SLOW = "The workers do not keep up: more of them, a larger prefetch_factor, or less work per sample."


def _shown(own: StepAsItRuns, data_us: float) -> str:
    shown = (
        f"measured without the profiler, {own.timed.step.n} steps: {numbers.time(data_us)} of "
        f"{numbers.time(own.step_us)} per step in the loader's __next__"
    )
    recorded = own.timed.recorded_data_us
    if recorded is not None and data_differs(own.timed):
        shown += f" ({numbers.time(recorded)} while recorded, which is not typical)"
    return shown


def enough_workers(workers: int | None, step_us: float, data_us: float) -> int:
    """How many workers keep up with a step that does not wait: a batch takes as long as its waiting."""
    return (
        ENOUGH
        if workers is None
        else max(1, math.ceil(data_us / max(step_us - data_us, step_us / MOST_TIMES)))
    )


def _advice(workers: int | None, enough: int) -> str:
    if workers is None:
        return TOO_SLOW
    return f"Let workers make batches ahead of time: {numbers.count(enough, 'worker')} should do."


def _unpacked(view: RankView) -> str:
    fewer = "give it fewer and larger tensors"
    if view.kernels("Pageable").is_empty():
        return f"Unpacking a batch is the training thread's own work: {fewer}."
    return f"Let a thread unpack and pin batches (pin_memory=True), or {fewer}."


def _pinned(view: RankView) -> str:
    return (
        ""
        if view.kernels("Pageable").is_empty()
        else " The batch is copied from pageable memory: pin_memory=True as well."
    )
