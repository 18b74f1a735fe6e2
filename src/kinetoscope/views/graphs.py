"""torch.compile: compilations, graph breaks, recompilations, graphs, kernels, source lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import UNSET

from kinetoscope import numbers
from kinetoscope.document import compilation as document
from kinetoscope.render import names, palette
from kinetoscope.render.blocks import *
from kinetoscope.views.graph_names import frame_name, kernel_languages, place

FRAMES, GRAPHS, KERNELS, LINES, CHOICES = 12, 10, 12, 8, 5
BREAKS, RECOMPILATIONS, FAILURES = 6, 6, 4
# Values that a thread may keep in local memory before it is worth a word: sine and cosine have room there.
SCRATCH = 16
COMPONENTS, LONGEST = 12, 160  # of a cache key

_STATUS = {"ok": "green", "failed": "bold red", "skipped": "yellow", "unfinished": "yellow"}
_PHASES = ("dynamo", "aot", "inductor", "codegen", "triton", "autotune", "backward")


def overview(compilation: document.Compilation, inputs: Sequence[str]) -> Iterable[Block]:
    """All that was compiled, failures first, and the command worth typing next."""
    yield Heading(_title(compilation), level=1)
    yield from (line(f"⚠ {note}", style="yellow") for note in compilation.notes)
    if compilation.join is not UNSET:
        yield from _coverage(compilation, compilation.join)
    yield from _limits(compilation)
    yield from _failures(compilation)
    yield from _frames(compilation)
    yield from _breaks(compilation)
    yield from _recompilations(compilation)
    yield from _graphs(compilation)
    yield from _kernels(compilation)
    if compilation.source_lines is not UNSET:
        yield from _lines(compilation.source_lines)
    yield from _autotune(compilation)
    yield from _next(compilation, inputs)


def _aside(text: str, style: str = "dim") -> Line:
    return line(names.plain(text), style=style, indent=4)


def _title(compilation: document.Compilation) -> str:
    facts = [
        f"torch.compile · torch {compilation.torch}" if compilation.torch else "torch.compile",
        numbers.count(len(compilation.frames), "compilation"),
        numbers.count(len(compilation.graph_breaks), "graph break"),
        numbers.count(len(compilation.recompilations), "recompilation"),
        numbers.count(len(compilation.graphs), "graph"),
        numbers.count(len(compilation.kernels), "generated kernel"),
    ]
    if compilation.compile_s:
        facts.append(f"{numbers.time(compilation.compile_s * 1e6)} compiling")
    return " · ".join(facts)


def _coverage(compilation: document.Compilation, matched: document.Matched) -> Iterable[Block]:
    share = compilation.coverage.compiled_share_of_device_time
    if share is None:
        unknown = "The trace holds no device work: what the pieces cost on the device is not known."
        yield line(unknown, style="yellow")
        return
    replayed = compilation.coverage.cudagraph_share_of_device_time or 0.0
    yield line(
        f"{numbers.percent(share)} of device time ran in compiled graphs, {numbers.percent(1 - share)} "
        f"outside; {numbers.percent(replayed)} was launched by CUDA graphs."
    )
    if total := matched.generated_us:
        yield line(
            f"Of {numbers.time(total)} in generated kernels, "
            f"{numbers.percent(matched.to_aten_ops_us / total)} is traced to graph and ops, "
            f"{numbers.percent(matched.to_source_us / total)} to source lines.",
            style="dim",
        )
    for row in matched.unknown_graphs[:3]:
        time = numbers.time(row.device_time_us)
        yield line(f"⚠ graph {row.hash[:12]}… ran {time} and is not in the compile log", style="yellow")


def _limits(compilation: document.Compilation) -> Iterable[Block]:
    for row in compilation.recompilations:
        if row.limit_hit:
            where = place(row.file, row.line, row.function)
            yield Line()
            yield line(f"RECOMPILE LIMIT: {where} runs eagerly from now on", style="bold red")
            yield _aside(row.advice)


def _failures(compilation: document.Compilation) -> Iterable[Block]:
    if not compilation.failures:
        return
    yield Heading("Failures")
    for row in compilation.failures[:FAILURES]:
        yield line(f"{row.compile_id}  ", Text(row.type, "bold red"), f"  {names.plain(row.reason)}")
        code = f"  {row.code}" if row.code else ""
        yield _aside(f"{place(row.file, row.line, row.function)}{code}  → {row.effect}")
        yield from (_aside(f"→ {hint}", "cyan") for hint in row.hints[:2])
    yield from rest(len(compilation.failures) - FAILURES, "failure")


def _breaks(compilation: document.Compilation) -> Iterable[Block]:
    if not compilation.graph_breaks:
        return
    yield Heading("Graph breaks", "by compile time lost")
    for row in compilation.graph_breaks[:BREAKS]:
        yield line(
            Text(place(row.file, row.line, row.function), "bold"),
            f"  {names.plain(row.reason)}",
            Text(f"  ×{row.count}" if row.count > 1 else "", "bold"),
            Text(f"  {row.cost_s:.2f} s retraced", "dim"),
            Text(f"  {numbers.time(row.idle_us)} idle" if row.idle_us is not None else "", "red"),
            Text(_crossed(row), "red" if row.extra_launches else "dim"),
            Text("  the whole function runs eagerly" if row.skipped_frame else "", "red"),
        )
        if row.code:
            yield _aside(row.code, "")
        yield _aside(row.explanation)
        yield from (_aside(f"→ {hint}", "cyan") for hint in row.hints[:1])
        if row.url:
            yield _aside(row.url)
    yield from rest(len(compilation.graph_breaks) - BREAKS, "graph break")


def _crossed(row: document.GraphBreak) -> str:
    """How often it was crossed, and what that took: ``crossed 12 times, 24 extra launches (8 per step …)``"""
    if row.crossings is None:
        return ""
    text = f"  crossed {numbers.count(row.crossings, 'time')}, "
    if row.eager_launches is None:
        return f"{text}extra launches not known"
    text += numbers.count(row.extra_launches or 0, "extra launch")
    step = row.extra_launches_per_step
    kinds = {
        "Python's": row.eager_launches,
        "CUDA graphs": row.graph_launches,
        "not fused": row.fusable_launches,
    }
    details = [f"{step:.3g} per step"] if step else []
    details += [f"{number} {what}" for what, number in kinds.items() if number]
    return f"{text} ({'; '.join(details)})" if details else text


def _recompilations(compilation: document.Compilation) -> Iterable[Block]:
    if not compilation.recompilations:
        return
    yield Heading("Recompilations", "the guard that failed, newest first")
    for row in compilation.recompilations[:RECOMPILATIONS]:
        first, *others = row.reasons
        where = place(row.file, row.line, row.function)
        yield line(Text(f"{row.compile_id} ", "bold"), where, Text(f"  {row.cost_s:.2f} s", "dim"))
        yield _aside(f"{first.of} failed: {first.guard}", "")
        if others:
            yield _aside(f"and so did {', '.join(reason.of for reason in others)}")
        yield _aside(f"→ {row.advice}", "cyan")
    yield from rest(len(compilation.recompilations) - RECOMPILATIONS, "recompilation")


def _frames(compilation: document.Compilation) -> Iterable[Block]:
    if not compilation.frames:
        return
    called = {"triton": kernel_languages(compilation.kernels)}
    used = [p for p in _PHASES if any(getattr(f, f"{p}_s") >= 0.0005 for f in compilation.frames)]
    all_well = all(frame.status == "ok" for frame in compilation.frames)
    slowest = sorted(compilation.frames, key=lambda f: -f.compile_s)[:FRAMES]
    frames = sorted(slowest, key=lambda f: f.index)
    yield Heading("Compilations", "seconds; each phase without the ones inside it")
    yield table(
        frames,
        field("id", "text", frame_name),
        field("function", "name", lambda f: f"{names.plain(f.function or '?')} {place(f.file, f.line)}"),
        None if all_well else field("status", "text", lambda f: Text(f.status, _STATUS[f.status])),
        field("total", "number", lambda f: f"{f.compile_s:.2f}", "bold"),
        *(field(called.get(phase, phase), "number", partial(_seconds, phase)) for phase in used),
    )
    yield from rest(len(compilation.frames) - FRAMES, "compilation")
    yield from _backends(frames)
    cache = compilation.cache.fx
    if cache.hit or cache.miss or cache.bypass:
        yield line(f"graph cache: {cache.hit} hit, {cache.miss} missed, {cache.bypass} bypassed", style="dim")


def _seconds(phase: str, frame: document.Frame) -> str:
    value = getattr(frame, f"{phase}_s")
    return f"{value:.2f}" if value >= 0.005 else "·"


def _backends(frames: Sequence[document.Frame]) -> Iterable[Block]:
    ids: dict[str, list[str]] = {}
    for frame in frames:
        if frame.backend != "none":
            ids.setdefault(_how(frame), []).append(frame_name(frame))
    for how, compiled in ids.items():
        yield line(how + (f": {', '.join(compiled)}" if len(ids) > 1 else ""), style="dim")


def _how(frame: document.Frame) -> str:
    graphs = f", CUDA graphs {frame.cudagraphs}" if frame.backend == "inductor" else ""
    mode = f" ({frame.mode})" if frame.mode not in ("none", "unknown") else ""
    return names.plain(f"backend {frame.backend}{mode}{graphs}")


def _graphs(compilation: document.Compilation) -> Iterable[Block]:
    if not compilation.graphs:
        return
    timed = any(graph.launches for graph in compilation.graphs)
    rated = any(graph.costed_us for graph in compilation.graphs)
    order = sorted(compilation.graphs, key=lambda g: (-(g.device_time_us or 0.0), g.index))
    yield Heading("Graphs", "share of device time" if timed else "")
    yield table(
        order,
        field("graph", "words", lambda g: f"{g.compile_id} {g.direction}"),
        field("ops", "count", "ops"),
        field("kernels", "count", "kernels"),
        field("library", "count", lambda g: sum(call.calls for call in g.extern)),
        field("saved", "bytes", lambda g: g.saved_bytes or None),
        field("fusion", "number", _fused),
        field("device time", "time", lambda g: g.device_time_us or 0.0) if timed else None,
        field("share", "share", lambda g: g.share_of_device_time or 0.0) if timed else None,
        field("of peak", "number", _of_peak) if timed and rated else None,
        field("calls", "count", lambda g: g.calls or 0) if timed else None,
        most=GRAPHS,
        noun="graph",
    )


def _fused(graph: document.CompiledGraph) -> str | None:
    nodes = [n for r in graph.fusion.rounds for n in (r.before, r.after)] if graph.fusion else []
    return f"{nodes[0]} → {nodes[-1]}" if nodes else None


def _of_peak(row: document.CompiledGraph | document.LineTime) -> str | None:
    """The share of the device's peak; ``~`` where a tenth or more of its device time has no known cost."""
    if row.speed_of_light is None or not row.costed_us:
        return None
    part = "" if row.costed_us > 0.9 * (row.device_time_us or 0.0) else "~"
    return f"{part}{numbers.percent(row.speed_of_light)}"


def _kernels(compilation: document.Compilation) -> Iterable[Block]:
    if not compilation.kernels:
        return
    timed = any(row.launches for row in compilation.kernels)
    # A kernel's name begins with its category: where there is more to say, that is enough.
    rated = timed and any(row.median_us for row in compilation.kernels)
    order = sorted(compilation.kernels, key=lambda k: -(k.device_time_us or 0.0))
    yield Heading("Generated kernels", "by device time" if timed else "in the order they were written")
    yield table(
        order,
        field("kernel", "name", lambda k: kernel(k.name)),
        field("graph", "text", lambda k: f"{k.compile_id} {k.direction}"),
        field("source", "name", _source),
        field("device time", "time", lambda k: k.device_time_us or 0.0) if timed else None,
        None
        if timed
        else field("category", "text", lambda k: Text(k.category, palette.category(k.category))),
        field("share", "share", lambda k: k.share_of_device_time or 0.0) if timed else None,
        field("of peak", "share", lambda k: "refused" if k.refused else k.speed_of_light) if rated else None,
        most=KERNELS,
        noun="kernel",
    )
    if any(row.refused for row in order[:KERNELS]):
        refused = "refused: more than the device can do, so the bytes or FLOPs do not hold for it"
        yield line(refused, style="dim")
    for row in order:
        if (spills := row.spills or 0) > SCRATCH:
            kept = numbers.count(spills, "value")
            text = f"⚠ {row.name} keeps {kept} a thread in memory: its registers do not suffice"
            yield line(text, style="yellow")


def _source(row: document.CompiledKernel) -> str:
    if not row.source:
        return "–"
    first, *others = row.source
    return place(first.file, first.line) + (f" +{len(others)}" if others else "")


def _lines(lines: Sequence[document.LineTime]) -> Iterable[Block]:
    if not lines:
        return
    rated = any(row.costed_us for row in lines)
    yield Heading(
        "Source lines", "device time of the kernels that compute the line; fused ones count for each"
    )
    yield table(
        lines,
        field(
            "line", "text", lambda row: Text(place(row.file, row.line), "", "line", f"{row.file}:{row.line}")
        ),
        field("code", "name", "code"),
        field("device time", "time", "device_time_us"),
        field("share", "share", "share_of_device_time"),
        field("of peak", "number", _of_peak) if rated else None,
        field("kernels", "number", lambda row: str(row.kernels)),
        most=LINES,
        noun="line",
    )


def _autotune(compilation: document.Compilation) -> Iterable[Block]:
    if not compilation.autotune:
        return
    yield Heading("Autotuned choices")
    yield table(
        compilation.autotune,
        field("op", "text", "op"),
        field("shape", "name", lambda row: row.shape or "?"),
        field("choices", "number", lambda row: str(row.choices or "?")),
        field("best", "name", lambda row: row.best or "?"),
        field("time", "number", lambda row: _milliseconds(row.best_ms)),
        field("best Triton", "name", lambda row: row.best_triton or "–"),
        field("time", "number", lambda row: _milliseconds(row.best_triton_ms)),
        most=CHOICES,
        noun="choice",
    )


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else numbers.time(value * 1000)


def _next(compilation: document.Compilation, inputs: Sequence[str]) -> Iterable[Block]:
    quoted = " ".join(shlex.quote(item) for item in inputs)
    commands: list[tuple[str, str]] = []
    if compilation.kernels:
        best = max(compilation.kernels, key=lambda k: k.device_time_us or 0.0)
        command = f"kinetoscope graphs {quoted} --kernel {shlex.quote(best.name)}"
        commands.append((command, "its source, line by line"))
    if compilation.frames:
        worst = max(compilation.frames, key=lambda f: f.compile_s)
        command = f"kinetoscope graphs {quoted} --frame {worst.compile_id} --guards"
        commands.append((command, "what it relies on"))
    if compilation.graphs and compilation.join is UNSET:
        commands.append((f"kinetoscope graphs {quoted} TRACE", "what each piece costs on the device"))
    if commands:
        yield Heading("Next")
        yield Commands(tuple(commands))


def key_changes(changes: Sequence[document.KeyChange]) -> Iterable[Block]:
    """How two logs' graphs differ in their cache keys: the components that differ, before and after."""
    if not changes:
        yield line("Every graph that both logs hold has the same cache key in both.", style="green")
    for graph in changes:
        keys = f"{graph.before_key or 'no key'} → {graph.after_key or 'no key'}"
        yield line(Text(f"{graph.compile_id} {graph.direction}  ", "bold"), Text(keys, "dim"))
        if not graph.changes:
            yield _aside("the logs name no components of these keys")
        for change in graph.changes[:COMPONENTS]:
            yield line(f"  {names.plain(change.component)}")
            yield _aside(f"- {_value(change.before)}", "red")
            yield _aside(f"+ {_value(change.after)}", "green")
        if len(graph.changes) > COMPONENTS:
            yield _aside(left_out(len(graph.changes) - COMPONENTS, "component"))


def _value(text: str | None) -> str:
    return "not there" if text is None else names.shorten(text, LONGEST)
