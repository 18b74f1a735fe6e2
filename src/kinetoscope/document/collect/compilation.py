"""A compile log, joined to a trace or alone, to the document's ``compilation``; and one frame or generated
kernel by the name that was typed, with the texts that are read for it alone."""

from __future__ import annotations

import difflib

from msgspec import UNSET

from kinetoscope.analysis.compiled.join import Joined
from kinetoscope.compilation import aten, bytecode, guards
from kinetoscope.compilation.generated import module
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.document import compilation as document
from kinetoscope.document.collect.rows import row
from kinetoscope.errors import InputError, UsageError, meant

NOT_GRAPHS = {"guards", "bytecode", "modified bytecode", "error"}


def as_document(
    compilation: CompiledProgram, joined: Joined | None = None, *, texts: bool = False
) -> document.Compilation:
    """All rows of ``compilation``. ``joined``: it and a trace; without, everything that only a device can
    tell is null or left out. ``texts``: add guard trees, bytecode, graphs and generated code (large)."""
    rows = joined.compilation if joined else compilation
    ops = dict.fromkeys(op for graph in rows.graphs for op in graph.op_counts)
    return row(
        document.Compilation,
        rows,
        cache=document.Caches(fx=rows.fx_cache, aot=rows.aot_cache),
        compile_s=round(sum((frame.compile_s for frame in rows.frames), 0.0), 6),
        coverage=joined.coverage if joined else document.Coverage(),
        glossary={op: meaning for op in ops if (meaning := aten.meaning(op))},
        source_lines=joined.source_lines if joined else UNSET,
        join=joined.matched if joined else UNSET,
        texts=_texts(compilation) if texts else UNSET,
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


def frame_details(
    compilation: CompiledProgram,
    shown: document.Compilation,  # the document of ``compilation``
    name: str | None,
    *,
    with_guards: bool = False,
    with_bytecode: bool = False,
    # the graph or module whose code is wanted; ``text_names`` of the details has those there are
    text: str | None = None,
) -> list[document.FrameDetail]:
    """The compilations of that id (several after a reset or with several ranks), or the one of that number;
    all where there is no name. Raises UsageError where there is no such compilation, InputError where none of
    them has that text; the message names what there is."""
    frames = [f for f in shown.frames if name in (None, f.compile_id, str(f.index))]
    if not frames and name is not None:
        ids = ", ".join(dict.fromkeys(f.compile_id for f in shown.frames))
        raise UsageError(f"no compilation {name!r} in the log", hint=f"name one of: {ids}")
    details = [
        document.FrameDetail(
            frame=frame,
            graphs=tuple(g for g in shown.graphs if g.frame == frame.index),
            meanings=shown.glossary,
            text_names=_text_names(compilation, frame.index),
            guards=_guards(compilation, frame.index) if with_guards else UNSET,
            bytecode=_bytecode(compilation, frame.index) if with_bytecode else UNSET,
            text=_named(compilation, frame.index, text) if text else UNSET,
        )
        for frame in frames
    ]
    if text and not any(detail.text and detail.text.texts for detail in details):
        there = dict.fromkeys(known for detail in details for known in detail.text_names)
        raise InputError(f"the log has no graph {text!r}", hint=meant(text, there))
    return details


def kernel_details(
    compilation: CompiledProgram, shown: document.Compilation, name: str
) -> list[document.KernelDetail]:
    """The generated kernels of that name, in every graph that has one, most device time first. Raises
    UsageError where there is none; the message names what comes close."""
    found = [k for k in shown.kernels if name in (k.name, k.symbol, k.handle)]
    if not found:
        near = [k.name for k in shown.kernels if name in k.name][:5]
        near = near or difflib.get_close_matches(name, [k.name for k in shown.kernels], 3)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else "`kinetoscope graphs INPUT` lists the kernels"
        )
        raise UsageError(f"no generated kernel {name!r} in the log", hint=hint)
    return [
        document.KernelDetail(
            kernel=kernel,
            meanings={op: meaning for op in kernel.aten_ops if (meaning := aten.in_short(op))},
            code=_source(compilation, kernel),
        )
        for kernel in sorted(found, key=lambda k: -(k.device_time_us or 0.0))
    ]


def _guards(compilation: CompiledProgram, frame: int) -> document.GuardTree | None:
    text = compilation.texts.get((frame, "guards"))
    return guards.parse(text.read()) if text else None


def _bytecode(compilation: CompiledProgram, frame: int) -> document.FrameBytecode | None:
    texts = [compilation.texts.get((frame, name)) for name in ("bytecode", "modified bytecode")]
    before, after = (bytecode.parse(text.read()) if text else () for text in texts)
    return document.FrameBytecode(before=before, after=after) if any(texts) else None


def _text_names(compilation: CompiledProgram, frame: int) -> tuple[str, ...]:
    rows = [g for g in compilation.graphs if g.frame == frame]
    return (
        *(name for index, name in compilation.texts if index == frame and name not in NOT_GRAPHS),
        *(f"post_grad_{g.direction}" for g in rows if g.index in compilation.post_grad),
        *(f"module_{g.direction}" for g in rows),
    )


def _named(compilation: CompiledProgram, frame: int, name: str) -> document.NamedTexts:
    way, _, direction = name.rpartition("_")
    tables = {"post_grad": compilation.post_grad, "module": compilation.modules}
    if way in tables:
        rows = [g.index for g in compilation.graphs if g.frame == frame and g.direction == direction]
        texts = [tables[way][index] for index in rows if index in tables[way]]
    else:
        texts = [text for key, text in compilation.texts.items() if key == (frame, name)]
    return document.NamedTexts(name=name, texts=tuple(text.read() for text in texts))


def _source(compilation: CompiledProgram, kernel: document.CompiledKernel) -> str:
    """The generated source of one kernel, with Inductor's comments above it; empty where the log has none."""
    text = compilation.modules.get(kernel.graph)
    code = text.read() if text else ""
    return next((code[d.start : d.end] for d in module.parse(code).kernels if d.name == kernel.name), "")
