"""Gather the records of each compilation: the log's one stream taken apart by frame and by graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field

from kinetoscope.compilation.log import records
from kinetoscope.compilation.log.read import Log, LogRecord
from kinetoscope.compilation.log.records import KernelInfo, Metrics, RegionEvent, Stack, Symbol
from kinetoscope.recording.manifest import UNREADABLE

# Artifacts and records that are kept as texts of their frame, and the name by which a command takes them.
TEXTS = {
    "dynamo_output_graph": "dynamo",
    "dynamo_cpp_guards_str": "guards",
    "aot_joint_graph": "joint",
    "aot_forward_graph": "forward",
    "aot_backward_graph": "backward",
    "aot_inference_graph": "inference",
    "before_pre_grad_graph": "before_pre_grad",
    "after_pre_grad_graph": "after_pre_grad",
    "before_joint_graph": "before_joint",
    "after_joint_graph": "after_joint",
    "fx_graph_runnable": "runnable",
    "dynamo_error": "error",
    "optimize_ddp_split_graph": "ddp_split",
    "compiled_autograd_graph": "compiled_autograd",
}
POST_GRAD = {"inductor_post_grad_graph", "after_post_grad_graph"}


class GraphDraft(Struct, eq=False):
    """The records of one generated module, from its post-grad graph to its cache key."""

    output: LogRecord
    module: str | None
    post_grad: LogRecord | None
    key: str | None = None
    cache: str = "off"
    cache_record: LogRecord | None = None
    mappings: LogRecord | None = None
    traces: LogRecord | None = None
    kernels: dict[str, KernelInfo] = field(default_factory=dict[str, KernelInfo])


class FrameDraft(Struct, eq=False):
    compile_id: str
    rank: int
    generation: int
    log: Log
    closed: bool = False
    started: bool = False
    attempts: int = 0
    stack: list[Stack] = field(default_factory=list[Stack])
    metrics: Metrics | None = None
    later_metrics: list[Metrics] = field(default_factory=list[Metrics])
    events: list[RegionEvent] = field(default_factory=list[RegionEvent])
    reasons: list[LogRecord] = field(default_factory=list[LogRecord])
    breaks: list[LogRecord] = field(default_factory=list[LogRecord])
    symbols: list[Symbol] = field(default_factory=list[Symbol])
    guards_added: list[records.Added] = field(default_factory=list[records.Added])
    specialized: list[records.Specialized] = field(default_factory=list[records.Specialized])
    fx_cache: Counter[str] = field(default_factory=Counter[str])
    aot_cache: Counter[str] = field(default_factory=Counter[str])
    aot_record: LogRecord | None = None
    backend: records.RecordedBackend | None = None
    graphs: list[GraphDraft] = field(default_factory=list[GraphDraft])
    texts: dict[str, LogRecord] = field(default_factory=dict[str, LogRecord])
    apart: dict[str, str] = field(default_factory=dict[str, str])  # texts that were found outside of the log
    partitioner: LogRecord | None = None
    aot_metadata: LogRecord | None = None
    post_grad: LogRecord | None = None  # since the last generated module, of the next


class LogDraft(Struct, eq=False):
    log: Log
    rank: int
    frames: list[FrameDraft] = field(default_factory=list[FrameDraft])
    names: dict[int, str] = field(default_factory=dict[int, str])
    torch: str | None = None


def gather(log: Log, rank: int | None) -> LogDraft:
    """Sort the log's records by frame. ``rank`` is used where the records do not say theirs."""
    own = next((r.rank for r in log.records if r.rank is not None), None)
    draft = LogDraft(log, own if own is not None else rank or 0)
    current: dict[str, FrameDraft] = {}
    for record in log.records:
        if record.kind == "str":
            if found := _header(record).interned:
                draft.names[found[1]] = found[0]
        elif record.compile_id is not None:
            frame = _frame(record, draft, current)
            if frame is not None:
                _take(record, frame)
        elif record.artifact == "torch_version":
            version = log.json(record, records.torch_version)
            draft.torch = version.pytorch_version if version else draft.torch
        elif record.kind.endswith("metrics_runtime"):
            _runtime(record, current)
    _name_cached_modules(draft)
    return draft


def _name_cached_modules(draft: LogDraft) -> None:
    """A module out of AOTAutograd's cache comes without a record of its key: the same file had it before."""
    known: dict[str | None, str] = {}
    for graph in (graph for frame in draft.frames for graph in frame.graphs):
        if graph.key is not None:
            known.setdefault(graph.module, graph.key)
        elif graph.module and graph.module in known:
            graph.key, graph.cache = known[graph.module], "hit"


def _header(record: LogRecord) -> records.Header:
    try:
        return records.header.decode(record.header)
    except UNREADABLE:
        return records.Header()


def _frame(record: LogRecord, draft: LogDraft, current: dict[str, FrameDraft]) -> FrameDraft | None:
    """The frame that the record belongs to; a compile id starts anew after ``torch.compiler.reset()``."""
    compile_id = record.compile_id or ""
    frame = current.get(compile_id)
    starts = record.kind == "dynamo_start" or record.artifact == "recompile_reasons"
    event = None
    if record.kind == "chromium_event":
        event = draft.log.json(record, records.event)
        if event is None:
            return None
        starts = event.name == "dynamo" and event.ph == "B"
    again = (
        frame is not None and starts and (frame.closed or (record.kind == "dynamo_start" and frame.started))
    )
    if frame is None or again:
        generation = frame.generation + 1 if frame else 0
        frame = current[compile_id] = FrameDraft(compile_id, draft.rank, generation, draft.log)
        draft.frames.append(frame)
    if event is not None:
        frame.events.append(event)
        return None
    return frame


def _runtime(record: LogRecord, current: dict[str, FrameDraft]) -> None:
    """Run-time metrics name their compilation inside."""
    header = _header(record)
    metrics = header.compilation_metrics_runtime or header.bwd_compilation_metrics_runtime
    if metrics and metrics.compile_id in current:
        current[metrics.compile_id].later_metrics.append(metrics)


def _take(record: LogRecord, frame: FrameDraft) -> None:
    frame.attempts = max(frame.attempts, record.attempt + 1)
    name = record.artifact if record.kind == "artifact" else record.kind
    if name in TEXTS:
        frame.texts[TEXTS[name]] = record
    elif name in POST_GRAD:
        frame.post_grad = record
    elif name.endswith(("_ORIGINAL_BYTECODE", "_MODIFIED_BYTECODE")):
        frame.texts["bytecode" if name.endswith("_ORIGINAL_BYTECODE") else "modified bytecode"] = record
    elif name.startswith(("fx_graph_cache_", "aotautograd_cache_")):
        _take_cache(record, name, frame)
    elif name.startswith("inductor_provenance_tracking_") and frame.graphs:
        if name.endswith("node_mappings"):
            frame.graphs[-1].mappings = record
        else:
            frame.graphs[-1].traces = record
    elif take := TAKERS.get(name):
        take(record, frame)


def _take_cache(record: LogRecord, name: str, frame: FrameDraft) -> None:
    state = name.rpartition("_")[2]
    if state not in ("hit", "miss", "bypass"):
        return
    if name.startswith("aotautograd"):
        frame.aot_cache[state] += 1
        frame.aot_record = record
        return
    frame.fx_cache[state] += 1
    if frame.graphs:
        event = frame.log.json(record, records.cache_event)
        graph = frame.graphs[-1]
        graph.key, graph.cache, graph.cache_record = event.key if event else None, state, record


def _take_header(record: LogRecord, frame: FrameDraft) -> None:
    header = _header(record)
    if record.kind == "dynamo_start":
        frame.started = True
        frame.stack = header.dynamo_start.stack if header.dynamo_start else []
    if header.compilation_metrics:
        frame.metrics, frame.closed = header.compilation_metrics, True
    frame.later_metrics += filter(
        None,
        (
            header.bwd_compilation_metrics,
            header.compilation_metrics_runtime,
            header.bwd_compilation_metrics_runtime,
        ),
    )
    frame.symbols += filter(None, [header.create_symbol])
    frame.guards_added += filter(None, [header.guard_added_fast])
    frame.specialized += filter(None, [header.symbolic_shape_specialization])


def _take_output(record: LogRecord, frame: FrameDraft) -> None:
    code = _header(record).inductor_output_code or records.OutputCode()
    frame.graphs.append(GraphDraft(record, code.file_path or code.filename, frame.post_grad))
    frame.post_grad = None


def _take_kernel_info(record: LogRecord, frame: FrameDraft) -> None:
    if frame.graphs:
        frame.graphs[-1].kernels.update(frame.log.json(record, records.kernel_infos) or {})


def _take_backend(record: LogRecord, frame: FrameDraft) -> None:
    frame.backend = frame.log.json(record, records.backend) or frame.backend


TAKERS: dict[str, Callable[[LogRecord, FrameDraft], None]] = {
    **dict.fromkeys(records.Header.__struct_fields__, _take_header),
    "inductor_output_code": _take_output,
    "triton_kernel_info": _take_kernel_info,
    "kinetoscope_backend": _take_backend,
    "torch._functorch.config": lambda record, frame: setattr(frame, "partitioner", record),
    "aot_forward_graph_fw_metadata": lambda record, frame: setattr(frame, "aot_metadata", record),
    "recompile_reasons": lambda record, frame: frame.reasons.append(record),
    "dynamo_graph_break_reason": lambda record, frame: frame.breaks.append(record),
}
