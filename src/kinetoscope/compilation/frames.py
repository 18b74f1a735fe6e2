"""From the gathered records of one compilation to its row."""

from __future__ import annotations

import re
from typing import Any

from kinetoscope.compilation import breaks, guards, phases
from kinetoscope.compilation.fx import call_count
from kinetoscope.compilation.log.draft import FrameDraft
from kinetoscope.compilation.log.records import Metrics, Stack
from kinetoscope.compilation.model import CacheState, Dimension, Failure, Frame, StackLine

# Frames of torch itself are not the user's stack.
INTERNAL = re.compile(
    r"[/\\](?:torch|torch_npu)[/\\](?:_dynamo|nn[/\\]modules|_functorch|utils|_inductor|autograd)[/\\]"
)
CONFIG = re.compile(rb"^\t?torch\._inductor\.config\.([\w.]+) = (True|False)\s*$", re.M)
CUDAGRAPHS_KEY = re.compile(rb"fx_kwargs\[cudagraphs\]: BoxedBool\(value=(True|False)\)")
BACKEND_FAILED = re.compile(r"backend='([^']+)'")
SPECIALIZED = re.compile(r"^Eq\((?P<symbol>[a-z]+\d+), (?P<value>-?[\d.]+)\)$")
USER_CODE = re.compile(r"^from user code:\n(?P<stack>(?:\s+File .*\n(?:\s+.*\n)?)+)", re.M)
MODULE_HEAD = 1 << 14

MODES = {
    (False, False): "default",
    (False, True): "reduce-overhead",
    (True, True): "max-autotune",
    (True, False): "max-autotune-no-cudagraphs",
}


def frame_row(
    draft: FrameDraft,
    index: int,
    names: dict[int, str],
    function_of: dict[str, Metrics],
    skips: dict[str, str],
) -> Frame:
    """``function_of``: metrics of other compilations by frame id, for records without the function's name."""
    metrics = draft.metrics or Metrics()
    named = metrics if metrics.co_name else function_of.get(draft.compile_id.rpartition("/")[0], metrics)
    stack = stack_lines(draft.stack, names)
    seconds = _seconds(draft)
    phase_seconds: dict[str, Any] = {f"{phase}_s": round(spent, 6) for phase, spent in seconds.items()}
    config = inductor_config(draft)
    guard_text = draft.texts.get("guards")
    failure = metrics.fail_reason
    cudagraphs, skipped = _cudagraphs(draft, config, skips)
    return Frame(
        index=index,
        compile_id=draft.compile_id,
        rank=draft.rank,
        generation=draft.generation,
        function=named.co_name or (stack[-1].function if stack else None),
        file=named.co_filename or (stack[-1].file if stack else None),
        line=named.co_firstlineno or (stack[-1].line if stack else None),
        status=status(draft),
        attempts=max(draft.attempts, 1),
        restarts=tuple(breaks.explain(r).reason for r in metrics.restart_reasons or ()),
        compile_s=round(sum(seconds.values(), 0.0), 6),
        **phase_seconds,
        backend=_backend(draft),
        mode=_mode(draft, config),
        guards=metrics.guard_count
        if metrics.guard_count is not None
        else (guards.count_checks(draft.log.text(guard_text)) if guard_text else None),
        guard_latency_us=metrics.guard_latency_us,
        dynamo_ops=metrics.graph_op_count
        if metrics.graph_op_count is not None
        else (call_count(draft.log.text(draft.texts["dynamo"])) if "dynamo" in draft.texts else None),
        cudagraphs=f"skipped: {skipped}" if skipped else cudagraphs,
        cudagraphs_skipped=skipped,
        cache=CacheState(fx=_worst(draft.fx_cache), aot=_worst(draft.aot_cache)),
        failure=f"{metrics.fail_type}: {breaks.explain(failure or '').reason}" if metrics.fail_type else None,
        stack=stack,
        dimensions=tuple(_dimensions(draft, names)),
    )


def stack_lines(stack: list[Stack], names: dict[int, str]) -> tuple[StackLine, ...]:
    """The user's frames, outermost first; torch's own in between are left out."""
    lines = [
        StackLine(file=names.get(s.filename, f"file {s.filename}"), line=s.line, function=s.name, code=s.loc)
        for s in stack
    ]
    return tuple(line for line in lines if not INTERNAL.search(line.file)) or tuple(lines)


def status(draft: FrameDraft) -> str:
    """ok, failed (the program saw an error), skipped (it ran eagerly), unfinished (the log ends inside)."""
    metrics = draft.metrics
    if metrics is None:
        return "unfinished"
    if metrics.fail_type is None:
        return "skipped" if metrics.has_guarded_code is False else "ok"
    # Dynamo tells of an error that it raises; a frame that it gives up quietly has a break or hit a limit.
    gave_up = bool(draft.breaks) or "error" not in draft.texts or "Skip" in metrics.fail_type
    return "skipped" if gave_up else "failed"


def failure_row(draft: FrameDraft, frame: Frame) -> Failure | None:
    metrics = draft.metrics
    if metrics is None or metrics.fail_type is None:
        return None
    explained = breaks.explain(metrics.fail_reason or "")
    stack = _error_stack(draft)
    at = stack[-1] if stack else None
    limit = breaks.RECOMPILE_LIMIT.search(metrics.fail_reason or "") is not None
    if frame.status == "failed" and metrics.config_suppress_errors:
        effect = "suppress_errors is on: the function runs eagerly"
    elif frame.status == "failed":
        effect = "the call raised this error"
    elif limit:
        effect = "recompile limit: the function runs eagerly from now on"
    else:
        effect = "the function runs eagerly"
    return Failure(
        frame=frame.index,
        compile_id=frame.compile_id,
        function=frame.function,
        type=metrics.fail_type,
        reason=explained.reason,
        explanation=explained.explanation,
        hints=explained.hints,
        url=explained.url,
        effect=effect,
        runs_eagerly=frame.status != "failed" or bool(metrics.config_suppress_errors),
        hit_limit=frame.status != "failed" and limit,
        file=metrics.fail_user_frame_filename or (at.file if at else frame.file),
        line=metrics.fail_user_frame_lineno or (at.line if at else frame.line),
        code=at.code if at else None,
        stack=stack,
    )


def _error_stack(draft: FrameDraft) -> tuple[StackLine, ...]:
    record = draft.texts.get("error")
    found = USER_CODE.search(draft.log.text(record)) if record else None
    return tuple(
        StackLine(file=file, line=int(line), function=function, code=code.strip())
        for file, line, function, code in breaks.USER_FRAME.findall(found["stack"] if found else "")
    )


def _seconds(draft: FrameDraft) -> dict[str, float]:
    """Exclusive seconds by phase, from the timed regions; where a log has none, from the metrics' totals."""
    if draft.events:
        return phases.seconds(phases.regions(draft.events))
    seconds = dict.fromkeys(phases.PHASES, 0.0)
    metrics = draft.metrics
    if metrics is None:
        return seconds
    total = metrics.dynamo_cumulative_compile_time_us or round(
        (metrics.entire_frame_compile_time_s or 0.0) * 1e6
    )
    nested = (
        total,
        metrics.aot_autograd_cumulative_compile_time_us or 0,
        metrics.inductor_cumulative_compile_time_us or 0,
        metrics.inductor_code_gen_cumulative_compile_time_us or 0,
        metrics.triton_compile_time_us or 0,
    )
    for phase, outer, inner in zip(phases.PHASES[:5], nested, (*nested[1:], 0), strict=True):
        seconds[phase] = max(outer - inner, 0) / 1e6
    return seconds


def inductor_config(draft: FrameDraft) -> dict[str, bool] | None:
    """Inductor's switches as the repro script sets them: what differs from the default; None without one."""
    record = draft.texts.get("runnable")
    if record is None:
        return None
    head = draft.log.data[record.start : min(record.end, record.start + MODULE_HEAD)]
    return {name.decode(): value == b"True" for name, value in CONFIG.findall(head)}


def _mode(draft: FrameDraft, config: dict[str, bool] | None) -> str:
    backend = draft.backend
    if backend is not None and backend.backend != "inductor":
        return backend.mode or "none"
    if config is None and backend is not None:
        config = {name: value is True for name, value in backend.options.items()}
    if config is None or not (draft.graphs or backend):
        return "unknown" if draft.graphs else "none"
    return MODES[config.get("max_autotune", False), config.get("triton.cudagraphs", False)]


def _backend(draft: FrameDraft) -> str:
    if draft.backend is not None:
        return draft.backend.backend
    if draft.graphs or "runnable" in draft.texts:
        return "inductor"
    failed = BACKEND_FAILED.search((draft.metrics and draft.metrics.fail_reason) or "")
    if failed:
        return failed[1]
    if draft.texts.keys() & {"forward", "inference", "joint"}:
        return "an AOTAutograd backend (aot_eager, cudagraphs, or another; the log does not name it)"
    if "dynamo" in draft.texts:
        return "a Dynamo backend (eager, or another; the log does not name it)"
    return "none"


def _cudagraphs(
    draft: FrameDraft, config: dict[str, bool] | None, skips: dict[str, str]
) -> tuple[str, str | None]:
    """used, off or skipped, and why skipped."""
    metrics = [m for m in (draft.metrics, *draft.later_metrics) if m]
    why = next((m.cudagraph_skip_reason for m in metrics if m.cudagraph_skip_reason), None)
    why = why or skips.get(draft.compile_id)
    if why:
        return "skipped", why.removeprefix("skipping cudagraphs due to ").strip()
    if (
        (draft.backend is not None and draft.backend.backend == "cudagraphs")
        or any(m.runtime_cudagraphify_time_us for m in metrics)
        or any(e.name.startswith("CUDAGraphNode.record") for e in draft.events)
    ):
        return "used", None
    if not (config or {}).get("triton.cudagraphs") and not _cudagraphs_in_key(draft):
        return "off", None
    code = draft.log.payload(draft.graphs[-1].output) if draft.graphs else b""
    if b"Runner(partitions=[])" in code:
        on_cpu = b"empty_strided_cpu(" in code
        cpu = ": it works on CPU tensors (seen in the generated module)" if on_cpu else ""
        return "skipped", f"no part of the graph could be captured{cpu}"
    # A skip without a known compilation is taken as that of those which requested graphs and got none.
    return "skipped", skips.get("") or "requested, but the log shows no capture"


def _cudagraphs_in_key(draft: FrameDraft) -> bool:
    for record in [g.cache_record for g in draft.graphs] + [draft.aot_record]:
        found = CUDAGRAPHS_KEY.search(draft.log.data, record.start, record.end) if record else None
        if found:
            return found[1] == b"True"
    return False


def _worst(counts: dict[str, int]) -> str:
    return next((state for state in ("bypass", "miss", "hit") if counts.get(state)), "off")


def _dimensions(draft: FrameDraft, names: dict[int, str]) -> list[Dimension]:
    """Sizes and numbers that became symbols, why, and whether a guard pinned them again."""
    why = {
        (e.args.name, str(e.args.dim_changed)): f"{e.args.reason}: {e.args.cached}, then {e.args.new}"
        if "AutoDynamic" not in f"{e.args.cached}{e.args.new}"
        else f"{e.args.reason}, seen before"
        for e in draft.events
        if e.name == "automatic_dynamic" and e.args
    }
    pinned: dict[str, tuple[str, list[Stack]]] = {}
    for added in draft.guards_added:
        if equal := SPECIALIZED.match(added.expr):
            pinned[equal["symbol"]] = (
                f"specialised to {equal['value']}: the code relies on it",
                added.user_stack,
            )
    for special in draft.specialized:
        pinned[special.symbol] = (
            f"specialised to {special.value}: {special.reason}",
            special.user_stack or [],
        )
    rows: dict[str, Dimension] = {}
    for symbol in draft.symbols:
        tensor, _, dimension = symbol.source.partition(".size()[")
        reason = why.get((tensor, dimension.rstrip("]"))) or why.get((tensor, "scalar"))
        state, stack = "dynamic", symbol.user_stack
        if symbol.symbol in pinned:
            state = "specialized"
            reason, stack = pinned[symbol.symbol][0], pinned[symbol.symbol][1] or stack
        lines = stack_lines(stack, names)
        rows[symbol.symbol] = Dimension(
            source=symbol.source,
            symbol=symbol.symbol,
            value=symbol.val,
            range=symbol.vr,
            state=state,
            why=reason or "marked dynamic, or dynamic=True",
            file=lines[-1].file if lines else None,
            line=lines[-1].line if lines else None,
            code=lines[-1].code if lines else None,
        )
    return list(rows.values())
