"""One frame or one kernel of a compilation, looked at closely on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from kinetoscope import numbers
from kinetoscope.compilation import aten, bytecode, guards
from kinetoscope.compilation.bytecode import Instruction
from kinetoscope.compilation.guards import Guard
from kinetoscope.compilation.model import Compilation, Frame, Graph, Kernel
from kinetoscope.report.collect.compilation import kernel_source
from kinetoscope.report.pages.table import Name, columns, heads
from kinetoscope.report.verbs.compiled_parts import aside, frame_name, heading, place
from kinetoscope.report.words import names

NOT_FUSED = 12


def print_frame(
    compilation: Compilation, frame: Frame, parts: set[str], graph: str | None, console: Console
) -> None:
    """Print one frame; ``parts`` of guards, bytecode, fusion, and a graph by its name."""
    console.print(Group(*_frame(compilation, frame)), markup=False)
    if "guards" in parts:
        console.print(Group(*_guards(compilation, frame)), markup=False)
    if "bytecode" in parts:
        console.print(Group(*_bytecode(compilation, frame)), markup=False)
    for row in compilation.graphs:
        if row.frame == frame.index:
            console.print(Group(*_graph(row, fusion="fusion" in parts)), markup=False)
    if graph:
        console.print(Group(*_code(compilation, frame, graph)), markup=False)


def print_kernel(compilation: Compilation, kernel: Kernel, console: Console) -> None:
    """Print where a kernel comes from, what it costs, and its generated source."""
    console.print(Group(*_kernel(compilation, kernel)), markup=False)


def graph_names(compilation: Compilation, frame: Frame) -> list[str]:
    """The graphs and modules of the frame that ``print_frame`` can show."""
    own = [name for index, name in compilation.texts if index == frame.index and name not in NOT_GRAPHS]
    rows = [g for g in compilation.graphs if g.frame == frame.index]
    own += [f"post_grad_{g.direction}" for g in rows if g.index in compilation.post_grad]
    return own + [f"module_{g.direction}" for g in rows]


NOT_GRAPHS = {"guards", "bytecode", "modified bytecode", "error"}


def _frame(compilation: Compilation, frame: Frame) -> Iterable[RenderableType]:
    yield Text(
        f"{frame_name(frame)}  {place(frame.file, frame.line, frame.function)}  {frame.status}", style="bold"
    )
    table = columns("left", "left*")
    facts = {
        "compiled in": f"{frame.compile_s:.3f} s: "
        + ", ".join(
            f"{phase} {value:.3f}"
            for phase in (
                "dynamo",
                "aot",
                "inductor",
                "codegen",
                "triton",
                "autotune",
                "cudagraphs",
                "backward",
            )
            if (value := getattr(frame, f"{phase}_s"))
        ),
        "attempts": f"{frame.attempts}"
        + (f", restarted by: {'; '.join(frame.restarts)}" if frame.restarts else ""),
        "backend": f"{frame.backend}, mode {frame.mode}, CUDA graphs {frame.cudagraphs}",
        "cache": f"graph {frame.cache.fx}, AOTAutograd {frame.cache.aot}",
        "guards": "none"
        if frame.guards is None
        else f"{frame.guards}"
        + (f", checked in {frame.guard_latency_us} µs" if frame.guard_latency_us else ""),
        "failure": frame.failure or "",
    }
    for name, value in facts.items():
        if value:
            table.add_row(Text(name, style="dim"), Text(names.plain(value), overflow="fold"))
    yield table
    if frame.stack:
        yield from heading("Called from")
        for line in frame.stack:
            yield Text(f"  {place(line.file, line.line, line.function)}  {names.plain(line.code or '')}")
    if frame.dimensions:
        yield from heading("Symbols", "sizes and numbers that may vary, and those that were pinned again")
        rows = columns("left", "left", "left", "left*")
        heads(rows, "what", "symbol", "state", "why")
        for dimension in frame.dimensions:
            rows.add_row(
                Text(names.plain(dimension.source)),
                Text(names.plain(f"{dimension.symbol} in {dimension.range}")),
                Text(dimension.state, style="yellow" if dimension.state == "specialized" else "green"),
                Text(names.plain(dimension.why)),
            )
        yield rows
    available = graph_names(compilation, frame)
    if available:
        yield Text()
        yield Text(f"texts for --graph: {', '.join(available)}", style="dim")


def _guards(compilation: Compilation, frame: Frame) -> Iterable[RenderableType]:
    text = compilation.texts.get((frame.index, "guards"))
    yield from heading("Guards", "what the compiled code relies on, checked before every call")
    if text is None:
        yield Text("The log has no guards of this compilation.", style="yellow")
        return
    tree = guards.parse(text.read())
    for root in tree.roots:
        yield from _guard(root)
    if tree.latency_us is not None:
        yield Text(f"{tree.checks} checks, {tree.latency_us:g} µs a call", style="dim")


def _guard(guard: Guard) -> Iterable[RenderableType]:
    indent = (0, 0, 0, 2 * guard.depth)
    if guard.is_check:
        line = Text(f"✓ {names.plain(guard.words)}")
        line.append(f"  {place(guard.file, guard.line)}" if guard.file else "", style="dim")
        yield Padding(line, indent)
    elif guard.depth:
        yield Padding(Text(names.plain(guard.words), style="bold"), indent)
    for child in guard.children:
        yield from _guard(child)


def _bytecode(compilation: Compilation, frame: Frame) -> Iterable[RenderableType]:
    yield from heading("Bytecode", "before Dynamo | after")
    texts = [compilation.texts.get((frame.index, name)) for name in ("bytecode", "modified bytecode")]
    if not any(texts):
        yield Text(
            "The log has no bytecode: torch writes it from 2.13 on; `kinetoscope run` always does.",
            style="yellow",
        )
        return
    before, after = (bytecode.parse(text.read()) if text else () for text in texts)
    table = columns("right", "left", "left*", "right", "left", "left*")
    heads(table, "line", "opcode", "operand", "line", "opcode", "operand")
    for old, new in zip_longest(before, after):
        table.add_row(*_instruction(old), *_instruction(new))
    yield table
    used = {i.opcode: i.meaning for i in (*before, *after) if i.meaning}
    yield from heading("Opcodes")
    meanings = columns("left", "left*")
    for opcode in sorted(used):
        meanings.add_row(Text(opcode, style="dim"), Text(used[opcode]))
    yield meanings


def _instruction(instruction: Instruction | None) -> Iterable[Text | Name]:
    if instruction is None:
        return Text(), Text(), Text()
    line = "" if instruction.line is None else str(instruction.line)
    operand = instruction.operand if instruction.operand is not None else instruction.argument or ""
    return Text(line, style="dim"), Text(instruction.opcode), Name(operand)


def _graph(graph: Graph, *, fusion: bool) -> Iterable[RenderableType]:
    cost = f", {numbers.time(graph.device_time_us)} on the device" if graph.device_time_us else ""
    if graph.speed_of_light is not None and graph.costed_us and graph.device_time_us:
        part = graph.costed_us / graph.device_time_us
        of = "" if part > 0.99 else f" in {numbers.percent(part)} of that time"
        cost += f", {numbers.percent(graph.speed_of_light)} of the device's peak{of}"
    yield from heading(f"{graph.direction} graph", f"{numbers.count(graph.ops, 'op')}{cost}")
    table = columns("right", "left", "left*")
    for op, count in list(graph.op_counts.items())[:12]:
        table.add_row(Text(f"{count} ×"), Text(op), Text(aten.meaning(op) or "", style="dim"))
    yield table
    if graph.saved:
        size = numbers.size(graph.saved_bytes) if graph.saved_bytes else "a size that depends on the input"
        yield Text(f"saved for backward: {numbers.count(len(graph.saved), 'tensor')}, {size}")
        for tensor in sorted(graph.saved, key=lambda t: -(t.bytes or 0))[:5]:
            size = numbers.size(tensor.bytes) if tensor.bytes is not None else "?"
            yield aside(f"{tensor.name}  {tensor.dtype}[{', '.join(tensor.shape)}]  {size}")
    for call in graph.extern:
        lines = ", ".join(place(s.file, s.line) for s in call.source[:3])
        time = f"  {numbers.time(call.device_time_us)}" if call.device_time_us else ""
        yield Text(f"{call.calls} × {names.plain(call.name)}{time}  {lines}", style="dim")
    if fusion:
        yield from _fusion(graph)


def _fusion(graph: Graph) -> Iterable[RenderableType]:
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


def _code(compilation: Compilation, frame: Frame, name: str) -> Iterable[RenderableType]:
    way, _, direction = name.rpartition("_")
    tables = {"post_grad": compilation.post_grad, "module": compilation.modules}
    if way in tables:
        texts = [
            tables[way][g.index]
            for g in compilation.graphs
            if g.frame == frame.index and g.direction == direction and g.index in tables[way]
        ]
    else:
        text = compilation.texts.get((frame.index, name))
        texts = [text] if text else []
    if not texts:
        yield Text(f"no {name} here; there are: {', '.join(graph_names(compilation, frame))}", style="yellow")
    for text in texts:
        yield from heading(name)
        yield Syntax(names.printable(text.read()), "python", background_color="default", word_wrap=True)


def _speed(kernel: Kernel) -> str:
    """At the median launch: bytes and FLOPs a second, and the share of the device's peak that bounds it."""
    rates = [f"{kernel.bytes_per_s / 1e9:,.0f} GB/s"] if kernel.bytes_per_s else []
    rates += [f"{kernel.flops_per_s / 1e12:,.1f} TFLOP/s"] if kernel.flops_per_s else []
    if not rates or kernel.median_us is None:
        return ""
    told = f"{', '.join(rates)} in {numbers.time(kernel.median_us)}, the median"
    if kernel.refused:
        return f"{told}; refused: over the device's peak, so the count does not hold ({kernel.bytes_basis})"
    if kernel.speed_of_light is None:
        return told
    return f"{told}: {numbers.percent(kernel.speed_of_light)} of the device's {kernel.bound} peak"


def _spills(kernel: Kernel) -> str:
    if kernel.spills is None:
        return ""
    told = (
        f"{kernel.spills} values a thread, kept in memory instead of registers" if kernel.spills else "none"
    )
    tried = f" ({kernel.configs_that_spill} of {kernel.configs} configurations spill)"
    return told + (tried if kernel.configs_that_spill and (kernel.configs or 0) > 1 else "")


def _kernel(compilation: Compilation, kernel: Kernel) -> Iterable[RenderableType]:
    yield Text(f"{kernel.name}", style="bold")
    table = columns("left", "left*")
    times = ""
    if kernel.launches:
        mean = (kernel.device_time_us or 0.0) / kernel.launches
        times = (
            f"{numbers.time(kernel.device_time_us or 0.0)} in {numbers.count(kernel.launches, 'launch')}, "
            f"{numbers.percent(kernel.share_of_device_time or 0.0)} of device time, "
            f"{numbers.percent(kernel.share_of_window or 0.0)} of the steps, {numbers.time(mean)} each"
        )
    facts = {
        "graph": f"{kernel.compile_id} {kernel.direction}, {kernel.category}, {numbers.count(kernel.calls, 'call')}",
        "on the device": times,
        "speed": _speed(kernel),
        "computes": ", ".join(
            f"{op} ({words})" if (words := aten.in_short(op)) else op for op in kernel.aten_ops
        ),
        "fused nodes": ", ".join(kernel.nodes),
        "moves": f"{numbers.size(kernel.bytes)} a launch ({kernel.bytes_basis})" if kernel.bytes else "",
        "registers": f"{kernel.registers} a thread" if kernel.registers else "",
        "spills": _spills(kernel),
        "shared memory": f"{numbers.size(kernel.shared_memory_bytes)} a block"
        if kernel.shared_memory_bytes
        else "",
        "config": f"{kernel.config} ({kernel.autotune})"
        if kernel.config and kernel.autotune
        else kernel.config or kernel.autotune or "",
        "compiled in": numbers.time(kernel.compile_us) if kernel.compile_us else "",
        "file": kernel.path or "",
    }
    for name, value in facts.items():
        if value:
            table.add_row(Text(name, style="dim"), Text(names.plain(value), overflow="fold"))
    yield table
    yield from heading("Source lines", f"by {kernel.source_basis}" if kernel.source_basis else "")
    for line in kernel.source:
        yield Text(f"  {names.plain(line.file)}:{line.line}  {names.plain(line.code)}")
    if not kernel.source:
        yield Text("  unattributed: record with INDUCTOR_PROVENANCE=1", style="yellow")
    yield from heading("Generated source")
    code = kernel_source(compilation, kernel.graph, kernel.name) or ""
    yield Syntax(names.printable(code), "python", background_color="default", word_wrap=True)
