"""A function was compiled so often that Dynamo gave it up.

What it finds
    Functions at ``torch._dynamo.config.recompile_limit`` (8 by default).

Why it is slow
    From then on the function runs eagerly whenever no existing version fits: unfused, one launch an op. Nothing says so
    but one warning in the log.

How it decides
    The compile log says so, or shows eight compilations of one code object, after which there is no other. The saving is
    what fusing the eager elementwise chains of the recording would spare; without a recording none is claimed.

What to do
    Remove the cause of the recompilations (see ``recompilation``): dynamic sizes, tensors instead of numbers. Raising
    the limit only moves it.

Source
    torch.compile programming model, "Recompilation", section on the limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope.analysis.kernels.chains import elementwise_chains
from kinetoscope.analysis.run import Run
from kinetoscope.compilation.model import Recompilation
from kinetoscope.findings.model import Finding, Saving
from kinetoscope.findings.scene import Scene, at_line, scenes

LIMIT = 8  # torch's default


def find(run: Run) -> Iterable[Finding]:
    compilation = run.compilation
    if compilation is None:
        return
    functions: dict[str, list[Recompilation]] = {}
    for row in compilation.recompilations:
        functions.setdefault(f"{row.function} {at_line(row.file, row.line)}", []).append(row)
    for scene in scenes(run)[:1]:  # every rank compiles the same; the first speaks for all
        for place, rows in functions.items():
            compiled = 1 + sum(row.count for row in rows)
            if not any(row.limit_hit for row in rows) and compiled < LIMIT:
                continue
            last = rows[-1]
            yield Finding(
                subject=place,
                title=f"{last.function or 'A function'} was compiled {compiled} times: the limit is reached, what is new now runs eagerly",
                severity="high",
                saving=_saving(scene),
                evidence=[
                    scene.evidence(
                        f"{row.compile_id}: {row.reasons[0].guard if row.reasons else 'recompiled'}",
                        scene.trace.steps,
                    )
                    for row in rows[-3:]
                ],
                advice=last.advice or "Make what changes dynamic, or a tensor.",
                snippet="torch._dynamo.mark_dynamic(x, 0)",
                source=at_line(last.file, last.line),
                rank=scene.rank,
            )


def _saving(scene: Scene) -> Saving:
    if scene.work.is_empty():
        return Saving(0.0, "not known: no recording of what runs eagerly", False, 0.0)
    return scene.device_saving(
        elementwise_chains(scene.work, scene.work),
        "each eager elementwise chain in the time of its longest kernel",
    )
