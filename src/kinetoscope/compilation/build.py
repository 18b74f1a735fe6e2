"""Compile logs in, Compilation out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from kinetoscope.compilation import breaks, frames, model, phases, recompiles
from kinetoscope.compilation.breaks import Occurrence, Place
from kinetoscope.compilation.fusion import SchedulerLog
from kinetoscope.compilation.generated import launchers
from kinetoscope.compilation.generated.graphs import graph_rows
from kinetoscope.compilation.generated.launchers import Loaded
from kinetoscope.compilation.log import records
from kinetoscope.compilation.log.draft import FrameDraft, LogDraft, gather
from kinetoscope.compilation.log.read import Log, LogText, text_of
from kinetoscope.compilation.log.records import Metrics
from kinetoscope.recording.manifest import UNREADABLE

NO_SCHEDULER = SchedulerLog((), ())


class RecordedBytecode(msgspec.Struct, frozen=True, kw_only=True):
    """One function before and after Dynamo, as the recording's hook saw it: ``dis`` listings."""

    function: str
    file: str
    line: int
    original: str
    modified: str


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a recording keeps with a rank's log."""

    scheduler: SchedulerLog = NO_SCHEDULER
    counters: dict[str, dict[str, int]] = {}
    bytecode: tuple[RecordedBytecode, ...] = ()
    loaded: tuple[Loaded, ...] = ()


def build(logs: Iterable[tuple[Log, int | None, Sidecar]]) -> model.CompiledProgram:
    """One Compilation of all ranks' logs, each with its rank where that is known from outside."""
    rows = _Rows()
    for log, rank, sidecar in logs:
        rows.take(gather(log, rank), sidecar)
    return rows.compilation()


class _Rows:
    """The rows of all logs so far, as the lists and mappings that ``CompiledProgram`` has of them."""

    def __init__(self) -> None:
        self.torch: str | None = None
        self.sources: list[model.LogSource] = []
        self.frames: list[model.Frame] = []
        self.spans: list[tuple[int, str, float, float]] = []
        self.occurrences: list[Occurrence] = []
        self.recompilations: list[model.Recompilation] = []
        self.failures: list[model.Failure] = []
        self.graphs: list[model.CompiledGraph] = []
        self.kernels: list[model.CompiledKernel] = []
        self.autotune: list[model.Autotune] = []
        self.notes: list[str] = []
        self.counters, self.fx, self.aot = Counter[str](), Counter[str](), Counter[str]()
        self.texts: dict[tuple[int, str], LogText] = {}
        self.post_grad, self.modules = dict[int, LogText](), dict[int, LogText]()
        self.cache_records: dict[int, LogText] = {}

    def take(self, draft: LogDraft, sidecar: Sidecar) -> None:
        log = draft.log
        self.torch = self.torch or draft.torch or _version(draft)
        self.sources.append(
            model.LogSource(
                path=log.path,
                bytes=len(log.data),
                records=len(log.records),
                rank=draft.rank,
                damages=dict(log.damages),
            )
        )
        for group in ("graph_break", "unimplemented"):
            self.counters.update(sidecar.counters.get(group) or {})
        function_of = {
            f.compile_id.rpartition("/")[0]: f.metrics
            for f in draft.frames
            if f.metrics and f.metrics.co_name
        }
        skips = {compile_id or "": why for compile_id, why in sidecar.scheduler.cudagraph_skips}
        _add_bytecode(draft, sidecar.bytecode)
        fusions = _Fusions(
            sidecar.scheduler, sum(g.cache != "hit" for frame in draft.frames for g in frame.graphs)
        )
        if fusions.mismatch:
            self.notes.append(
                f"{log.path}: the fusion log does not have one entry a graph; fusion is not attributed"
            )
        first = len(self.kernels)
        for frame_draft in draft.frames:
            if not frame_draft.started and frame_draft.metrics is None and not frame_draft.graphs:
                continue  # only events of a compilation whose records were cut off
            self._take_frame(frame_draft, draft, function_of, skips, fusions)
        self.kernels[first:] = launchers.fill(self.kernels[first:], sidecar.loaded)

    def _take_frame(
        self,
        draft: FrameDraft,
        log: LogDraft,
        function_of: dict[str, Metrics],
        skips: dict[str, str],
        fusions: _Fusions,
    ) -> None:
        index = len(self.frames)
        frame = frames.frame_row(draft, index, log.names, function_of, skips)
        self.frames.append(frame)
        self.spans += [(index, *span) for span in phases.spans(phases.regions(draft.events))]
        self.fx.update(draft.fx_cache)
        self.aot.update(draft.aot_cache)
        self.texts.update({(index, name): LogText(draft.log, record) for name, record in draft.texts.items()})
        self.texts.update({(index, name): text_of(name, text) for name, text in draft.apart.items()})
        if failure := frames.failure_row(draft, frame):
            self.failures.append(failure)
        self.occurrences += _occurrences(draft, frame)
        self.recompilations += _recompilations(draft, frame)
        self.autotune += _autotune(draft, frame)
        for graph_draft in draft.graphs:
            row = len(self.graphs)
            fusion = fusions.next(draft.compile_id) if graph_draft.cache != "hit" else None
            graph, kernels = graph_rows(draft, graph_draft, index=row, frame_index=index, fusion=fusion)
            self.graphs.append(graph)
            self.kernels += kernels
            self.modules[row] = LogText(draft.log, graph_draft.output)
            if graph_draft.cache_record:
                self.cache_records[row] = LogText(draft.log, graph_draft.cache_record)
            if graph_draft.post_grad:
                self.post_grad[row] = LogText(draft.log, graph_draft.post_grad)

    def compilation(self) -> model.CompiledProgram:
        return model.CompiledProgram(
            torch=self.torch,
            sources=tuple(self.sources),
            frames=tuple(self.frames),
            stretches=_from_the_first(self.spans),
            graph_breaks=breaks.reconcile(
                self.occurrences, self.counters, {failure.reason for failure in self.failures}
            ),
            recompilations=_merged(self.recompilations),
            failures=tuple(self.failures),
            graphs=tuple(self.graphs),
            kernels=tuple(self.kernels),
            autotune=tuple(self.autotune),
            fx_cache=model.Counts(**self.fx),
            aot_cache=model.Counts(**self.aot),
            notes=(*self._damage_notes(), *self.notes),
            texts=MappingProxyType(self.texts),
            post_grad=MappingProxyType(self.post_grad),
            modules=MappingProxyType(self.modules),
            cache_records=MappingProxyType(self.cache_records),
        )

    def _damage_notes(self) -> Iterable[str]:
        words: Mapping[str, str] = {
            "cut": "the log ends in the middle of a record: later compilations may be missing",
            "checksum": "payloads do not match their checksum: read as they stand",
            "bad-json": "record headers are not JSON: left out",
            "foreign-line": "lines are not torch's: ignored",
        }
        for source in self.sources:
            for code, count in source.damages.items():
                yield f"{source.path}: {words.get(code, code)} ({count})"


def _from_the_first(spans: list[tuple[int, str, float, float]]) -> tuple[model.PhaseSpan, ...]:
    origin = min((start for _, _, start, _ in spans), default=0.0)
    return tuple(
        model.PhaseSpan(
            frame=frame,
            phase=phase,
            start_s=round((start - origin) / 1e6, 6),
            duration_s=round((end - start) / 1e6, 6),
        )
        for frame, phase, start, end in spans
    )


class _Fusions:
    """Hands each graph its fusion: by compile id or, where the text has none, in the order of compilation."""

    def __init__(self, scheduler: SchedulerLog, compiled: int) -> None:
        self.waiting: dict[str, list[model.Fusion]] = {}
        for compile_id, fusion in scheduler.graphs:
            self.waiting.setdefault(compile_id, []).append(fusion)
        unnamed = len(self.waiting.get("", ()))
        # Each compiled graph begins exactly one first round: by another number the order cannot be trusted.
        self.mismatch = unnamed not in (0, compiled)
        if self.mismatch:
            self.waiting.pop("")

    def next(self, compile_id: str) -> model.Fusion | None:
        waiting = self.waiting.get(compile_id) or self.waiting.get("")
        return waiting.pop(0) if waiting else None


def _add_bytecode(draft: LogDraft, seen: Iterable[RecordedBytecode]) -> None:
    """Give frames whose records lack it the bytecode that the hook saw, in the order of compilation."""
    waiting: dict[tuple[str | None, str | None, int | None], list[RecordedBytecode]] = {}
    for bytecode in seen:
        waiting.setdefault((bytecode.function, bytecode.file, bytecode.line), []).append(bytecode)
    for frame in draft.frames:
        metrics = frame.metrics or Metrics()
        found = waiting.get((metrics.co_name, metrics.co_filename, metrics.co_firstlineno))
        if found and "bytecode" not in frame.texts and metrics.has_guarded_code is not False:
            bytecode = found.pop(0)
            frame.apart["bytecode"] = bytecode.original
            frame.apart["modified bytecode"] = bytecode.modified


def _version(draft: LogDraft) -> str | None:
    for frame in draft.frames:
        if frame.metrics and frame.metrics.pytorch_version:
            return frame.metrics.pytorch_version
    for frame in draft.frames:
        record = frame.texts.get("runnable")
        found = records.RUNNABLE_VERSION.search(draft.log.data, record.start, record.end) if record else None
        if found:
            return found[1].decode()
    return None


def _occurrences(draft: FrameDraft, frame: model.Frame) -> Iterable[Occurrence]:
    metrics = draft.metrics or Metrics()
    wasted = frame.compile_s if frame.status == "skipped" else metrics.dynamo_time_before_restart_s or 0.0
    for record in draft.breaks:
        place, explained, skipped = breaks.parse_artifact(draft.log.text(record))
        yield Occurrence(
            frame=frame.index,
            compile_id=frame.compile_id,
            place=place,
            explained=explained,
            skipped_frame=skipped or frame.status == "skipped",
            cost_s=wasted / len(draft.breaks),
            source="artifact",
        )
    reasons = [reason for reason in metrics.restart_reasons or () if breaks.looks_like_break(reason)]
    if frame.status == "skipped" and metrics.fail_reason and breaks.looks_like_break(metrics.fail_reason):
        reasons.append(metrics.fail_reason)
    for reason in reasons:
        failed = reason is metrics.fail_reason
        yield Occurrence(
            frame=frame.index,
            compile_id=frame.compile_id,
            place=Place(
                file=(metrics.fail_user_frame_filename if failed else None) or frame.file,
                line=(metrics.fail_user_frame_lineno if failed else None) or frame.line,
                function=frame.function,
            ),
            explained=breaks.explain(reason),
            skipped_frame=failed,
            cost_s=wasted / len(reasons),
            source="metrics",
        )


def _recompilations(draft: FrameDraft, frame: model.Frame) -> Iterable[model.Recompilation]:
    texts: list[str] = []
    for record in draft.reasons:
        listed = draft.log.json(record, records.reason_list)
        texts += listed if listed is not None else [draft.log.text(record)]
    if not texts and draft.metrics and draft.metrics.recompile_reason:
        texts = [draft.metrics.recompile_reason]
    if not texts:
        return
    reasons = tuple(recompiles.parse(text) for text in texts)
    limit = breaks.RECOMPILE_LIMIT.search((draft.metrics and draft.metrics.fail_reason) or "") is not None
    yield model.Recompilation(
        frame=frame.index,
        compile_id=frame.compile_id,
        function=frame.function,
        file=frame.file,
        line=frame.line,
        reasons=reasons,
        cost_s=frame.compile_s,
        advice=recompiles.advice(reasons, limit_hit=limit),
        limit_hit=limit,
        limit=recompiles.limit(draft.metrics.dynamo_config if draft.metrics else None),
    )


def _merged(rows: list[model.Recompilation]) -> tuple[model.Recompilation, ...]:
    """The same recompilation of one place (by other ranks, or after a reset) is one row with its count."""
    merged: dict[tuple[object, ...], model.Recompilation] = {}
    for row in rows:
        key = (row.compile_id, row.file, row.line, row.reasons)
        known = merged.get(key)
        merged[key] = (
            msgspec.structs.replace(known, count=known.count + 1, cost_s=round(known.cost_s + row.cost_s, 6))
            if known
            else row
        )
    return tuple(merged.values())


def _autotune(draft: FrameDraft, frame: model.Frame) -> Iterable[model.Autotune]:
    for event in draft.events:
        if event.ph != "E" or not event.args or not event.args.autotune_choices_stats:
            continue
        try:
            stats = records.autotune_stats.decode(event.args.autotune_choices_stats)
        except UNREADABLE:
            continue
        yield model.Autotune(
            frame=frame.index,
            compile_id=frame.compile_id,
            op=event.name.removesuffix("_template_autotuning"),
            shape=event.args.autotune_shape,
            dtypes=event.args.autotune_dtypes,
            choices=stats.num_choices,
            best=stats.best_kernel,
            best_ms=stats.best_time,
            best_triton=stats.best_triton_kernel,
            best_triton_ms=stats.best_triton_time,
        )
