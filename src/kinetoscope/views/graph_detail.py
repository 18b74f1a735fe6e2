"""One frame or one kernel of a compilation, closely: ``kinetoscope graphs --frame … --kernel …``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from msgspec import UNSET

from kinetoscope import numbers
from kinetoscope.document import compilation as document
from kinetoscope.render import palette
from kinetoscope.render.blocks import Block, Code, Heading, Labelled, Line, Text, field, line, table
from kinetoscope.views.graph_names import frame_name, place

NOT_FUSED = 12
OPS = 12
SAVED = 5


def frame(detail: document.FrameDetail, *, fusion: bool) -> Iterable[Block]:
    """One frame and its requested parts; ``fusion``: also what was fused in its graphs."""
    yield from _frame(detail)
    if detail.guards is not UNSET:
        yield from _guards(detail.guards)
    if detail.bytecode is not UNSET:
        yield from _bytecode(detail.bytecode)
    for graph in detail.graphs:
        yield from _graph(graph, detail.meanings)
        if fusion:
            yield from _fusion(graph)
    if detail.text is not UNSET:
        yield from _texts(detail.text.name, detail.text.texts, detail.text_names)


def kernel(detail: document.KernelDetail) -> Iterable[Block]:
    """Where a kernel comes from, what it costs, and its generated source."""
    own = detail.kernel
    yield line(Text(own.name, "bold"))
    yield _facts(_kernel_facts(own, detail.meanings))
    yield Heading("Source lines", f"by {own.source_basis}" if own.source_basis else "")
    yield from (line(f"  {row.file}:{row.line}  {row.code}") for row in own.source)
    if not own.source:
        yield line("  unattributed: record with INDUCTOR_PROVENANCE=1", style="yellow")
    yield Heading("Generated source")
    yield Code(detail.code, "python")


def _frame(detail: document.FrameDetail) -> Iterable[Block]:
    own = detail.frame
    title = f"{frame_name(own)}  {place(own.file, own.line, own.function)}  {own.status}"
    yield line(title, style="bold")
    yield _facts(_frame_facts(own))
    if own.stack:
        yield Heading("Called from")
        for row in own.stack:
            yield line(f"  {place(row.file, row.line, row.function)}  {row.code or ''}")
    if own.dimensions:
        yield Heading("Symbols", "sizes and numbers that may vary, and those that were pinned again")
        yield table(
            own.dimensions,
            field("what", "text", "source"),
            field("symbol", "text", lambda row: f"{row.symbol} in {row.range}"),
            field(
                "state",
                "text",
                lambda row: Text(row.state, "yellow" if row.state == "specialized" else "green"),
            ),
            field("why", "words", "why"),
        )
    if detail.text_names:
        yield Line()
        yield line(f"texts for --graph: {', '.join(detail.text_names)}", style="dim")


def _frame_facts(own: document.Frame) -> dict[str, str]:
    phases = ", ".join(
        f"{'kernels' if phase == 'triton' else phase} {time:.3f}"
        for phase in palette.PHASES
        if (time := getattr(own, f"{phase}_s"))
    )
    restarts = f", restarted by: {'; '.join(own.restarts)}" if own.restarts else ""
    latency = f", checked in {own.guard_latency_us} µs" if own.guard_latency_us else ""
    return {
        "compiled in": f"{own.compile_s:.3f} s: {phases}",
        "attempts": f"{own.attempts}{restarts}",
        "backend": f"{own.backend}, mode {own.mode}, CUDA graphs {own.cudagraphs}",
        "cache": f"graph {own.cache.fx}, AOTAutograd {own.cache.aot}",
        "guards": "none" if own.guards is None else f"{own.guards}{latency}",
        "failure": own.failure or "",
    }


def _facts(facts: dict[str, str]) -> Labelled:
    known = ((name, value) for name, value in facts.items() if value)
    return Labelled(tuple((Text(name, "dim"), (line(value),)) for name, value in known))


def _guards(tree: document.GuardTree | None) -> Iterable[Block]:
    yield Heading("Guards", "what the compiled code relies on, checked before every call")
    if tree is None:
        yield line("The log has no guards of this compilation.", style="yellow")
        return
    for root in tree.roots:
        yield from _guard(root)
    if tree.latency_us is not None:
        yield line(f"{tree.checks} checks, {tree.latency_us:g} µs a call", style="dim")


def _guard(guard: document.Guard) -> Iterable[Block]:
    indent = 2 * guard.depth
    if guard.is_check:
        where = f"  {place(guard.file, guard.line)}" if guard.file else ""
        yield line(f"✓ {guard.words}", Text(where, "dim"), indent=indent)
    elif guard.depth:
        yield line(guard.words, style="bold", indent=indent)
    for child in guard.children:
        yield from _guard(child)


def _bytecode(code: document.FrameBytecode | None) -> Iterable[Block]:
    yield Heading("Bytecode", "before Dynamo | after")
    if code is None:
        unknown = "The log has no bytecode: torch writes it from 2.13 on; `kinetoscope run` always does."
        yield line(unknown, style="yellow")
        return
    yield table(
        zip_longest(code.before, code.after),
        *(
            column
            for side in (0, 1)
            for column in (
                field(
                    "line",
                    "number",
                    lambda row, side=side: str(row[side].line or "") if row[side] else "",
                    "dim",
                ),
                field("opcode", "text", lambda row, side=side: row[side].opcode if row[side] else ""),
                field("operand", "name", lambda row, side=side: _operand(row[side])),
            )
        ),
    )
    used = {i.opcode: i.meaning for i in (*code.before, *code.after) if i.meaning}
    yield Heading("Opcodes")
    yield table(
        sorted(used),
        field("", "text", lambda opcode: Text(opcode, "dim")),
        field("", "words", lambda opcode: used[opcode]),
    )


def _operand(instruction: document.Instruction | None) -> str:
    if instruction is None:
        return ""
    return (instruction.operand if instruction.operand is not None else instruction.argument) or ""


def _graph(graph: document.CompiledGraph, meanings: dict[str, str]) -> Iterable[Block]:
    cost = f", {numbers.time(graph.device_time_us)} on the device" if graph.device_time_us else ""
    if graph.speed_of_light is not None and graph.costed_us and graph.device_time_us:
        part = graph.costed_us / graph.device_time_us
        of = "" if part > 0.99 else f" in {numbers.percent(part)} of that time"
        cost += f", {numbers.percent(graph.speed_of_light)} of the device's peak{of}"
    yield Heading(f"{graph.direction} graph", f"{numbers.count(graph.ops, 'op')}{cost}")
    yield table(
        list(graph.op_counts)[:OPS],
        field("", "number", lambda op: f"{graph.op_counts[op]} ×"),
        field("", "text", lambda op: Text(op, "", "op", op)),
        field("", "words", lambda op: meanings.get(op, ""), "dim"),
    )
    yield from _partition(graph)
    for call in graph.extern:
        lines = ", ".join(place(s.file, s.line) for s in call.source[:3])
        time = f"  {numbers.time(call.device_time_us)}" if call.device_time_us else ""
        yield line(f"{call.calls} × {call.name}{time}  {lines}", style="dim")


def _partition(graph: document.CompiledGraph) -> Iterable[Block]:
    if graph.saved:
        kept = f"saved for backward: {numbers.count(len(graph.saved), 'tensor')}, {_size(graph.saved_bytes)}"
        donated = sum(tensor.donated is True for tensor in graph.saved)
        yield line(kept + (f"; the backward may write over {donated} of them (donated)" if donated else ""))
        for tensor in sorted(graph.saved, key=lambda t: -(t.bytes or 0))[:SAVED]:
            yield line(_tensor(tensor) + (" donated" if tensor.donated else ""), style="dim", indent=4)
    if graph.rematerialised:
        again = numbers.count(len(graph.rematerialised), "node")
        not_saved = _size(graph.rematerialised_bytes)
        yield line(f"computed again in the backward: {again}, which saves {not_saved} of memory")
        largest = sorted(graph.rematerialised, key=lambda n: (-(n.spared_bytes or 0), -(n.bytes or 0)))
        for node in largest[:SAVED]:
            remark = "" if node.spared_bytes != 0 else " (would not be saved either)"
            yield line(f"{_tensor(node)} {node.op}{remark}", style="dim", indent=4)
    if graph.partitioner and (given := graph.partitioner.changed()):
        yield line(f"the partitioner was given: {', '.join(f'{k} = {v}' for k, v in given.items())}")


def _tensor(tensor: document.SavedForBackward | document.Rematerialised) -> str:
    size = numbers.size(tensor.bytes) if tensor.bytes is not None else "?"
    return f"{tensor.name} {tensor.dtype}[{', '.join(tensor.shape)}] {size}"


def _size(total: int | None) -> str:
    return "a size that depends on the input" if total is None else numbers.size(total)


def _fusion(graph: document.CompiledGraph) -> Iterable[Block]:
    if graph.fusion is None:
        unknown = "fusion: not recorded (`kinetoscope run` records it, or TORCH_LOGS=fusion)"
        yield line(unknown, style="yellow")
        return
    for number, round_ in enumerate(graph.fusion.rounds, 1):
        yield line(f"fusion round {number}: {round_.before} nodes into {round_.after}")
    if (cut := graph.fusion.partitions) and cut.cudagraphable + cut.others > 1:
        yield line(f"CUDA graphs: {cut.cudagraphable} parts can be captured, {cut.others} cannot")
        yield from (line(why, style="yellow", indent=2) for why in cut.reasons[:NOT_FUSED])
    for pair in graph.fusion.fused:
        yield line(f"fused {pair}", style="green", indent=2)
    for why in graph.fusion.not_fused[:NOT_FUSED]:
        yield line(f"{why.count} not fused: {why.why} ({'; '.join(why.examples[:3])})", indent=2)


def _texts(name: str, texts: tuple[str, ...], others: tuple[str, ...]) -> Iterable[Block]:
    if not texts:
        yield line(f"no {name} here; there are: {', '.join(others)}", style="yellow")
    for text in texts:
        yield Heading(name)
        yield Code(text, "python")


def _kernel_facts(own: document.CompiledKernel, meanings: dict[str, str]) -> dict[str, str]:
    calls = numbers.count(own.calls, "call")
    ops = (f"{op} ({meanings[op]})" if op in meanings else op for op in own.aten_ops)
    moved, shared = own.bytes, own.shared_memory_bytes
    config = f"{own.config} ({own.autotune})" if own.config and own.autotune else None
    return {
        "graph": f"{own.compile_id} {own.direction}, {own.category}, {calls}",
        "on the device": _times(own),
        "speed": _speed(own),
        "computes": ", ".join(ops),
        "fused nodes": ", ".join(own.nodes),
        "moves": f"{numbers.size(moved)} a launch ({own.bytes_basis})" if moved else "",
        "registers": f"{own.registers} a thread" if own.registers else "",
        "spills": _spills(own),
        "shared memory": f"{numbers.size(shared)} a block" if shared else "",
        "config": config or own.config or own.autotune or "",
        "compiled in": numbers.time(own.compile_us) if own.compile_us else "",
        "file": own.path or "",
    }


def _times(own: document.CompiledKernel) -> str:
    if not own.launches:
        return ""
    time = own.device_time_us or 0.0
    return (
        f"{numbers.time(time)} in {numbers.count(own.launches, 'launch')}, "
        f"{numbers.percent(own.share_of_device_time or 0.0)} of device time, "
        f"{numbers.percent(own.share_of_window or 0.0)} of the steps, "
        f"{numbers.time(time / own.launches)} each"
    )


def _speed(own: document.CompiledKernel) -> str:
    rates = [f"{own.bytes_per_s / 1e9:,.0f} GB/s"] if own.bytes_per_s else []
    rates += [f"{own.flops_per_s / 1e12:,.1f} TFLOP/s"] if own.flops_per_s else []
    if not rates or own.median_us is None:
        return ""
    speed = f"{', '.join(rates)} in {numbers.time(own.median_us)}, the median"
    if own.refused:
        return f"{speed}; refused: over the device's peak, so the count does not hold ({own.bytes_basis})"
    if own.speed_of_light is None:
        return speed
    return f"{speed}: {numbers.percent(own.speed_of_light)} of the device's {own.bound} peak"


def _spills(own: document.CompiledKernel) -> str:
    if own.spills is None:
        return ""
    kept = f"{own.spills} values a thread, kept in memory instead of registers" if own.spills else "none"
    tried = f" ({own.configs_that_spill} of {own.configs} configurations spill)"
    return kept + (tried if own.configs_that_spill and (own.configs or 0) > 1 else "")
