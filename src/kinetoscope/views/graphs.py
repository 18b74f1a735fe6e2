"""``kinetoscope graphs``: what torch.compile did, as a screenful of terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from msgspec import UNSET
from rich.console import Console, Group, RenderableType
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import compilation as document
from kinetoscope.render import names, palette
from kinetoscope.render.table import Name, heading, rest
from kinetoscope.views.compiled import frame_name, kernel_languages, place
from kinetoscope.views.graph_troubles import breaks, failures, limits, recompilations
from kinetoscope.views.listing import grid

FRAMES = 12
GRAPHS = 10
KERNELS = 12
# Values that a thread may keep in local memory before it is worth a word: sine and cosine have room there.
SCRATCH = 16
LINES = 8
CHOICES = 5

_STATUS = {"ok": "green", "failed": "bold red", "skipped": "yellow", "unfinished": "yellow"}
_PHASES = ("dynamo", "aot", "inductor", "codegen", "triton", "autotune", "backward")


def print_overview(compilation: document.Compilation, inputs: Sequence[str], console: Console) -> None:
    """Print what happened, the loudest first, and the command worth typing next."""
    console.print(Group(*_sections(compilation, inputs)), markup=False, crop=False)


def _sections(compilation: document.Compilation, inputs: Sequence[str]) -> Iterable[RenderableType]:
    yield Text(_title(compilation), style="bold")
    for note in compilation.notes:
        yield Text(f"⚠ {names.plain(note)}", style="yellow")
    if compilation.join is not UNSET:
        yield from _coverage(compilation, compilation.join)
    yield from limits(compilation)
    yield from failures(compilation)
    yield from _frames(compilation)
    yield from breaks(compilation)
    yield from recompilations(compilation)
    yield from _graphs(compilation)
    yield from _kernels(compilation)
    if compilation.source_lines is not UNSET:
        yield from _lines(compilation.source_lines)
    yield from _autotune(compilation)
    yield from _next(compilation, inputs)


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


def _coverage(compilation: document.Compilation, matched: document.Matched) -> Iterable[RenderableType]:
    share = compilation.coverage.compiled_share_of_device_time
    if share is None:
        yield Text(
            "The trace holds no device work: what the pieces cost on the device is not known.", style="yellow"
        )
        return
    replayed = compilation.coverage.cudagraph_share_of_device_time or 0.0
    yield Text(
        f"{numbers.percent(share)} of device time ran in compiled graphs, {numbers.percent(1 - share)} "
        f"outside; {numbers.percent(replayed)} was launched by CUDA graphs."
    )
    if total := matched.generated_us:
        yield Text(
            f"Of {numbers.time(total)} in generated kernels, "
            f"{numbers.percent(matched.to_aten_ops_us / total)} is traced to graph and ops, "
            f"{numbers.percent(matched.to_source_us / total)} to source lines.",
            style="dim",
        )
    for row in matched.unknown_graphs[:3]:
        time = numbers.time(row.device_time_us)
        yield Text(f"⚠ graph {row.hash[:12]}… ran {time} and is not in the compile log", style="yellow")


def _frames(compilation: document.Compilation) -> Iterable[RenderableType]:
    if not compilation.frames:
        return
    called = {"triton": kernel_languages(compilation.kernels)}
    used = [p for p in _PHASES if any(getattr(f, f"{p}_s") >= 0.0005 for f in compilation.frames)]
    yield from heading("Compilations", "seconds; each phase without the ones inside it")
    all_well = all(frame.status == "ok" for frame in compilation.frames)
    slowest = sorted(compilation.frames, key=lambda f: -f.compile_s)[:FRAMES]
    frames = sorted(slowest, key=lambda f: f.index)
    functions = [f"{names.plain(f.function or '?')} {place(f.file, f.line)}" for f in frames]
    statuses = [Text(f.status, style=_STATUS[f.status]) for f in frames]
    yield grid(
        ("id", "left", map(frame_name, frames)),
        ("function", "left*", map(Name, functions)),
        None if all_well else ("status", "left", statuses),
        ("total", "right", [Text(f"{f.compile_s:.2f}", style="bold") for f in frames]),
        *(
            (called.get(phase, phase), "right", [_seconds(getattr(f, f"{phase}_s")) for f in frames])
            for phase in used
        ),
    )
    yield from rest(len(compilation.frames) - FRAMES, "compilation")
    yield from _backends(frames)
    cache = compilation.cache.fx
    if cache.hit or cache.miss or cache.bypass:
        yield Text(f"graph cache: {cache.hit} hit, {cache.miss} missed, {cache.bypass} bypassed", style="dim")


def _backends(frames: Sequence[document.Frame]) -> Iterable[RenderableType]:
    """Who compiled, and in which mode; with the ids where it was not always the same."""
    ids: dict[str, list[str]] = {}
    for frame in sorted(frames, key=lambda f: f.index):
        if frame.backend != "none":
            ids.setdefault(_how(frame), []).append(frame_name(frame))
    for how, compiled in ids.items():
        yield Text(how + (f": {', '.join(compiled)}" if len(ids) > 1 else ""), style="dim")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else "·"


def _how(frame: document.Frame) -> str:
    graphs = f", CUDA graphs {frame.cudagraphs}" if frame.backend == "inductor" else ""
    mode = f" ({frame.mode})" if frame.mode not in ("none", "unknown") else ""
    return names.plain(f"backend {frame.backend}{mode}{graphs}")


def _graphs(compilation: document.Compilation) -> Iterable[RenderableType]:
    if not compilation.graphs:
        return
    timed = any(graph.launches for graph in compilation.graphs)
    yield from heading("Graphs", "share of device time" if timed else "")
    rated = any(graph.costed_us for graph in compilation.graphs)
    order = sorted(compilation.graphs, key=lambda g: (-(g.device_time_us or 0.0), g.index))
    graphs = order[:GRAPHS]
    saved = [numbers.size(g.saved_bytes) if g.saved_bytes else "–" for g in graphs]
    shares = [numbers.percent(g.share_of_device_time or 0.0) for g in graphs]
    yield grid(
        ("graph", "left*", [f"{g.compile_id} {g.direction}" for g in graphs]),
        ("ops", "right", [numbers.count(g.ops) for g in graphs]),
        ("kernels", "right", [numbers.count(g.kernels) for g in graphs]),
        ("library", "right", [numbers.count(sum(e.calls for e in g.extern)) for g in graphs]),
        ("saved", "right", saved),
        ("fusion", "right", map(_fused, graphs)),
        ("device time", "right", [numbers.time(g.device_time_us or 0.0) for g in graphs]) if timed else None,
        ("share", "right", shares) if timed else None,
        ("of peak", "right", map(_of_peak, graphs)) if timed and rated else None,
        ("calls", "right", [numbers.count(g.calls or 0) for g in graphs]) if timed else None,
    )
    yield from rest(len(order) - GRAPHS, "graph")


def _fused(graph: document.Graph) -> str:
    nodes = [n for r in graph.fusion.rounds for n in (r.before, r.after)] if graph.fusion else []
    return f"{nodes[0]} → {nodes[-1]}" if nodes else "–"


def _kernels(compilation: document.Compilation) -> Iterable[RenderableType]:
    if not compilation.kernels:
        return
    timed = any(kernel.launches for kernel in compilation.kernels)
    yield from heading("Generated kernels", "by device time" if timed else "in the order they were written")
    # A kernel's name begins with its category: where there is more to say, that is enough.
    rated = any(kernel.median_us for kernel in compilation.kernels)
    order = sorted(compilation.kernels, key=lambda k: -(k.device_time_us or 0.0))
    kernels = order[:KERNELS]
    categories = [Text(k.category, style=palette.category(k.category)) for k in kernels]
    times = [numbers.time(k.device_time_us or 0.0) for k in kernels]
    shares = [numbers.percent(k.share_of_device_time or 0.0) for k in kernels]
    speeds = ["refused" if k.refused else _percent(k.speed_of_light) for k in kernels]
    yield grid(
        ("kernel", "left*", [Name(k.name) for k in kernels]),
        ("graph", "left", [f"{k.compile_id} {k.direction}" for k in kernels]),
        ("source", "left*", [Name(_source(k)) for k in kernels]),
        ("device time", "right", times) if timed else ("category", "left", categories),
        ("share", "right", shares) if timed else None,
        ("of peak", "right", speeds) if timed and rated else None,
    )
    yield from rest(len(order) - KERNELS, "kernel")
    if any(kernel.refused for kernel in kernels):
        yield Text(
            "refused: more than the device can do, so the bytes or FLOPs do not hold for it", style="dim"
        )
    for kernel in order:
        if (spills := kernel.spills or 0) > SCRATCH:
            kept = numbers.count(spills, "value")
            text = f"⚠ {kernel.name} keeps {kept} a thread in memory: its registers do not suffice"
            yield Text(names.plain(text), style="yellow")


def _percent(share: float | None) -> str:
    return "–" if share is None else numbers.percent(share)


def _of_peak(row: document.Graph | document.LineTime) -> str:
    """The share of the device's peak; ``~`` where a tenth or more of its device time has no known cost."""
    if row.speed_of_light is None or not row.costed_us:
        return "–"
    part = "" if row.costed_us > 0.9 * (row.device_time_us or 0.0) else "~"
    return f"{part}{numbers.percent(row.speed_of_light)}"


def _source(kernel: document.Kernel) -> str:
    """The first line it computes, and how many more."""
    if not kernel.source:
        return "–"
    first, *others = kernel.source
    return place(first.file, first.line) + (f" +{len(others)}" if others else "")


def _lines(lines: Sequence[document.LineTime]) -> Iterable[RenderableType]:
    if not lines:
        return
    yield from heading(
        "Source lines", "device time of the kernels that compute the line; fused ones count for each"
    )
    rated = any(row.costed_us for row in lines)
    shown = lines[:LINES]
    yield grid(
        ("line", "left", [place(row.file, row.line) for row in shown]),
        ("code", "left*", [Name(row.code) for row in shown]),
        ("device time", "right", [numbers.time(row.device_time_us) for row in shown]),
        ("share", "right", [numbers.percent(row.share_of_device_time) for row in shown]),
        ("of peak", "right", map(_of_peak, shown)) if rated else None,
        ("kernels", "right", [str(row.kernels) for row in shown]),
    )
    yield from rest(len(lines) - LINES, "line")


def _autotune(compilation: document.Compilation) -> Iterable[RenderableType]:
    if not compilation.autotune:
        return
    yield from heading("Autotuned choices")
    rows = compilation.autotune[:CHOICES]
    yield grid(
        ("op", "left", [names.plain(row.op) for row in rows]),
        ("shape", "left*", [Name(row.shape or "?") for row in rows]),
        ("choices", "right", [str(row.choices or "?") for row in rows]),
        ("best", "left*", [Name(row.best or "?") for row in rows]),
        ("time", "right", [_milliseconds(row.best_ms) for row in rows]),
        ("best Triton", "left*", [Name(row.best_triton or "–") for row in rows]),
        ("time", "right", [_milliseconds(row.best_triton_ms) for row in rows]),
    )
    yield from rest(len(compilation.autotune) - CHOICES, "choice")


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else numbers.time(value * 1000)


def _next(compilation: document.Compilation, inputs: Sequence[str]) -> Iterable[RenderableType]:
    quoted = " ".join(shlex.quote(item) for item in inputs)
    commands: list[tuple[str, str]] = []
    if compilation.kernels:
        best = max(compilation.kernels, key=lambda k: k.device_time_us or 0.0)
        commands.append(
            (f"kinetoscope graphs {quoted} --kernel {shlex.quote(best.name)}", "its source, line by line")
        )
    if compilation.frames:
        worst = max(compilation.frames, key=lambda f: f.compile_s)
        commands.append(
            (f"kinetoscope graphs {quoted} --frame {worst.compile_id} --guards", "what it relies on")
        )
    if compilation.graphs and compilation.join is UNSET:
        commands.append((f"kinetoscope graphs {quoted} TRACE", "what each piece costs on the device"))
    yield from heading("Next") if commands else ()
    for line, shows in commands:
        yield Text.assemble(
            (f"{shows:36}  ", "dim"), (names.plain(line), "cyan"), no_wrap=True, overflow="ignore"
        )
