"""The page's part on torch.compile: what it made of the program, and where it gave up or began again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kinetoscope import numbers
from kinetoscope.document import Report
from kinetoscope.document import compilation as document
from kinetoscope.render import names, palette
from kinetoscope.render.blocks import *
from kinetoscope.views.graph_names import frame_name

HINTS, REASONS, OPS, WHYS, LINES = 4, 4, 3, 3, 3
OF_A_FRAME = ("failures", "graph_breaks", "recompilations", "graphs", "kernels", "autotune")


def blocks(report: Report) -> dict[str, list[Block]]:
    """By part of the page: ``troubles`` and ``compiled`` of all compilations, and of each by its number."""
    facts = report.compilation
    if facts is None:
        return {}
    found = {
        "troubles": [*_frames(facts), *_troubles(facts)],
        "compiled": [*_compiled(report, facts)],
        "modules": [*_modules(report, facts)],
    }
    for frame in facts.frames:
        of_frame = {
            name: [row for row in getattr(facts, name) if row.frame == frame.index] for name in OF_A_FRAME
        }
        own = msgspec.structs.replace(facts, frames=(frame,), compile_s=frame.compile_s, **of_frame)
        found[f"troubles {frame.index}"] = [*_frames(own), *_troubles(own)]
        found[f"compiled {frame.index}"] = [*_compiled(report, own)]
    return found


def _frames(facts: document.Compilation) -> Iterable[Block]:
    longest = max((row.compile_s for row in facts.frames), default=0.0) or 1.0
    many = numbers.count(len(facts.frames), "compilation")
    yield Heading("Compilations", f"{many}, {numbers.time(facts.compile_s * 1e6)} in all")

    def phases(row: document.Frame) -> tuple[Segment, ...]:
        times = {phase: getattr(row, f"{phase}_s") for phase in palette.PHASES}
        return tuple(
            Segment(
                time / longest,
                palette.PHASES[phase][1],
                label=f"{palette.PHASES[phase][0]}: {numbers.time(time * 1e6)}",
            )
            for phase, time in times.items()
            if time
        )

    yield table(
        facts.frames,
        field("compiled", "text", _compilation),
        field("function", "name", _function),
        field("by", "words", _backend),
        field("phases", "bar", phases),
        field("compiling", "time", lambda row: row.compile_s * 1e6),
        field("guards", "count", "guards"),
        field("device time", "time", "device_time_us"),
        field("of peak", "share", "speed_of_light"),
    )


def _compilation(row: document.Frame) -> Cell:
    name = Text(frame_name(row), "", "part", f"compile/{row.index}")
    return name if row.status == "ok" else (name, Text(row.status, "dim"))


def _function(row: document.Frame) -> Cell:
    parts = [Text(names.shorten(row.function or "?", 60))]
    if row.file:
        parts.append(msgspec.structs.replace(_place(row.file, row.line), style="dim"))
    if row.failure:
        parts.append(Text(names.shorten(row.failure, 200), "dim"))
    return tuple(parts)


def _backend(row: document.Frame) -> str:
    if row.backend == "none":
        return ""
    mode = "" if row.mode in ("none", "unknown") else f" ({row.mode})"
    graphs = "" if row.cudagraphs == "off" else f", CUDA graphs {row.cudagraphs}"
    return names.shorten(f"{row.backend}{mode}{graphs}", 160)


def _modules(report: Report, facts: document.Compilation) -> Iterable[Block]:
    if not report.page or not report.page.modules:
        return
    graphs = {row.index: row for row in facts.graphs}
    times = {row.index: row.device_time_us for row in facts.graphs}
    yield Heading("Generated modules", "what Inductor wrote of each graph")
    yield table(
        report.page.modules,
        field("graph", "text", lambda row: _module(row.graph, graphs.get(row.graph))),
        field("kernels", "count", lambda row: len(row.kernels)),
        field("lines", "count", lambda row: row.code.count("\n") + 1),
        field("device time", "time", lambda row: times.get(row.graph) or None),
    )


def _module(index: int, graph: document.CompiledGraph | None) -> Text:
    title = f"{graph.compile_id} {graph.direction}" if graph else f"graph {index}"
    return Text(title, "", "part", f"code&graph={index}")


def _troubles(facts: document.Compilation) -> Iterable[Block]:
    if facts.failures:
        yield Heading("Failures")
        yield Labelled(
            tuple(
                (
                    Text(f"{row.compile_id} {row.type}", "red"),
                    (
                        Line((_place(row.file, row.line), f" {names.ended_early(row.reason, 600)}")),
                        *_code(row.code),
                        Prose(row.effect, "dim"),
                        *_hints(row.hints),
                    ),
                )
                for row in facts.failures
            )
        )
    if facts.graph_breaks:
        yield Heading("Graph breaks", "where Python took over, and what it cost")
        yield Labelled(tuple((_place(row.file, row.line), _graph_break(row)) for row in facts.graph_breaks))
    if facts.recompilations:
        yield Heading("Recompilations", "which guard failed, and what it cost")
        yield Labelled(
            tuple(
                (Text(f"{row.compile_id} {names.plain(row.function or '')}", "bold"), _recompilation(row))
                for row in facts.recompilations
            )
        )


def _graph_break(row: document.GraphBreak) -> tuple[Prose | Line | Items, ...]:
    figures = [f"{row.count} ×", f"retraced {numbers.time(row.cost_s * 1e6)}"]
    if row.idle_us:
        figures.append(f"{numbers.time(row.idle_us)} idle")
    if row.crossings is not None:
        figures.append(f"crossed {numbers.count(row.crossings)}")
    if row.extra_launches is not None:
        step = row.extra_launches_per_step
        often = "" if step is None else f", {step:.3g} per step"
        figures.append(f"extra launches {numbers.count(row.extra_launches)}{often}")
    if row.skipped_frame:
        figures.append("the whole function runs eagerly")
    return (
        Line((Text(names.ended_early(row.reason, 200), "bold"),)),
        *_code(row.code),
        Prose(names.ended_early(row.explanation, 600)),
        *_hints(row.hints),
        Prose(" · ".join(figures), "dim"),
    )


def _recompilation(row: document.Recompilation) -> tuple[Prose | Line | Items, ...]:
    limit = " The limit is reached: it runs eagerly from here on." if row.limit_hit else ""
    return (
        Line((_place(row.file, row.line), f" {numbers.time(row.cost_s * 1e6)} to compile again")),
        *(
            Line(
                (
                    Text(names.shorten(reason.guard, 300), "", "command"),
                    f" guard of {reason.of} ",
                    *((_place(reason.file, reason.line),) if reason.file else ()),
                )
            )
            for reason in row.reasons[:REASONS]
        ),
        Prose(f"{names.ended_early(row.advice, 500)}{limit}"),
    )


def _place(file: str | None, number: int | None) -> Text:
    return place(f"{file}:{number}" if number else file) if file else Text("unknown place")


def _code(code: str | None) -> tuple[Line, ...]:
    return (Line((Text(code.strip(), "", "command"),)),) if code and code.strip() else ()


def _hints(hints: Iterable[str]) -> tuple[Items, ...]:
    shown = tuple(names.ended_early(hint, 400) for hint in list(hints)[:HINTS])
    return (Items(shown),) if shown else ()


def _compiled(report: Report, facts: document.Compilation) -> Iterable[Block]:
    written = {module.graph for module in report.page.modules} if report.page else set[int]()
    if facts.graphs:
        yield Heading("Graphs", "what a backend turned into code; fusion: nodes before and after each round")
        yield table(
            facts.graphs,
            field("graph", "text", lambda row: _graph(row, written)),
            field("ops", "count", _ops),
            field("kernels", "count", "kernels"),
            field("fusion", "text", _fusion),
            field("not fused", "words", _not_fused),
            field("saved", "bytes", saved),
            field("device time", "time", "device_time_us"),
            field("of peak", "share", "speed_of_light"),
        )
    if facts.kernels:
        launched = {row.name for row in report.kernels}
        kernels = sorted(facts.kernels, key=lambda row: -(row.device_time_us or 0.0))
        yield Heading("Generated kernels", "each leads to its source; below it the lines it computes")
        yield table(
            kernels,
            field("kernel", "name", lambda row: _kernel(row, launched, written)),
            field("graph", "text", lambda row: f"{row.compile_id} {row.direction}"),
            field("category", "text", "category"),
            field("aten ops", "words", lambda row: names.shorten(", ".join(row.aten_ops), 120)),
            field("device time", "time", "device_time_us"),
            field("launches", "count", "launches"),
            field("of peak", "share", "speed_of_light"),
        )
    if facts.autotune:
        yield Heading("Autotuning", "what was chosen among implementations")
        yield table(
            facts.autotune,
            field("op", "text", lambda row: (row.op, Text(row.shape, "dim")) if row.shape else row.op),
            field("choices", "count", "choices"),
            field("best", "name", "best"),
            field("time", "time", lambda row: _microseconds(row.best_ms)),
            field("best of Triton", "time", lambda row: _microseconds(row.best_triton_ms)),
        )


def _microseconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds * 1000


def _graph(row: document.CompiledGraph, written: set[int]) -> Text:
    title = f"{row.compile_id} {row.direction}"
    return Text(title, "", "part", f"code&graph={row.index}") if row.index in written else Text(title)


def _ops(row: document.CompiledGraph) -> Cell:
    most = sorted(row.op_counts.items(), key=lambda item: -item[1])[:OPS]
    return row.ops, Text(", ".join(f"{op} ×{count}" for op, count in most), "dim")


def _fusion(row: document.CompiledGraph) -> str | None:
    rounds = row.fusion.rounds if row.fusion else ()
    return ", ".join(f"{one.before} → {one.after}" for one in rounds) or None


def _not_fused(row: document.CompiledGraph) -> str | None:
    reasons = row.fusion.not_fused[:WHYS] if row.fusion else ()
    return "; ".join(f"{one.count} × {names.shorten(one.why, 60)}" for one in reasons) or None


def saved(row: document.CompiledGraph) -> Cell:
    """The bytes that a forward keeps for its backward, that this writes over, and that it computes again."""
    if row.saved_bytes is None:
        return None
    parts: list[Text] = []
    donated = [one for one in row.saved if one.donated]
    if donated:
        parts.append(Text(f"{numbers.size(sum(one.bytes or 0 for one in donated))} donated", "dim"))
    if row.rematerialised:
        again = row.rematerialised_bytes
        size = "some" if again is None else numbers.size(again)
        parts.append(Text(f"{size} computed again", "dim"))
    return row.saved_bytes, *parts


def _kernel(row: document.CompiledKernel, launched: set[str], written: set[int]) -> Cell:
    found = next((name for name in (row.symbol, row.name) if name in launched), None)
    if found:
        name = kernel(found, row.name)
    elif row.graph in written:
        name = Text(row.name, "", "part", f"code&graph={row.graph}&kernel={row.name}")
    else:
        name = Text(row.name)
    lines = (
        part
        for one in row.source[:LINES]
        for part in (
            Text(one.file, "dim", "line", f"{one.file}:{one.line}"),
            Text(names.shorten(one.code.strip(), 70), "dim"),
        )
    )
    return name, *lines
