"""A compile log, joined to a trace or alone, to the document's ``compilation``."""

from __future__ import annotations

import msgspec

from kinetoscope.analysis.compiled.join import Joined
from kinetoscope.compilation import aten, bytecode, guards
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.document import compilation as document


def as_document(
    compilation: CompiledProgram, joined: Joined | None = None, *, texts: bool = False
) -> document.Compilation:
    """All rows of ``compilation``.

    Args:
        joined: it and a trace; without, everything that only a device can tell is null or left out.
        texts: add guard trees, bytecode, graphs and generated code (large).
    """
    rows = joined.compilation if joined else compilation
    ops = dict.fromkeys(op for graph in rows.graphs for op in graph.op_counts)
    alone = document.Compilation(
        torch=rows.torch,
        sources=rows.sources,
        frames=rows.frames,
        stretches=rows.stretches,
        graph_breaks=rows.graph_breaks,
        recompilations=rows.recompilations,
        graphs=rows.graphs,
        kernels=rows.kernels,
        failures=rows.failures,
        recompile_limit_hits=tuple(
            msgspec.convert(row, document.LimitHit, from_attributes=True)
            for row in rows.recompilations
            if row.limit_hit
        ),
        autotune=rows.autotune,
        cache=document.Caches(fx=rows.fx_cache, aot=rows.aot_cache),
        compile_s=round(sum(frame.compile_s for frame in rows.frames), 6),
        coverage=document.Coverage(),
        notes=rows.notes,
        glossary={op: meaning for op in ops if (meaning := aten.meaning(op))},
        texts=_texts(compilation) if texts else msgspec.UNSET,
    )
    if joined is None:
        return alone
    return msgspec.structs.replace(
        alone,
        coverage=msgspec.convert(joined.coverage, document.Coverage, from_attributes=True),
        source_lines=joined.source_lines,
        join=msgspec.convert(joined.matched, document.Matched, from_attributes=True),
    )


def _texts(compilation: CompiledProgram) -> document.Texts:
    frames: dict[int, dict[str, document.FrameText]] = {}
    for (frame, name), text in compilation.texts.items():
        if name == "runnable":
            continue
        named = frames.setdefault(frame, {"frame": frame})
        if name == "guards":
            named[name] = guards.parse(text.read())
        elif name.endswith("bytecode"):
            named[name] = bytecode.parse(text.read())
        else:
            named[name] = text.read()
    return document.Texts(
        frames=tuple(frames.values()),
        graphs=tuple(
            document.GraphTexts(
                graph=graph,
                module=text.read(),
                post_grad=post.read() if (post := compilation.post_grad.get(graph)) else None,
            )
            for graph, text in compilation.modules.items()
        ),
    )
