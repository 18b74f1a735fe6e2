"""A few steps take much longer than the others.

What it finds
    Phases between steps that take a large part of the run, such as an evaluation. And steps of more than
    twice the median among those that were timed without the profiler: collections of garbage requested every
    n steps, a loader that starts its workers anew every epoch, evaluation, logging, checkpoints.

Why it is slow
    The recorded steps are usual ones, so that no kernel or gap in them shows it; in the program's whole
    time it counts as much as anything that happens in every step.

How it decides
    At most a third of the steps, where they add at least a twentieth of the median to the mean; where the
    workers of a loader make steps come in rounds, whole rounds of 1.5 times the median are long. The cause is
    what the host spent most of the additional time in, as far as that is known: waiting for its data loader,
    calls that wait for the device, Python's garbage collector. Else, and where that function waits for a
    loader of its own, samples of the thread say which function it is: one that is seen in a row for about as
    long as a long step takes more, as often as those come. Its time, spread over all steps, is promised; of
    one that usual steps run as well nothing is, unless it writes files. Steps in which a library plans for
    new sizes are left to ``new-shapes``.

    Where no function is it, the longest of what the samples show to be repeated, and to be no part of a usual
    step, is named where it takes half to twice of the additional time; nothing is promised of waits for the
    device. On a machine with more to run than it has cores, nothing is said without a cause.

    A phase between steps is a finding from a fifth of the run after its setup on, where one line takes most
    of it; what of it can go is not known. But where half of it or more makes tensors of numbers in nested
    loops, that time is promised if all can be computed at once; and where an evaluation was recorded in which
    the device is idle for half of the time or more, such a part of the longest such phase, if no batch needs
    another's answer. What comes after every so many steps is a finding from a tenth of the time on, and half
    of it would save half; long steps that come more than twice as often are something else. Where a whole
    round was recorded with it, nothing is said.

What to do
    Collections: leave ``gc.collect()`` and ``torch.cuda.empty_cache()`` out of the loop, or freeze what
    lives for ever (``gc.freeze()``). Loaders: ``persistent_workers=True``, or one loader over all epochs.
    Others: less often, or in another thread. Evaluations: on fewer batches, without gradients, and by what
    makes the steps fast (autocast, a compiled model), which an evaluation does not have by itself.

Source
    PyTorch performance tuning guide; DataLoader's documentation of ``persistent_workers``.
"""

import re

from kinetoscope.analysis.health.verdict import LARGE_PHASE
from kinetoscope.analysis.origins.item_by_item import item_by_item
from kinetoscope.analysis.passes.long_steps import HALF, TWICE, LongSteps
from kinetoscope.analysis.passes.thread_lines import LOADING
from kinetoscope.analysis.passes.unprofiled import StepRound, Unprofiled
from kinetoscope.analysis.passes.whole_run import RunPhase
from kinetoscope.analysis.time.busy import steps_of
from kinetoscope.analysis.time.phases import EVALUATE, phases_of
from kinetoscope.findings.loaders import with_workers
from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.new_shapes import explains_long_steps
from kinetoscope.findings.rules.no_tensor_cores import SIXTEEN_BITS

A_TENTH = 0.1  # of the time: what comes after every so many steps and takes less is not worth a line

CAUSES = {
    "garbage-collection": (
        "Python's garbage collector",
        "Leave gc.collect() and torch.cuda.empty_cache() out of the loop; if collections come by themselves, "
        "freeze what lives for ever once set-up is done.",
        "gc.collect(); gc.freeze()  # once, before the loop",
    ),
    "data-loading": (
        "waiting for the data loader",
        "The loader starts its workers or fills its queue anew, as at the beginning of an epoch: keep its "
        "workers, or go through all epochs with one loader.",
        None,
    ),
    "synchronization": (
        "calls that wait for the device",
        "Read results, log and save less often, or copy them without waiting and read them later.",
        "loss.detach().to('cpu', non_blocking=True)",
    ),
    "saving": (
        "writing files",
        "Write one file, less often, or in another thread, from a copy of what is written.",
        "Thread(target=torch.save, args=(state, path)).start()  # state: a copy on the host",
    ),
}
SAVES = r"(?i)save|saving|checkpoint|dump"
LESS_OFTEN = "or in another thread, from a copy of what it reads."
NO_WORKERS = (
    "The loader has no workers: the step waits whenever a batch takes long to make, and for the order of an "
    "epoch at its beginning. Let workers make batches ahead of time."
)
UNKNOWN = (
    "unknown, outside of loader, garbage collector and waiting for the device",
    "Look at what the program does every so many steps: logging, evaluation, checkpoints, emptying caches.",
    None,
)


def _seen(view: RankView, extra_us: float) -> tuple[RunPhase | None, float]:
    """The phase of the whole run that rare steps probably are, and its time for each step of the run, µs."""
    watched = view.watched
    if watched is None or not watched.about_steps:
        return None, 0.0
    again = [phase for phase in watched.phases if phase.kind == "phase" and phase.times > 1]
    longest = max(again, key=lambda phase: phase.time_us, default=None)
    us = 0.0 if longest is None else longest.time_us / watched.about_steps
    return (longest, min(us, extra_us)) if HALF * extra_us <= us <= TWICE * extra_us else (None, 0.0)


def _function(view: RankView) -> LongSteps | None:
    """The function that long steps are about, where they are long for neither the loader of the steps, other
    than one of that function, as an evaluation has, nor the collector."""
    watched, own = view.watched, view.as_it_runs
    rare = None if own is None else own.timed.rare
    found = None if watched is None else watched.long_steps
    if rare is None or found is None:
        return None
    loads = rare.cause == "data-loading" and found.does == LOADING
    return found if loads or rare.cause in (None, "synchronization") else None


def _in_usual_steps(view: RankView, found: LongSteps) -> bool:
    """Whether ops of the function are in the step whose lines are known, and it is not known to save."""
    usual = view.lines is not None and found.function in view.lines.rows["function"]
    return usual and found.does != "saving"


def _in_function(view: RankView, found: LongSteps, timed: Unprofiled) -> Finding:
    extra_us = timed.rare.extra_us if timed.rare else 0.0
    count, of = (found.count, found.of) if timed.round is None else (1, timed.round.steps)
    writes = found.does == "saving" or re.search(SAVES, found.function) is not None
    on_device = "" if view.on_cpu else "on the device, "
    called = f"what {found.called} calls" if found.called else found.title
    what, advice, snippet = (
        CAUSES["saving"] if writes else ("", f"Let {called} run less often, {on_device}{LESS_OFTEN}", None)
    )
    if found.does == LOADING:
        what = CAUSES["data-loading"][0]
        advice = f"Let {called} run less often, or let workers make its batches ahead of time."
        snippet = with_workers(view, "…")
    take = "takes" if count == 1 else "take"
    saving = savings.rare(
        view, min(found.step_us, extra_us), "its time by samples of the thread, spread over all steps"
    )
    return Finding(
        title=f"{count} of {of} steps {take} {numbers.time(found.more_us)} more than the others "
        f"({numbers.time(timed.step.median)}), in {found.title}{f': {what}' if what else ''}",
        saving=replace(saving, most_us=extra_us),
        evidence=evidence.of_steps(
            view,
            f"timed without the profiler: {numbers.time(extra_us)} more per step at the mean; "
            f"{numbers.count(found.times, 'time')} in the samples",
        ),
        advice=advice,
        at_least="info",
        snippet=snippet,
        source=found.at,
    )


PAIRS = "overlaps = overlap(boxes[:, None], boxes[None]).tolist()  # of all pairs at once"
# What a library does with results, by its file, and the argument that makes it unnecessary.
OF_LIBRARIES = {
    "transformers/trainer_pt_utils.py": (
        "Trainer(…, preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))"
    ),
}


def _between_steps(view: RankView) -> Findings:
    """Phases of the run that are no part of a step."""
    watched = view.watched
    phases = [] if watched is None else watched.phases
    steps_us = sum(
        phase.time_us for phase in phases if phase.kind in ("steps", "other-steps", "phase", "other")
    )
    about = 0 if watched is None else watched.about_steps or 0
    of_round, regular = None, _round(view)
    if regular is not None and about:
        of_round = _of_round(phases, regular.between_us / regular.steps * about)
    known = [phase for phase in phases if phase.kind == "phase" and phase.mostly_in is not None]
    large = [phase for phase in known if phase.time_us >= LARGE_PHASE * steps_us]
    longest = max(large, key=lambda phase: phase.time_us, default=None)
    for phase in large if about else []:
        each_us = phase.time_us / about
        takes = f"{phase.title} takes {numbers.percent(phase.time_us / steps_us)} of the run after its setup"
        if regular is not None and phase is of_round:  # samples in what steps call, too, are taken for theirs
            each_us, takes = regular.between_us / regular.steps, _takes(regular, phase.title)
        most = Saving(each_us, "", False, 0.0)
        snippet = next(
            (call for file, call in OF_LIBRARIES.items() if f"({file}:" in str(phase.mostly_in)), None
        )
        regular = None if phase is of_round else regular
        saving = savings.not_predicted(most, "no step that is replayed has it")
        advice = (
            "Do it less often, or on fewer batches, and score all in one go."
            if view.on_cpu
            else "Make that line unnecessary: reduce results on the device before they are copied or kept, "
            "and score all in one go; or do it less often."
        )
        if phase is longest and (batches := _larger_batches(view, each_us)):
            saving, advice = batches
        lines = item_by_item(view.run, view.rank, phase)
        if (us := 1e6 * sum(lines.values())) >= phase.time_us / 2:
            basis = "its lines that make tensors of numbers in loops, by samples of the thread"
            saving = replace(savings.rare(view, us / about, basis), most_us=each_us)
            saving = savings.if_so(saving, "no item needs what was computed of another")
            snippet = PAIRS
            advice = (
                "Compute it for all items at once, on the device, and look at the answers in lists: on the "
                f"host, {' and '.join(lines)} {'compute' if len(lines) > 1 else 'computes'} it one by one."
            )
        yield Finding(
            subject=phase.name,
            title=f"{takes}, {numbers.time(each_us)} for each step, and is part of none: most of it passes "
            f"in {phase.mostly_in}",
            saving=saving,
            at_least="high",
            evidence=evidence.of_steps(
                view, f"by samples of the whole run: {numbers.time(phase.time_us)}, and {about:,} steps"
            ),
            advice=advice,
            snippet=snippet,
        )
    if regular is not None:
        yield _every_so_often(view, regular, of_round)


def _takes(found: StepRound, what: str) -> str:
    return (
        f"After every {found.steps} steps {what} takes {numbers.time(found.between_us)}: "
        f"{numbers.percent(found.between_us / found.round_us)} of the time"
    )


def _larger_batches(view: RankView, each_us: float) -> tuple[Saving, str] | None:
    """The saving of larger batches, of the time that evaluations take for each step, and the advice; None
    where none was recorded, or the device is busy in most of it."""
    steps = steps_of(view.trace).join(phases_of(view.trace), on=["rank", "step"])
    steps = steps.filter(pl.col("phase").str.starts_with(EVALUATE))
    idle = 1 - int(steps["busy_ns"].sum()) / int(steps["duration_ns"].sum()) if len(steps) else 0.0
    if idle < HALF:
        return None
    basis = "the device's idle time in a recorded evaluation, as much of all of them"
    saving = replace(savings.rare(view, idle * each_us, basis), most_us=each_us)
    return savings.if_so(saving, "no batch needs another's answer"), (
        f"The device is idle {numbers.percent(idle)} of a recorded evaluation: evaluate larger batches, and "
        "read their results once, at the end."
    )


def _round(view: RankView) -> StepRound | None:
    """The work after every so many steps, where it takes a tenth of the time and is no long step: those come
    more than twice as often."""
    timed = None if view.as_it_runs is None else view.as_it_runs.timed
    if timed is None or timed.round is None:
        return None
    if timed.rare is not None and timed.rare.count <= TWICE * timed.round.seen:
        return None
    if _is_recorded(view, timed.round):
        return None
    return timed.round if timed.round.between_us >= A_TENTH * timed.round.round_us else None


def _is_recorded(view: RankView, found: StepRound) -> bool:
    """Whether a whole round was recorded, and what ends it is work of a step: other rules see that, as the
    second update of an algorithm that updates one of its nets every other time."""
    steps_us = view.trace.steps["duration_ns"] / 1000
    if len(steps_us) < max(2, found.steps):
        return False
    longest, shortest = float(steps_us.sort()[-1]), float(steps_us.sort()[0])
    return longest - shortest >= HALF * found.between_us


def _of_round(phases: Iterable[RunPhase], between_us: float) -> RunPhase | None:
    """The phase of the run that takes about as long as all that comes in between its steps."""
    similar = [
        phase
        for phase in phases
        if phase.kind == "phase" and HALF * between_us <= phase.time_us <= TWICE * between_us
    ]
    return max(similar, key=lambda phase: phase.time_us, default=None)


def _every_so_often(view: RankView, found: StepRound, phase: RunPhase | None) -> Finding:
    each_us = found.between_us / found.steps
    what, where = ("something else", "") if phase is None else (phase.title, ", and is part of none")
    half = savings.rare(view, each_us / 2, "half of the time that it takes, spread over all steps")
    saving = savings.if_so(replace(half, most_us=each_us), "half of it is enough")
    ways = ["without gradients"]
    ways += ["under the autocast of the steps"] if matching(view.work, "name", SIXTEEN_BITS).any() else []
    ways += ["with their compiled model"] if compiles(view) else []
    advice = f"Do it less often, or on fewer batches. If it evaluates the model: {', '.join(ways)}."
    if phase is not None and re.search(SAVES, phase.name):
        advice = CAUSES["saving"][1]
    elif batches := _larger_batches(view, each_us):
        saving, advice = batches
    return Finding(
        subject=what,
        title=f"{_takes(found, what)}, {numbers.time(each_us)} for each step{where}",
        saving=saving,
        evidence=evidence.of_steps(
            view,
            f"timed without the profiler, {numbers.count(found.seen, 'time')}: {found.steps} steps with "
            f"it take {numbers.time(found.round_us)}",
        ),
        advice=f"{advice} To see what it does, give it a name, and record that: kinetoscope run --range.",
        snippet='with record_function("between"):  # kinetoscope run --range between -- …\n    …',
        source=None if phase is None else phase.where,
    )


def find(view: RankView) -> Findings:
    yield from _between_steps(view)
    own = view.as_it_runs
    if own is None or own.timed.rare is None:
        return
    rare = own.timed.rare
    steps = "steps" if rare.size == 1 else f"rounds of {rare.size} steps (a batch from each worker)"
    cause, advice, snippet = CAUSES.get(rare.cause or "", UNKNOWN)
    workers = view.record.steps.loader_workers if view.record else None
    if rare.cause == "data-loading":
        advice = NO_WORKERS if workers == 0 else advice
        snippet = with_workers(view, workers or "…")
    busy = view.run.manifest is not None and view.run.manifest.environment.busy
    function = _function(view)
    is_usual = function is not None and _in_usual_steps(view, function)
    if function is not None and function.is_line and _round(view) is not None:
        return  # it is what comes in between rounds of steps, such as a rollout
    by_chance = function is not None and busy and function.is_line and not function.does
    if function is not None and not is_usual and not by_chance:
        yield _in_function(view, function, own.timed)
        return
    if explains_long_steps(view):
        return
    seen, seen_us = (None, 0.0) if rare.cause or _round(view) is not None else _seen(view, rare.extra_us)
    if busy and rare.cause is None and seen is None:
        return
    if function is not None and is_usual and rare.cause is None:
        cause = f"in {function.title}, which usual steps run as well; why it takes longer is not known"
        advice = (
            "Look at what is different about its input, and at what else the machine runs meanwhile. "
            "A longer recording may have such a step: kinetoscope run --steps 50."
        )
    if seen is not None:
        cause = f"probably {seen.title}"
        advice = (
            f"The samples of the whole run show {seen.title} {seen.times} times or more, "
            f"{numbers.percent(seen.share)} of the run: do it less often, or in another thread."
        )
    extra = savings.rare(view, rare.extra_us, "")
    basis = "what these spent in it beyond the others, spread over all steps"
    if seen is not None:
        basis = "its time in the whole run, for each of the run's steps; at most what rare steps add"
        saving = replace(savings.rare(view, seen_us, basis), most_us=rare.extra_us)
    elif rare.cause is None:
        saving = savings.not_predicted(extra, "the cause is not known")
    elif rare.cause == "synchronization":
        saving = savings.not_predicted(extra, "what is waited for is work of the device, in no recorded step")
    else:
        us = min(rare.cause_us, rare.extra_us)
        if rare.cause == "data-loading":
            us = (us + rare.extra_us) / 2
            starting = "making a batch ahead" if workers == 0 else "starting workers"
            basis += f"; {starting} is not measured: the middle between that and all that they add"
        saving = replace(savings.rare(view, us, basis), most_us=rare.extra_us)
    per, take = "" if rare.size == 1 else " per step", "takes" if rare.count == 1 else "take"
    yield Finding(
        title=f"{rare.count} of {rare.of} {steps} {take} up to {numbers.time(rare.longest_us)}{per}, the "
        f"others {numbers.time(own.step_us)}: {cause}",
        saving=saving,
        evidence=evidence.of_steps(
            view, f"timed without the profiler: {numbers.time(rare.extra_us)} more per step at the mean"
        ),
        advice=advice,
        at_least="info",
        snippet=snippet,
    )
