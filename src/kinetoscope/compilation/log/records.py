"""The records that are understood, as types. Whatever else a record carries is skipped by the decoder."""

from __future__ import annotations

import re

import msgspec

RUNNABLE_VERSION = re.compile(rb"# torch version: (\S+)")


class Stack(msgspec.Struct, frozen=True):
    line: int = 0
    name: str = ""
    filename: int = -1
    loc: str | None = None


class Arguments(msgspec.Struct, frozen=True):
    """The arguments of torch's regions that are read anywhere."""

    # *_template_autotuning
    autotune_choices_stats: str | None = None
    autotune_shape: str | None = None
    autotune_dtypes: str | None = None
    # automatic_dynamic
    name: str | None = None
    dim_changed: int | str | None = None
    reason: str | None = None
    cached: str | None = None
    new: str | None = None


class RegionEvent(msgspec.Struct, frozen=True):
    """One chromium event of the log; ``ts`` in microseconds, ``ph`` B(egin), E(nd) or i(nstant)."""

    name: str
    ts: float = 0.0
    ph: str = ""
    args: Arguments | None = None


class Started(msgspec.Struct, frozen=True):
    stack: list[Stack] = []


class Metrics(msgspec.Struct, frozen=True):
    """``compilation_metrics`` and its three siblings (backward, and what happened at run time)."""

    compile_id: str | None = None
    co_name: str | None = None
    co_filename: str | None = None
    co_firstlineno: int | None = None
    guard_count: int | None = None
    graph_op_count: int | None = None
    entire_frame_compile_time_s: float | None = None
    dynamo_cumulative_compile_time_us: int | None = None
    aot_autograd_cumulative_compile_time_us: int | None = None
    inductor_cumulative_compile_time_us: int | None = None
    inductor_code_gen_cumulative_compile_time_us: int | None = None
    triton_compile_time_us: int | None = None
    dynamo_time_before_restart_s: float | None = None
    fail_type: str | None = None
    fail_reason: str | None = None
    fail_user_frame_filename: str | None = None
    fail_user_frame_lineno: int | None = None
    restart_reasons: list[str] | None = None
    has_guarded_code: bool | None = None
    config_suppress_errors: bool | None = None
    dynamo_config: str | None = None
    cudagraph_skip_reason: str | None = None
    runtime_cudagraphify_time_us: int | None = None
    guard_latency_us: int | None = None
    recompile_reason: str | None = None
    pytorch_version: str | None = None


class OutputCode(msgspec.Struct, frozen=True):
    filename: str | None = None
    file_path: str | None = None


class Symbol(msgspec.Struct, frozen=True):
    symbol: str = ""
    val: str = ""
    vr: str = ""
    source: str = ""
    user_stack: list[Stack] = []


class Added(msgspec.Struct, frozen=True):
    expr: str = ""
    user_stack: list[Stack] = []


class Specialized(msgspec.Struct, frozen=True):
    symbol: str = ""
    value: str = ""
    reason: str = ""
    user_stack: list[Stack] | None = None


class Header(msgspec.Struct, frozen=True):
    """A record's header: one of these, named by the record's kind."""

    interned: tuple[str, int] | None = msgspec.field(name="str", default=None)
    dynamo_start: Started | None = None
    compilation_metrics: Metrics | None = None
    bwd_compilation_metrics: Metrics | None = None
    compilation_metrics_runtime: Metrics | None = None
    bwd_compilation_metrics_runtime: Metrics | None = None
    inductor_output_code: OutputCode | None = None
    create_symbol: Symbol | None = None
    guard_added_fast: Added | None = None
    symbolic_shape_specialization: Specialized | None = None


class CacheEvent(msgspec.Struct, frozen=True):
    key: str | None = None


class CacheComponents(msgspec.Struct, frozen=True):
    key: str | None = None
    components: list[str] | None = None


class TorchVersion(msgspec.Struct, frozen=True):
    pytorch_version: str | None = None


class RecordedBackend(msgspec.Struct, frozen=True):
    """Our own record of who compiles a frame: ``capture.torch_private.backend_of``."""

    backend: str = ""
    module: str = ""
    mode: str | None = None
    options: dict[str, bool | str] = {}


class KernelInfo(msgspec.Struct, frozen=True):
    """One kernel of ``triton_kernel_info``; configs are lists of (name, value)."""

    autotune_cache_state: str | None = None
    only_config: list[tuple[str, object]] | None = None
    best_config: list[tuple[str, object]] | None = None
    num_configs: int | None = None
    compile_time_us: int | None = None


class NodeMappings(msgspec.Struct, frozen=True):
    """Inductor's provenance: handles of calls in the generated code → nodes of the post-grad graph."""

    handle_nodes: dict[str, list[str]] | None = msgspec.field(name="cppCodeToPost", default=None)


class AutotuneStats(msgspec.Struct, frozen=True):
    num_choices: int | None = None
    best_kernel: str | None = None
    best_time: float | None = None
    best_triton_kernel: str | None = None
    best_triton_time: float | None = None


header = msgspec.json.Decoder(Header)
event = msgspec.json.Decoder(RegionEvent)
cache_event = msgspec.json.Decoder(CacheEvent)
cache_components = msgspec.json.Decoder(CacheComponents)
torch_version = msgspec.json.Decoder(TorchVersion)
backend = msgspec.json.Decoder(RecordedBackend)
kernel_infos = msgspec.json.Decoder(dict[str, KernelInfo])
autotune_stats = msgspec.json.Decoder(AutotuneStats)
reason_list = msgspec.json.Decoder(list[str])
node_mappings = msgspec.json.Decoder(NodeMappings)
stack_traces = msgspec.json.Decoder(dict[str, list[str]])
