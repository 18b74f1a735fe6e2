"""One frame or one kernel of a compilation, closely: ``kinetoscope graphs --frame … --kernel …``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from msgspec import UNSET
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.document import compilation as document
from kinetoscope.render import names
from kinetoscope.render.table import Name, aside, heading
from kinetoscope.views.compiled import frame_name, place
from kinetoscope.views.listing import grid

NOT_FUSED = 12
OPS = 12
SAVED = 5
PHASES = ("dynamo", "aot", "inductor", "codegen", "triton", "autotune", "cudagraphs", "backward")


def print_frame(detail: document.FrameDetail, console: Console, *, fusion: bool) -> None:
    """Print one frame and what was asked for of it; ``fusion``: what was fused in its graphs, too."""
    console.print(Group(*_frame(detail)), markup=False)
    if detail.guards is not UNSET:
        console.print(Group(*_guards(detail.guards)), markup=False)
    if detail.bytecode is not UNSET:
        console.print(Group(*_bytecode(detail.bytecode)), markup=False)
    for graph in detail.graphs:
        console.print(Group(*_graph(graph, detail.meanings)), markup=False)
        if fusion:
            console.print(Group(*_fusion(graph)), markup=False)
    if detail.text is not UNSET:
        console.print(Group(*_texts(detail.text.name, detail.text.texts, detail.text_names)), markup=False)


def print_kernel(detail: document.KernelDetail, console: Console) -> None:
    """Print where a kernel comes from, what it costs, and its generated source."""
    console.print(Group(*_kernel(detail)), markup=False)


def _frame(detail: document.FrameDetail) -> Iterable[RenderableType]:
    frame = detail.frame
    title = f"{frame_name(frame)}  {place(frame.file, frame.line, frame.function)}  {frame.status}"
    yield Text(title, style="bold")
    yield from _facts(_frame_facts(frame))
    if frame.stack:
        yield from heading("Called from")
        for line in frame.stack:
            yield Text(f"  {place(line.file, line.line, line.function)}  {names.plain(line.code or '')}")
    if frame.dimensions:
        yield from heading("Symbols", "sizes and numbers that may vary, and those that were pinned again")
        pinned = {"specialized": "yellow"}
        yield grid(
            ("what", "left", [names.plain(row.source) for row in frame.dimensions]),
            ("symbol", "left", [names.plain(f"{row.symbol} in {row.range}") for row in frame.dimensions]),
            ("state", "left", [Text(r.state, style=pinned.get(r.state, "green")) for r in frame.dimensions]),
            ("why", "left*", [names.plain(row.why) for row in frame.dimensions]),
        )
    if detail.text_names:
        yield Text()
        yield Text(f"texts for --graph: {', '.join(detail.text_names)}", style="dim")


def _frame_facts(frame: document.Frame) -> dict[str, str]:
    phases = ", ".join(
        f"{'kernels' if phase == 'triton' else phase} {time:.3f}"
        for phase in PHASES
        if (time := getattr(frame, f"{phase}_s"))
    )
    restarts = f", restarted by: {'; '.join(frame.restarts)}" if frame.restarts else ""
    latency = f", checked in {frame.guard_latency_us} µs" if frame.guard_latency_us else ""
    return {
        "compiled in": f"{frame.compile_s:.3f} s: {phases}",
        "attempts": f"{frame.attempts}{restarts}",
        "backend": f"{frame.backend}, mode {frame.mode}, CUDA graphs {frame.cudagraphs}",
        "cache": f"graph {frame.cache.fx}, AOTAutograd {frame.cache.aot}",
        "guards": "none" if frame.guards is None else f"{frame.guards}{latency}",
        "failure": frame.failure or "",
    }


def _facts(facts: dict[str, str]) -> Iterable[RenderableType]:
    known = {name: value for name, value in facts.items() if value}
    values = [Text(names.plain(value), overflow="fold") for value in known.values()]
    yield grid(("", "left", [Text(name, style="dim") for name in known]), ("", "left*", values))


def _guards(tree: document.GuardTree | None) -> Iterable[RenderableType]:
    yield from heading("Guards", "what the compiled code relies on, checked before every call")
    if tree is None:
        yield Text("The log has no guards of this compilation.", style="yellow")
        return
    for root in tree.roots:
        yield from _guard(root)
    if tree.latency_us is not None:
        yield Text(f"{tree.checks} checks, {tree.latency_us:g} µs a call", style="dim")


def _guard(guard: document.Guard) -> Iterable[RenderableType]:
    indent = (0, 0, 0, 2 * guard.depth)
    if guard.is_check:
        line = Text(f"✓ {names.plain(guard.words)}")
        line.append(f"  {place(guard.file, guard.line)}" if guard.file else "", style="dim")
        yield Padding(line, indent)
    elif guard.depth:
        yield Padding(Text(names.plain(guard.words), style="bold"), indent)
    for child in guard.children:
        yield from _guard(child)


def _bytecode(code: document.Bytecode | None) -> Iterable[RenderableType]:
    yield from heading("Bytecode", "before Dynamo | after")
    if code is None:
        yield Text(
            "The log has no bytecode: torch writes it from 2.13 on; `kinetoscope run` always does.",
            style="yellow",
        )
        return
    lines = list(zip_longest(code.before, code.after))
    yield grid(*_instructions([old for old, _ in lines]), *_instructions([new for _, new in lines]))
    used = {i.opcode: i.meaning for i in (*code.before, *code.after) if i.meaning}
    yield from heading("Opcodes")
    opcodes = sorted(used)
    yield grid(
        ("", "left", [Text(opcode, style="dim") for opcode in opcodes]),
        ("", "left*", [used[opcode] for opcode in opcodes]),
    )


def _instructions(code: list[document.Instruction | None]) -> Iterable[tuple[str, str, list[RenderableType]]]:
    yield "line", "right", [Text(str(i.line or "") if i else "", style="dim") for i in code]
    yield "opcode", "left", [i.opcode if i else "" for i in code]
    yield (
        "operand",
        "left*",
        [Name((i.operand if i.operand is not None else i.argument) or "") if i else "" for i in code],
    )


def _graph(graph: document.Graph, meanings: dict[str, str]) -> Iterable[RenderableType]:
    cost = f", {numbers.time(graph.device_time_us)} on the device" if graph.device_time_us else ""
    if graph.speed_of_light is not None and graph.costed_us and graph.device_time_us:
        part = graph.costed_us / graph.device_time_us
        of = "" if part > 0.99 else f" in {numbers.percent(part)} of that time"
        cost += f", {numbers.percent(graph.speed_of_light)} of the device's peak{of}"
    yield from heading(f"{graph.direction} graph", f"{numbers.count(graph.ops, 'op')}{cost}")
    ops = list(graph.op_counts)[:OPS]
    yield grid(
        ("", "right", [f"{graph.op_counts[op]} ×" for op in ops]),
        ("", "left", ops),
        ("", "left*", [Text(meanings.get(op, ""), style="dim") for op in ops]),
    )
    yield from _partition(graph)
    for call in graph.extern:
        lines = ", ".join(place(s.file, s.line) for s in call.source[:3])
        time = f"  {numbers.time(call.device_time_us)}" if call.device_time_us else ""
        yield Text(f"{call.calls} × {names.plain(call.name)}{time}  {lines}", style="dim")


def _partition(graph: document.Graph) -> Iterable[RenderableType]:
    """What the partitioner chose: kept for the backward, or computed there again."""
    if graph.saved:
        held = f"saved for backward: {numbers.count(len(graph.saved), 'tensor')}, {_size(graph.saved_bytes)}"
        donated = sum(tensor.donated is True for tensor in graph.saved)
        yield Text(held + (f"; the backward may write over {donated} of them (donated)" if donated else ""))
        for tensor in sorted(graph.saved, key=lambda t: -(t.bytes or 0))[:SAVED]:
            yield aside(_tensor(tensor) + ("  donated" if tensor.donated else ""))
    if graph.rematerialised:
        again = numbers.count(len(graph.rematerialised), "node")
        spared = _size(graph.rematerialised_bytes)
        yield Text(f"computed again in the backward: {again}, which spares saving {spared}")
        largest = sorted(graph.rematerialised, key=lambda n: (-(n.spared_bytes or 0), -(n.bytes or 0)))
        for node in largest[:SAVED]:
            yield aside(
                f"{_tensor(node)}  {node.op}"
                + ("" if node.spared_bytes != 0 else "  (would not be saved either)")
            )
    if graph.partitioner and (given := graph.partitioner.changed()):
        yield Text(f"the partitioner was given: {', '.join(f'{k} = {v}' for k, v in given.items())}")


def _tensor(tensor: document.SavedTensor | document.Rematerialised) -> str:
    size = numbers.size(tensor.bytes) if tensor.bytes is not None else "?"
    return f"{tensor.name}  {tensor.dtype}[{', '.join(tensor.shape)}]  {size}"


def _size(total: int | None) -> str:
    return "a size that depends on the input" if total is None else numbers.size(total)


def _fusion(graph: document.Graph) -> Iterable[RenderableType]:
    if graph.fusion is None:
        yield Text(
            "fusion: not recorded (`kinetoscope run` records it, or TORCH_LOGS=fusion)", style="yellow"
        )
        return
    for number, round_ in enumerate(graph.fusion.rounds, 1):
        yield Text(f"fusion round {number}: {round_.before} nodes into {round_.after}")
    if (cut := graph.fusion.partitions) and cut.cudagraphable + cut.others > 1:
        yield Text(f"CUDA graphs: {cut.cudagraphable} parts can be captured, {cut.others} cannot")
        yield from (aside(why, "yellow", 2) for why in cut.reasons[:NOT_FUSED])
    for pair in graph.fusion.fused:
        yield aside(f"fused {pair}", "green", 2)
    for why in graph.fusion.not_fused[:NOT_FUSED]:
        yield aside(f"{why.count} not fused: {why.why}  ({'; '.join(why.examples[:3])})", "", 2)


def _texts(name: str, texts: tuple[str, ...], others: tuple[str, ...]) -> Iterable[RenderableType]:
    if not texts:
        yield Text(f"no {name} here; there are: {', '.join(others)}", style="yellow")
    for text in texts:
        yield from heading(name)
        yield _code(text)


def _code(text: str) -> Syntax:
    return Syntax(names.printable(text), "python", background_color="default", word_wrap=True)


def _kernel(detail: document.KernelDetail) -> Iterable[RenderableType]:
    kernel = detail.kernel
    yield Text(kernel.name, style="bold")
    yield from _facts(_kernel_facts(kernel, detail.meanings))
    yield from _source(kernel.source, kernel.source_basis)
    yield from heading("Generated source")
    yield _code(detail.code)


def _kernel_facts(kernel: document.Kernel, meanings: dict[str, str]) -> dict[str, str]:
    calls = numbers.count(kernel.calls, "call")
    ops = (f"{op} ({meanings[op]})" if op in meanings else op for op in kernel.aten_ops)
    moved, shared = kernel.bytes, kernel.shared_memory_bytes
    config = f"{kernel.config} ({kernel.autotune})" if kernel.config and kernel.autotune else None
    return {
        "graph": f"{kernel.compile_id} {kernel.direction}, {kernel.category}, {calls}",
        "on the device": _times(kernel),
        "speed": _speed(kernel),
        "computes": ", ".join(ops),
        "fused nodes": ", ".join(kernel.nodes),
        "moves": f"{numbers.size(moved)} a launch ({kernel.bytes_basis})" if moved else "",
        "registers": f"{kernel.registers} a thread" if kernel.registers else "",
        "spills": _spills(kernel),
        "shared memory": f"{numbers.size(shared)} a block" if shared else "",
        "config": config or kernel.config or kernel.autotune or "",
        "compiled in": numbers.time(kernel.compile_us) if kernel.compile_us else "",
        "file": kernel.path or "",
    }


def _times(kernel: document.Kernel) -> str:
    if not kernel.launches:
        return ""
    time = kernel.device_time_us or 0.0
    return (
        f"{numbers.time(time)} in {numbers.count(kernel.launches, 'launch')}, "
        f"{numbers.percent(kernel.share_of_device_time or 0.0)} of device time, "
        f"{numbers.percent(kernel.share_of_window or 0.0)} of the steps, "
        f"{numbers.time(time / kernel.launches)} each"
    )


def _speed(kernel: document.Kernel) -> str:
    """At the median launch: bytes and FLOPs a second, and the share of the device's peak that bounds it."""
    rates = [f"{kernel.bytes_per_s / 1e9:,.0f} GB/s"] if kernel.bytes_per_s else []
    rates += [f"{kernel.flops_per_s / 1e12:,.1f} TFLOP/s"] if kernel.flops_per_s else []
    if not rates or kernel.median_us is None:
        return ""
    speed = f"{', '.join(rates)} in {numbers.time(kernel.median_us)}, the median"
    if kernel.refused:
        return f"{speed}; refused: over the device's peak, so the count does not hold ({kernel.bytes_basis})"
    if kernel.speed_of_light is None:
        return speed
    return f"{speed}: {numbers.percent(kernel.speed_of_light)} of the device's {kernel.bound} peak"


def _spills(kernel: document.Kernel) -> str:
    if kernel.spills is None:
        return ""
    kept = "none"
    if kernel.spills:
        kept = f"{kernel.spills} values a thread, kept in memory instead of registers"
    tried = f" ({kernel.configs_that_spill} of {kernel.configs} configurations spill)"
    return kept + (tried if kernel.configs_that_spill and (kernel.configs or 0) > 1 else "")


def _source(lines: tuple[document.SourceLine, ...], basis: str | None) -> Iterable[RenderableType]:
    yield from heading("Source lines", f"by {basis}" if basis else "")
    for line in lines:
        yield Text(f"  {names.plain(line.file)}:{line.line}  {names.plain(line.code)}")
    if not lines:
        yield Text("  unattributed: record with INDUCTOR_PROVENANCE=1", style="yellow")
