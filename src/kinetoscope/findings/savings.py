"""What a change would save of a step, and how serious that makes it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.idle import timeline
from kinetoscope.findings.model import SEVERITIES, Saving, Severity
from kinetoscope.findings.scene import Scene

# Severity is the share of the step that the advice would save. Above a tenth it is the first thing to do;
# below three hundredths it disappears in the noise from run to run; below half a hundredth nobody should read
# about it.
HIGH, MEDIUM, LOW = 0.10, 0.03, 0.005

# A step that takes hardly longer than its device work waits for nothing else.
DEVICE_BOUND = 1.1

SHOWN_GROUPS = 4  # findings of one rule on one rank: kernels beyond the worst few are noise


def severity(saving: Saving, at_least: Severity | None = None, at_most: Severity = "high") -> Severity | None:
    """How serious a saving is, by its share of the step; None: not worth a line.

    Device time that is freed off the critical path shortens nothing today, but is what counts once the host
    keeps up: it is low from ``MEDIUM`` of the busy time on, and information from ``LOW`` on.
    """
    level: Severity | None
    if saving.share >= LOW:
        level = "high" if saving.share >= HIGH else "medium" if saving.share >= MEDIUM else "low"
    else:
        level = "low" if saving.freed_share >= MEDIUM else "info" if saving.freed_share >= LOW else at_least
    if level is None:
        return None
    place, most, least = map(SEVERITIES.index, (level, at_most, at_least or "info"))
    return SEVERITIES[max(most, min(place, least))]


def nothing(basis: str) -> Saving:
    return Saving(0.0, basis, False, 0.0)


OF_THE_PROFILER = nothing("the profiler's own cost; a run without it does not pay this")


def device(scene: Scene, events: pl.DataFrame, basis: str, saved: str | pl.Expr = "saved_ns") -> Saving:
    """What is saved if device events (``id``) are shortened, each by ``saved`` nanoseconds."""
    shorter = events.select("id", saved_ns=saved)
    freed = scene.us_of(shorter, "saved_ns")
    if freed < LOW * scene.step_us:  # no severity asks for more: the replay is spared
        return nothing(basis)
    us = min(freed, scene.us(timeline.sooner(scene.trace, shorter)))
    if scene.unprofiled_us is not None and scene.unprofiled_us < DEVICE_BOUND * scene.own_busy_us:
        us = freed  # without the profiler the host keeps up: the device sets the pace
    part = "all"
    if us < 0.95 * freed:
        part = f"{numbers.time(freed)} of device time per {scene.unit}, {numbers.time(us)}"
    basis = f"{basis}; {part} of it on the critical path"
    freed_share = freed / max(scene.busy_us, 1e-9)
    return Saving(us, basis, us >= 0.25 * freed, min(us / scene.own_step_us, 1.0), freed_share)


def host(scene: Scene, earlier: pl.DataFrame, basis: str) -> Saving:
    """What is saved if host work is shortened: ``at`` (ns) and ``saved_ns``. Host time is as profiled; where
    the time of a step without the profiler is known, it is scaled to that."""
    return idle(scene, scene.us(timeline.sooner_launched(scene.trace, earlier)), basis)


def idle(scene: Scene, profiled_us: float, basis: str) -> Saving:
    """What is saved if ``profiled_us`` per step in which the device idles, the host being behind, go away."""
    us = min(profiled_us, scene.step_us)
    real = scene.unprofiled_us
    if real is not None and real < scene.step_us:
        # The profiler slows the host, not the device: all of the difference was idle time.
        us *= max(real - scene.own_busy_us, 0.0) / max(scene.step_us - scene.busy_us, 1e-9)
        us = min(us, real)
        basis += "; scaled to the step's time without the profiler"
    return Saving(us, basis, True, us / scene.own_step_us)


def both(scene: Scene, freed: Saving, waited: Saving) -> Saving:
    """A saving of device time and one of idle time, together; a step cannot lose more than all of it."""
    return Saving(
        min(freed.us + waited.us, scene.own_step_us),
        f"{freed.basis}; and {waited.basis} ({numbers.time(waited.us)})",
        True,
        min(freed.share + waited.share, 1.0),
        freed.freed_share,
    )


def heaviest(
    scene: Scene, events: pl.DataFrame, *by: str, basis: str
) -> Iterator[tuple[pl.DataFrame, Saving]]:
    """The groups of device events that would save most (column ``saved_ns``), ``SHOWN_GROUPS`` at most, and
    what each saves; one kernel of many, beside the critical path, is left out."""
    top = events.group_by(*by, maintain_order=True).agg(pl.col("saved_ns").sum().alias("together_ns"))
    top = top.sort("together_ns", descending=True, maintain_order=True).head(SHOWN_GROUPS)
    kept = events.join(top, on=list(by), maintain_order="left")
    kept = kept.sort("together_ns", descending=True, maintain_order=True)
    for group in kept.partition_by(*by, maintain_order=True) if len(kept) else ():
        saving = device(scene, group, basis)
        if severity(saving) not in (None, "info"):
            yield group, saving
