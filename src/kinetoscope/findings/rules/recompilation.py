"""A function was compiled again.

What it finds
    Recompilations in the compile log, with the guard that failed: another shape, dtype, stride, a Python
    number or object that changed.

Why it is slow
    Each costs seconds, while the device waits; and every call walks the guards of all versions.

How it decides
    The recompilations of the compile log, one finding for each function. Where compiling happens inside the
    recorded steps, that time is the saving; where it happened before, none is claimed.

What to do
    For sizes, ``torch._dynamo.mark_dynamic(x, 0)`` or ``torch.compile(dynamic=True)``; for values,
    tensors instead of Python numbers; a few padded shapes instead of many.

Source
    torch.compile programming model, "Recompilation"; ``kinetoscope graphs``.
"""

from kinetoscope.analysis.compiled.regions import compiling
from kinetoscope.compilation.model import Recompilation
from kinetoscope.findings.rule import *

SIZES = ("size", "range", "shape-relation", "marked-late")  # kinds of guards that mark_dynamic removes


def find(view: RankView) -> Findings:
    if (compilation := view.compilation) is None:
        return
    inside = intervals.total(compiling(view.trace, *view.bounds))
    total = sum(row.cost_s * row.count for row in compilation.recompilations)
    for place, rows in by_function(compilation.recompilations).items():
        times, cost = sum(row.count for row in rows), sum(row.cost_s * row.count for row in rows)
        # Compiling inside the window belongs to the recompilations by their share of all; the first
        # compilation may be in it as well, so no more than they cost counts.
        us = min(inside / 1000 * cost / max(total, 1e-9), cost * 1e6) / view.steps
        share = us / view.step_us if len(view.trace.host_events) else 0.0
        basis = (
            "compiling inside the recorded steps"
            if us
            else "none in the recorded steps: compiling happened before them"
        )
        last = rows[-1]
        guard = last.reasons[0].guard if last.reasons else "an unknown guard"
        level: Severity = "high" if share >= HIGH else "medium" if times > 1 else "low"
        yield Finding(
            subject=place,
            title=f"{last.function or 'A function'} was recompiled {numbers.count(times, 'time')}, "
            f"{cost:.1f} s together: {guard}",
            saving=savings.once(view, us, basis),
            at_least=level,
            at_most=level,
            evidence=[
                evidence.of(
                    view,
                    f"{row.compile_id}: {row.reasons[0].guard if row.reasons else guard}",
                    view.compiler_events,
                )
                for row in rows[:6]
            ],
            advice=last.advice or "Make what changes dynamic, or a tensor.",
            snippet=snippet(last),
            source=evidence.at_line(last.file, last.line),
        )


def snippet(row: Recompilation) -> str | None:
    """The call that makes a size dynamic, where it is a size that changed."""
    reason = row.reasons[0] if row.reasons else None
    if reason is None or reason.kind not in SIZES:
        return None
    return f"torch._dynamo.mark_dynamic({reason.subject or 'x'}, {reason.dimension or 0})"


def by_function(recompilations: Iterable[Recompilation]) -> dict[str, list[Recompilation]]:
    """A compile log's recompilations by their function and its place."""
    functions: dict[str, list[Recompilation]] = {}
    for row in recompilations:
        functions.setdefault(f"{row.function} {evidence.at_line(row.file, row.line)}", []).append(row)
    return functions
