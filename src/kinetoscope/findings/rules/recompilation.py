"""A function was compiled again.

What it finds
    Recompilations in the compile log, with the guard that failed: another shape, dtype, stride, a Python number or
    object that changed.

Why it is slow
    Each costs seconds, while the device waits; and every call walks the guards of all versions.

How it decides
    The recompilations of the compile log, one finding for each function. Where compiling happens inside the recorded
    steps, that time is the saving; where it happened before, none is claimed.

What to do
    What the guard says: ``torch._dynamo.mark_dynamic(x, 0)`` or ``torch.compile(dynamic=True)`` for sizes, tensors
    instead of Python numbers for values, a few padded shapes instead of many.

Source
    torch.compile programming model, "Recompilation"; ``kinetoscope graphs``.
"""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope.analysis.compiled.compiling import compiling
from kinetoscope.analysis.run import Run
from kinetoscope.analysis.time import intervals
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.scene import at_line, scenes


def find(run: Run) -> Iterable[Finding]:
    compilation = run.compilation
    if compilation is None:
        return
    places: dict[str, list[int]] = {}
    for number, row in enumerate(compilation.recompilations):
        places.setdefault(f"{row.function} {at_line(row.file, row.line)}", []).append(number)
    for scene in scenes(run)[:1]:  # every rank compiles the same; the first speaks for all
        inside = intervals.total(compiling(scene.trace, *scene.bounds))
        total = sum(row.cost_s * row.count for row in compilation.recompilations)
        for place, numbers in places.items():
            rows = [compilation.recompilations[n] for n in numbers]
            times, cost = sum(row.count for row in rows), sum(row.cost_s * row.count for row in rows)
            # Compiling inside the window belongs to the recompilations by their share of all; the first compilation
            # may be in it as well, so no more than they cost counts.
            us = min(inside / 1000 * cost / max(total, 1e-9), cost * 1e6) / scene.steps
            last = rows[-1]
            guard = last.reasons[0].guard if last.reasons else "an unknown guard"
            share = us / scene.step_us if len(scene.trace.host_events) else 0.0
            yield Finding(
                subject=place,
                title=f"{last.function or 'A function'} was recompiled {times} times, {cost:.1f} s together: {guard}",
                severity="high" if share >= 0.1 else "medium" if times > 1 else "low",
                saving=Saving(
                    us,
                    "compiling inside the recorded steps"
                    if us
                    else "none in the recorded steps: compiling happened before them",
                    us > 0,
                    share,
                ),
                evidence=[
                    scene.evidence(
                        f"{row.compile_id}: {row.reasons[0].guard if row.reasons else guard}",
                        scene.compiler_events,
                    )
                    for row in rows[:6]
                ],
                advice=last.advice or "Make what changes dynamic, or a tensor.",
                snippet="torch._dynamo.mark_dynamic(x, 0)",
                source=at_line(last.file, last.line),
                rank=scene.rank,
            )
