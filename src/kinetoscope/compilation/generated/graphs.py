"""From the gathered records of one generated module to its graph and kernels, with where each came from."""

from __future__ import annotations

import re

import msgspec

from kinetoscope.compilation import aten, fx
from kinetoscope.compilation.breaks import RESUMED
from kinetoscope.compilation.fx import GraphNode
from kinetoscope.compilation.generated import module
from kinetoscope.compilation.generated.module import CalleeCalls, Comment, Definition, InductorModule
from kinetoscope.compilation.log import records
from kinetoscope.compilation.log.draft import FrameDraft, GraphDraft
from kinetoscope.compilation.log.read import LogRecord
from kinetoscope.compilation.log.records import KernelInfo
from kinetoscope.compilation.model import CompiledGraph, CompiledKernel, ExternCall, Fusion, SourceLine

TRACE_LINE = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n\s*(?P<code>[^\n]*)'
)
MATMULS = (".mm.", ".bmm.", ".addmm.", ".baddbmm.")
TARGET = re.compile(r"^torch\.ops\.(\w+\.\w+)")


def graph_rows(
    frame: FrameDraft, draft: GraphDraft, *, index: int, frame_index: int, fusion: Fusion | None
) -> tuple[CompiledGraph, list[CompiledKernel]]:
    log = frame.log
    parsed = module.parse(log.text(draft.output))
    direction = module.direction(parsed.aot_id)
    post_grad = log.text(draft.post_grad) if draft.post_grad else ""
    provenance = Provenance(frame, draft, parsed, post_grad)
    aot = frame.texts.get(direction)
    counts = fx.op_counts(log.text(aot) if aot else post_grad)
    graph = CompiledGraph(
        index=index,
        frame=frame_index,
        compile_id=frame.compile_id,
        direction=direction,
        aot_id=parsed.aot_id,
        ops=sum(counts.values()),
        op_counts=counts,
        module=draft.module,
        key=draft.key,
        cache=draft.cache,
        kernels=len(parsed.kernels),
        extern=tuple(provenance.extern()),
        saved=(),
        saved_bytes=None,
        fusion=fusion,
    )
    if direction == "forward":
        graph = _partitioned(graph, frame)
    kernels = [
        provenance.kernel(definition, graph, draft.kernels.get(definition.name) or KernelInfo())
        for definition in parsed.kernels
    ]
    return graph, kernels


def _partitioned(graph: CompiledGraph, frame: FrameDraft) -> CompiledGraph:
    def text(record: LogRecord | None) -> str | None:
        return frame.log.text(record) if record else None

    forward, backward = text(frame.texts.get("forward")), text(frame.texts.get("backward"))
    saved = fx.saved_tensors(forward, backward)
    again = fx.rematerialised(forward, backward) if forward and backward else None
    settings = frame.partitioner and frame.log.json(frame.partitioner, fx.partitioner_settings)
    return msgspec.structs.replace(
        graph,
        saved=fx.with_donated(saved, backward, text(frame.aot_metadata)),
        saved_bytes=fx.total_bytes([tensor.bytes for tensor in saved]) if saved else None,
        rematerialised=again or (),
        rematerialised_bytes=None if again is None else fx.total_bytes([n.spared_bytes for n in again]),
        partitioner=settings,
    )


def op_name(callee: str) -> str:
    """``aten::convolution_backward`` of ``torch.ops.aten.convolution_backward.default``; ``aten::mm`` of
    ``extern_kernels.mm``; the profiler's name for the op that such a call runs."""
    library, _, rest = callee.removeprefix("torch.ops.").partition(".")
    return f"{'aten' if library == 'extern_kernels' else library}::{rest.split('.')[0]}"


class Provenance:
    """Which nodes of the post-grad graph, and so which ops and lines, each kernel of one module computes.

    Three sources, the surest first: the graph fragment that Inductor writes above a Triton kernel; torch's
    node mapping and its stack traces. The latter two are contaminated on 2.9 to 2.15 (a backward compiled at
    its first call inherits the kernels of every graph compiled before it), so only the handles that the
    module's own code lists are looked up.
    """

    def __init__(self, frame: FrameDraft, draft: GraphDraft, parsed: InductorModule, post_grad: str) -> None:
        log = frame.log
        self.calls: dict[str, CalleeCalls] = {call.name: call for call in parsed.calls}
        self.kernel_names = {definition.name for definition in parsed.kernels}
        self.backward = module.direction(parsed.aot_id) == "backward"
        self.post_grad = post_grad
        resumed = RESUMED.match((frame.metrics and frame.metrics.co_name) or "")
        self.resumed_at = (resumed["function"], int(resumed["line"])) if resumed else None
        self.nodes: dict[str, GraphNode] = {node.name: node for node in fx.nodes(post_grad)}
        dynamo = frame.texts.get("dynamo")
        self.dynamo: dict[str, GraphNode] = {n.name: n for n in fx.nodes(log.text(dynamo))} if dynamo else {}
        # Files of this program, to tell its lines from those that a cache hit brings along.
        self.files: set[str] = (
            {n.source.file for n in self.dynamo.values() if n.source} if draft.cache == "hit" else set()
        )
        mapping = log.json(draft.mappings, records.node_mappings) if draft.mappings else None
        self.handle_nodes: dict[str, list[str]] = {
            handle: names
            for handle, names in ((mapping and mapping.handle_nodes) or {}).items()
            if handle in parsed.handles
        }
        traces = log.json(draft.traces, records.stack_traces) if draft.traces else None
        self.traces = {handle: t for handle, t in (traces or {}).items() if handle in parsed.handles}

    def kernel(self, definition: Definition, graph: CompiledGraph, info: KernelInfo) -> CompiledKernel:
        call = self.calls.get(definition.name)
        names = definition.nodes or self._mapped(call)
        source, basis = self._source(names, call)
        ops, ops_basis = self._ops_of(definition, call, names)
        tuned = info.best_config or info.only_config
        return CompiledKernel(
            name=definition.name,
            symbol=definition.symbol,
            category=definition.category,
            graph=graph.index,
            frame=graph.frame,
            compile_id=graph.compile_id,
            direction=graph.direction,
            aot_id=graph.aot_id,
            handle=next(iter(call.handles), None) if call else None,
            language=definition.language,
            path=definition.path,
            calls=call.count if call else 0,
            aten_ops=ops,
            ops_basis=ops_basis,
            nodes=names,
            source=source,
            source_basis=basis,
            size_hints=definition.size_hints,
            bytes=definition.bytes if definition.bytes is not None else (call.bytes if call else None),
            bytes_basis=(
                "Inductor's estimate, too high for cat"
                if definition.bytes is not None
                else "every argument whole, once: an upper bound"
                if call and call.bytes is not None
                else None
            ),
            flops=definition.flops or self._flops(names),
            dtype=definition.dtype,
            configs=info.num_configs if info.num_configs is not None else (1 if info.only_config else None),
            config=", ".join(f"{name}={value}" for name, value in tuned) if tuned else None,
            autotune=info.autotune_cache_state,
            compile_us=info.compile_time_us,
        )

    def _flops(self, names: tuple[str, ...]) -> int | None:
        """FLOPs of the matrix products that the kernel computes."""
        if not any(target in self.nodes[n].target for n in names if n in self.nodes for target in MATMULS):
            return None
        products = fx.matrix_products(self.post_grad)
        found = [products.get(name) for name in names if name in products]
        return sum(f for f in found if f is not None) if found and None not in found else None

    def _ops_of(
        self, definition: Definition, call: CalleeCalls | None, names: tuple[str, ...]
    ) -> tuple[tuple[str, ...], str | None]:
        if ops := definition.aten_ops or (call.aten_ops if call else ()):
            return ops, "Inductor's comment"
        if ops := self._ops(names):
            return ops, "graph"
        known = {node.target.split(".")[-2] for node in self.nodes.values() if node.target.count(".") > 2}
        ops = aten.ops_in_name(definition.name, known)
        return ops, "kernel name" if ops else None

    def extern(self) -> list[ExternCall]:
        rows: list[ExternCall] = []
        for name, call in self.calls.items():
            if name in self.kernel_names:
                continue
            # Inductor lists the views and casts before the call too, in order: the call itself is the last.
            own = [
                Comment(aten_ops=c.aten_ops[-1:], source_nodes=c.source_nodes[-1:], handles=c.handles)
                for c in call.comments
            ]
            places = tuple(self._source(self._mapped(comment), comment)[0] for comment in own)
            rows.append(
                ExternCall(
                    name=name,
                    op=op_name(name),
                    calls=call.count,
                    aten_ops=tuple(dict.fromkeys(op for comment in own for op in comment.aten_ops))
                    or self._ops(self._mapped(call)),
                    source=tuple(dict.fromkeys(line for lines in places for line in lines)),
                    places=places,
                    costs=tuple(comment.cost for comment in call.comments),
                )
            )
        return rows

    def _mapped(self, call: CalleeCalls | Comment | None) -> tuple[str, ...]:
        handles = call.handles if call else ()
        return tuple(dict.fromkeys(name for h in handles for name in self.handle_nodes.get(h, ())))

    def _ops(self, names: tuple[str, ...]) -> tuple[str, ...]:
        targets = (TARGET.match(node.target) for name in names if (node := self.nodes.get(name)))
        return tuple(dict.fromkeys(target[1] for target in targets if target))

    def _source(
        self, names: tuple[str, ...], call: CalleeCalls | Comment | None
    ) -> tuple[tuple[SourceLine, ...], str | None]:
        """The user's lines, in the order of the graph, and what says so."""
        lines, basis = self._lines(names, call)
        # Torch gives nodes that its passes make the place that the rest of a broken function was called from.
        lines = tuple(line for line in lines if (line.function, line.line) != self.resumed_at) or lines
        if basis and self.files and not any(line.file in self.files for line in lines):
            # Code out of the cache carries the lines of whoever compiled it first.
            basis = f"{basis} of the program that filled the cache"
        return lines, basis

    def _lines(
        self, names: tuple[str, ...], call: CalleeCalls | Comment | None
    ) -> tuple[tuple[SourceLine, ...], str | None]:
        lines = [node.source for name in names if (node := self.nodes.get(name)) and node.source]
        if lines:
            return tuple(dict.fromkeys(lines)), "graph"
        traced = [
            SourceLine(file=m["file"], line=int(m["line"]), code=m["code"].strip(), function=m["function"])
            for handle in (call.handles if call else ())
            for trace in self.traces.get(handle, ())
            for m in [*TRACE_LINE.finditer(trace)][-1:]
        ]
        if traced:
            return tuple(dict.fromkeys(traced)), "stack traces"
        # Inductor's comment names nodes of Dynamo's graph; of a backward, which Dynamo never saw, its own.
        known = {**self.dynamo, **self.nodes} if self.backward else {**self.nodes, **self.dynamo}
        named = [
            node.source
            for name in (call.source_nodes if call else ())
            if (node := known.get(name)) and node.source
        ]
        return tuple(dict.fromkeys(named)), "source nodes" if named else None
