"""What went wrong while compiling, on the terminal: limits, failures, graph breaks, recompilations."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document.compilation import Compilation, GraphBreak
from kinetoscope.render import names
from kinetoscope.render.table import aside, heading, rest
from kinetoscope.views.compiled import place

BREAKS = 6
RECOMPILATIONS = 6
FAILURES = 4


def limits(compilation: Compilation) -> Iterable[RenderableType]:
    for row in compilation.recompilations:
        if row.limit_hit:
            yield Text()
            yield Text(
                f"RECOMPILE LIMIT: {place(row.file, row.line, row.function)} runs eagerly from now on",
                style="bold red",
            )
            yield aside(row.advice)


def failures(compilation: Compilation) -> Iterable[RenderableType]:
    if not compilation.failures:
        return
    yield from heading("Failures")
    for row in compilation.failures[:FAILURES]:
        line = Text(f"{row.compile_id}  ")
        line.append(names.plain(row.type), style="bold red")
        line.append(f"  {names.plain(row.reason)}")
        yield line
        code = f"  {row.code}" if row.code else ""
        yield aside(f"{place(row.file, row.line, row.function)}{code}  → {row.effect}")
        yield from (aside(f"→ {hint}", "cyan") for hint in row.hints[:2])
    yield from rest(len(compilation.failures) - FAILURES, "failure")


def breaks(compilation: Compilation) -> Iterable[RenderableType]:
    if not compilation.graph_breaks:
        return
    yield from heading("Graph breaks", "by compile time lost")
    for row in compilation.graph_breaks[:BREAKS]:
        line = Text.assemble(
            (place(row.file, row.line, row.function), "bold"), f"  {names.plain(row.reason)}"
        )
        line.append(f"  ×{row.count}" if row.count > 1 else "", style="bold")
        line.append(f"  {row.cost_s:.2f} s retraced", style="dim")
        if row.idle_us is not None:
            line.append(f"  {numbers.time(row.idle_us)} idle", style="red")
        if row.crossings is not None:
            line.append(f"  {_crossed(row)}", style="red" if row.extra_launches else "dim")
        if row.skipped_frame:
            line.append("  the whole function runs eagerly", style="red")
        yield line
        if row.code:
            yield aside(row.code, "")
        yield aside(row.explanation)
        yield from (aside(f"→ {hint}", "cyan") for hint in row.hints[:1])
        if row.url:
            yield aside(row.url)
    yield from rest(len(compilation.graph_breaks) - BREAKS, "graph break")


def _crossed(row: GraphBreak) -> str:
    """How often it was crossed, and what that took: ``crossed 12 times, 24 extra launches (8 a step; …)``."""
    text = f"crossed {numbers.count(row.crossings or 0, 'time')}, "
    if row.eager_launches is None:
        return f"{text}extra launches not known"
    text += numbers.count(row.extra_launches or 0, "extra launch")
    step = row.extra_launches_per_step
    kinds = {
        "Python's": row.eager_launches,
        "CUDA graphs": row.graph_launches,
        "not fused": row.fusable_launches,
    }
    details = [f"{step:.3g} a step"] if step else []
    details += [f"{number} {what}" for what, number in kinds.items() if number]
    return f"{text} ({'; '.join(details)})" if details else text


def recompilations(compilation: Compilation) -> Iterable[RenderableType]:
    if not compilation.recompilations:
        return
    yield from heading("Recompilations", "the guard that failed, newest first")
    for row in compilation.recompilations[:RECOMPILATIONS]:
        first = row.reasons[0]
        line = Text.assemble((f"{row.compile_id} ", "bold"), f"{place(row.file, row.line, row.function)}")
        line.append(f"  {row.cost_s:.2f} s", style="dim")
        yield line
        yield aside(f"{first.of} failed: {first.guard}", "")
        if len(row.reasons) > 1:
            yield aside(f"and so did {', '.join(r.of for r in row.reasons[1:])}")
        yield aside(f"→ {row.advice}", "cyan")
    yield from rest(len(compilation.recompilations) - RECOMPILATIONS, "recompilation")
