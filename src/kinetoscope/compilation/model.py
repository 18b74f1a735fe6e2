"""The work of torch.compile as inert rows: the contract's ``compilation`` as types.

Rows refer to their frame by ``frame``, the row number in ``Compilation.frames``: a compile id alone is not
unique (``torch.compiler.reset()`` starts again at 0/0, and every rank has its own 0/0). Large texts (graphs,
guards, bytecode, generated code) stay in the log and are read when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # reports hold these rows: they come without what reads logs
    from kinetoscope.compilation.log.read import LogText


class SavedForBackward(msgspec.Struct, frozen=True, kw_only=True):
    """``bytes`` is None where a size is a symbol; ``donated``: the backward may write over its memory, which
    nothing else aliases; None where the log does not say."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    device: str
    bytes: int | None
    donated: bool | None = None


class Rematerialised(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the forward that the backward computes again.

    ``spared_bytes``: what would else be saved for it; 0 of views (their base counts) and of what only other
    such nodes read; None where a size is a symbol.
    """

    name: str
    op: str
    dtype: str
    shape: tuple[str, ...]
    device: str
    bytes: int | None
    spared_bytes: int | None


class PartitionerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of min-cut: torch._functorch.config as the compilation's log has it, None where silent."""

    activation_memory_budget: float | None = None
    aggressive_recomputation: bool | None = None
    recompute_views: bool | None = None
    treat_parameters_as_free_to_save: bool | None = None
    max_dist_from_bw: int | None = None
    ban_recompute_used_far_apart: bool | None = None
    ban_recompute_long_fusible_chains: bool | None = None
    ban_recompute_materialized_backward: bool | None = None
    ban_recompute_not_in_allowlist: bool | None = None
    ban_recompute_reductions: bool | None = None

    def changed(self) -> dict[str, bool | float]:
        """The settings that differ from torch's defaults."""
        default, given = msgspec.structs.asdict(DEFAULTS), msgspec.structs.asdict(self)
        return {name: value for name, value in given.items() if value is not None and value != default[name]}


DEFAULTS = PartitionerSettings(
    activation_memory_budget=1.0,
    aggressive_recomputation=False,
    recompute_views=False,
    treat_parameters_as_free_to_save=True,
    max_dist_from_bw=1000,
    ban_recompute_used_far_apart=True,
    ban_recompute_long_fusible_chains=True,
    ban_recompute_materialized_backward=True,
    ban_recompute_not_in_allowlist=True,
    ban_recompute_reductions=True,
)


class CompileRow(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all rows: inert, and compared by value."""


class StackLine(CompileRow, frozen=True, kw_only=True):
    file: str
    line: int
    function: str
    code: str | None = None


class SourceLine(CompileRow, frozen=True, kw_only=True):
    file: str
    line: int
    code: str
    function: str | None = None


class Dimension(CompileRow, frozen=True, kw_only=True):
    """A size or number that became a symbol, and whether it stayed one."""

    source: str
    symbol: str
    value: str
    range: str
    state: str  # dynamic | specialized
    why: str
    file: str | None = None
    line: int | None = None
    code: str | None = None


class CacheState(CompileRow, frozen=True, kw_only=True):
    fx: str = "off"
    aot: str = "off"


class Frame(CompileRow, frozen=True, kw_only=True):
    """One compilation of one Python frame (all its attempts).

    The ``*_s`` phases are seconds, each without the phases inside it, and add up to ``compile_s``;
    ``backward_s`` is everything spent on the backward graph. ``autotune_s`` includes what was tuned at the
    first call.
    """

    index: int
    compile_id: str
    rank: int
    generation: int
    function: str | None
    file: str | None
    line: int | None
    status: str  # ok | failed | skipped | unfinished
    attempts: int
    restarts: tuple[str, ...]
    compile_s: float
    dynamo_s: float
    aot_s: float
    inductor_s: float
    codegen_s: float
    triton_s: float
    autotune_s: float
    cudagraphs_s: float
    backward_s: float
    backend: str
    mode: str
    guards: int | None
    guard_latency_us: int | None
    dynamo_ops: int | None
    cudagraphs: str
    cudagraphs_skipped: str | None = None  # why, where they were requested
    cache: CacheState
    failure: str | None
    stack: tuple[StackLine, ...]
    dimensions: tuple[Dimension, ...]
    device_time_us: float | None = None
    launches: int | None = None
    share_of_device_time: float | None = None
    share_of_window: float | None = None
    speed_of_light: float | None = None  # of the part that costed_us of its device time is
    costed_us: float | None = None


class PhaseSpan(CompileRow, frozen=True, kw_only=True):
    """When a phase of a frame ran, without what ran inside of it, from the first such moment of all logs."""

    frame: int
    phase: str
    start_s: float
    duration_s: float


class GraphBreak(CompileRow, frozen=True, kw_only=True):
    frame: int | None
    compile_id: str | None
    file: str | None
    line: int | None
    function: str | None
    code: str | None
    reason: str
    explanation: str
    hints: tuple[str, ...]
    context: str | None
    url: str | None
    skipped_frame: bool
    count: int
    cost_s: float
    sources: tuple[str, ...]  # artifact | metrics | counters
    # What a recording shows where the rest of the function is entered (analysis/compiled/break_costs.py).
    crossings: int | None = None
    idle_us: float | None = None
    eager_launches: int | None = None
    graph_launches: int | None = None
    fusable_launches: int | None = None
    extra_launches: int | None = None
    extra_launches_per_step: float | None = None


class Reason(CompileRow, frozen=True, kw_only=True):
    """A guard of an earlier compilation (``of``) that this call failed."""

    of: str
    guard: str
    kind: str
    subject: str | None = None
    dimension: int | None = None
    expected: str | None = None
    actual: str | None = None
    file: str | None = None
    line: int | None = None
    code: str | None = None


class Recompilation(CompileRow, frozen=True, kw_only=True):
    frame: int
    compile_id: str
    function: str | None
    file: str | None
    line: int | None
    reasons: tuple[Reason, ...]
    cost_s: float
    advice: str
    limit_hit: bool
    count: int = 1
    limit: int = 8
    """Compilations of one code object that the configuration allows; torch's default where it is silent."""


class Failure(CompileRow, frozen=True, kw_only=True):
    frame: int
    compile_id: str
    function: str | None
    type: str
    reason: str
    explanation: str
    hints: tuple[str, ...]
    url: str | None
    effect: str
    runs_eagerly: bool = False
    hit_limit: bool = False  # of recompilations
    file: str | None
    line: int | None
    code: str | None
    stack: tuple[StackLine, ...] = ()


class FusionRound(CompileRow, frozen=True, kw_only=True):
    before: int
    after: int


class NotFused(CompileRow, frozen=True, kw_only=True):
    why: str
    count: int
    examples: tuple[str, ...]


class Partitions(CompileRow, frozen=True, kw_only=True):
    """How Inductor cut a graph for CUDA graphs: parts that can be captured, others, and why those cannot."""

    cudagraphable: int
    others: int
    reasons: tuple[str, ...] = ()


class Fusion(CompileRow, frozen=True, kw_only=True):
    """Decisions of Inductor's scheduler on one graph's nodes."""

    rounds: tuple[FusionRound, ...] = ()
    fused: tuple[str, ...] = ()
    not_fused: tuple[NotFused, ...] = ()
    partitions: Partitions | None = None


class CallCost(CompileRow, frozen=True, kw_only=True):
    """The least that one call takes: ``dtype`` names the peak that bounds its FLOPs (``fp32`` is ``tf32``
    where the kernel that runs rounds first)."""

    flops: int
    bytes: int
    dtype: str


class ExternCall(CompileRow, frozen=True, kw_only=True):
    """Calls of a library's kernels (cuBLAS, cuDNN, ATen fallback) in a generated module.

    ``op`` is the name that the trace has for them (``aten::mm``); ``source`` holds the lines of all calls,
    ``places`` those of each call in order, ``costs`` what each takes at least (matrix products of known
    shapes).
    """

    name: str
    op: str
    calls: int
    aten_ops: tuple[str, ...]
    source: tuple[SourceLine, ...]
    places: tuple[tuple[SourceLine, ...], ...]
    costs: tuple[CallCost | None, ...] = ()
    device_time_us: float | None = None
    launches: int | None = None


class CompiledGraph(CompileRow, frozen=True, kw_only=True):
    """One graph that a backend turned into code."""

    index: int
    frame: int
    compile_id: str
    direction: str  # forward | backward | inference
    aot_id: str | None
    ops: int
    op_counts: dict[str, int]
    module: str | None
    key: str | None
    cache: str
    kernels: int
    extern: tuple[ExternCall, ...]
    saved: tuple[SavedForBackward, ...]
    saved_bytes: int | None
    fusion: Fusion | None
    calls: int | None = None  # how often the trace shows it called
    extern_device_time_us: float | None = None  # the part of device_time_us that library kernels took
    device_time_us: float | None = None
    launches: int | None = None
    share_of_device_time: float | None = None
    share_of_window: float | None = None
    speed_of_light: float | None = None  # of the part that costed_us of its device time is
    costed_us: float | None = None
    rematerialised: tuple[Rematerialised, ...] = ()  # of a forward: what its backward computes again
    rematerialised_bytes: int | None = None  # that would else be saved; None also where a graph is not logged
    partitioner: PartitionerSettings | None = None


class CompiledKernel(CompileRow, frozen=True, kw_only=True):
    name: str
    symbol: str
    category: str
    graph: int
    frame: int
    compile_id: str
    direction: str
    aot_id: str | None
    handle: str | None
    language: str
    path: str | None
    calls: int
    aten_ops: tuple[str, ...]
    ops_basis: str | None
    nodes: tuple[str, ...]
    source: tuple[SourceLine, ...]
    source_basis: str | None
    size_hints: dict[str, int] | None
    bytes: int | None
    bytes_basis: str | None
    flops: int | None
    configs: int | None
    config: str | None
    autotune: str | None
    compile_us: int | None
    # Of the configuration that runs; of all that were tried, how many keep values in memory.
    registers: int | None = None
    spills: int | None = None
    shared_memory_bytes: int | None = None
    configs_that_spill: int | None = None
    device_time_us: float | None = None
    launches: int | None = None
    share_of_device_time: float | None = None
    share_of_window: float | None = None
    # analysis.compiled_speed
    dtype: str | None = None
    median_us: float | None = None
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    speed_of_light: float | None = None
    bound: str | None = None  # memory | compute
    refused: bool = False


class LineTime(CompileRow, frozen=True, kw_only=True):
    """Device time of the kernels, generated ones and libraries', that compute (part of) one line.

    A fused kernel counts for each of its lines, so the column adds up to more than the total; ``own_us`` is
    the time of kernels that compute this line alone. ``kernels`` counts distinct ones. ``library_us`` has the
    part of libraries' kernels, by the op that calls them: the rest is of generated ones.
    """

    file: str
    line: int
    code: str
    device_time_us: float
    own_us: float
    kernels: int
    share_of_device_time: float
    share_of_window: float
    speed_of_light: float | None = None  # of the part that costed_us of its device time is
    costed_us: float | None = None
    library_us: dict[str, float] = {}


class Autotune(CompileRow, frozen=True, kw_only=True):
    """A choice among implementations of one matmul or convolution, with times in ms."""

    frame: int
    compile_id: str
    op: str
    shape: str | None
    dtypes: str | None
    choices: int | None
    best: str | None
    best_ms: float | None
    best_triton: str | None
    best_triton_ms: float | None


class Counts(CompileRow, frozen=True, kw_only=True):
    hit: int = 0
    miss: int = 0
    bypass: int = 0


NOTHING = Counts()


class LogSource(CompileRow, frozen=True, kw_only=True):
    path: str
    bytes: int
    records: int
    rank: int
    damages: dict[str, int]


# Identity: analyses remember their result per compilation.
class CompiledProgram(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The content of the compile logs of one run."""

    torch: str | None = None
    sources: tuple[LogSource, ...] = ()
    frames: tuple[Frame, ...] = ()
    stretches: tuple[PhaseSpan, ...] = ()
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompilations: tuple[Recompilation, ...] = ()
    failures: tuple[Failure, ...] = ()
    graphs: tuple[CompiledGraph, ...] = ()
    kernels: tuple[CompiledKernel, ...] = ()
    autotune: tuple[Autotune, ...] = ()
    fx_cache: Counts = NOTHING
    aot_cache: Counts = NOTHING
    notes: tuple[str, ...] = ()
    # (frame, name): dynamo, joint, forward, backward, inference, guards, bytecode, modified bytecode, …
    texts: Mapping[tuple[int, str], LogText] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    # graph: its post-grad graph and its generated module
    post_grad: Mapping[int, LogText] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    modules: Mapping[int, LogText] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    # graph: the record of its cache key and the key's components
    cache_records: Mapping[int, LogText] = msgspec.field(default_factory=lambda: MappingProxyType({}))


class Guard(CompileRow, frozen=True, kw_only=True):
    """One check, or one object (``kind`` ends in GuardManager) whose checks are its children."""

    depth: int
    kind: str
    subject: str | None
    check: str
    words: str
    file: str | None
    line: int | None
    code: str | None
    children: tuple[Guard, ...] = ()

    @property
    def is_check(self) -> bool:
        return not self.kind.endswith("Manager")


class GuardTree(CompileRow, frozen=True, kw_only=True):
    roots: tuple[Guard, ...]
    checks: int
    latency_us: float | None


class Instruction(CompileRow, frozen=True, kw_only=True):
    line: int | None
    offset: int | None
    opcode: str
    argument: str | None
    operand: str | None
    meaning: str


class ComponentChange(CompileRow, frozen=True, kw_only=True):
    """One component of a graph's cache key, in both logs; None: not there."""

    component: str
    before: str | None
    after: str | None


class KeyChange(CompileRow, frozen=True, kw_only=True):
    """Two logs' cache keys of the same graph; no ``changes`` where the log names no components."""

    compile_id: str
    direction: str
    before_key: str | None
    after_key: str | None
    changes: tuple[ComponentChange, ...]
