"""The contract's ``compilation``: what ``graphs --json`` prints and reports embed."""

from __future__ import annotations

from typing import Any

import msgspec

from kinetoscope.compilation import aten, bytecode, guards
from kinetoscope.compilation.generated import module
from kinetoscope.compilation.model import Compilation


def as_contract(compilation: Compilation, join: Any = None, *, texts: bool = False) -> dict[str, Any]:
    """The rows under the contract's keys.

    Args:
        join: what ``analysis.compiled.join`` made of this compilation and a trace; without one, everything that
            only a device can tell is null.
        texts: add guard trees, bytecode, graphs and generated code (large).
    """
    rows = join.compilation if join is not None else compilation
    document: dict[str, Any] = {
        "torch": compilation.torch,
        "sources": compilation.sources,
        "frames": rows.frames,
        "graph_breaks": rows.graph_breaks,
        "recompilations": rows.recompilations,
        "graphs": rows.graphs,
        "kernels": rows.kernels,
        "failures": rows.failures,
        "recompile_limit_hits": [
            {
                "compile_id": r.compile_id,
                "function": r.function,
                "file": r.file,
                "line": r.line,
                "advice": r.advice,
            }
            for r in rows.recompilations
            if r.limit_hit
        ],
        "autotune": rows.autotune,
        "cache": {"fx": rows.fx_cache, "aot": rows.aot_cache},
        "compile_s": round(sum(frame.compile_s for frame in rows.frames), 6),
        "coverage": join.coverage
        if join is not None
        else {"compiled_share_of_device_time": None, "cudagraph_share_of_device_time": None},
        "notes": compilation.notes,
        # what each op of the graphs does
        "glossary": {op: words for op in _ops(rows) if (words := aten.meaning(op))},
    }
    if join is not None:
        document["source_lines"] = join.source_lines
        document["join"] = join.matched
    if texts:
        document["texts"] = _texts(compilation)
    return msgspec.to_builtins(document)


def _ops(compilation: Compilation) -> list[str]:
    return list(dict.fromkeys(op for graph in compilation.graphs for op in graph.op_counts))


def _texts(compilation: Compilation) -> dict[str, Any]:
    frames: dict[int, dict[str, Any]] = {}
    for (frame, name), text in compilation.texts.items():
        if name == "guards":
            frames.setdefault(frame, {})[name] = guards.parse(text.read())
        elif name.endswith("bytecode"):
            frames.setdefault(frame, {})[name] = bytecode.parse(text.read())
        elif name != "runnable":
            frames.setdefault(frame, {})[name] = text.read()
    return {
        "frames": [{"frame": frame, **named} for frame, named in frames.items()],
        "graphs": [
            {
                "graph": graph,
                "module": text.read(),
                "post_grad": post.read() if (post := compilation.post_grad.get(graph)) else None,
            }
            for graph, text in compilation.modules.items()
        ],
    }


def kernel_source(compilation: Compilation, graph: int, name: str) -> str | None:
    """The generated source of one kernel, with Inductor's comments above it."""
    text = compilation.modules[graph].read() if graph in compilation.modules else ""
    return next((text[d.start : d.end] for d in module.parse(text).kernels if d.name == name), None)
