"""``kinetoscope graphs``: what the compiler did, what it cost, and what each piece costs on the device."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from kinetoscope.compilation.model import CompiledProgram
    from kinetoscope.document import Compilation
    from kinetoscope.sources.run import LoadedRun

EPILOG = """\
examples:
  kinetoscope graphs REC                                graph breaks, recompilations, what was fused
  kinetoscope graphs REC --frame 0/0 --guards           one compilation, and what it depends on
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(
        parser,
        "a recording, a TORCH_TRACE file or folder, a TORCH_COMPILE_DEBUG folder, TORCH_LOGS=fusion "
        "text; and, with a log, the trace of the same program",
    )
    _options.as_json(parser)
    add, flag = parser.add_argument, partial(_options.flag, parser)
    flag("--texts", "with --json: guards, bytecode, graphs and code as well")
    add("--frame", metavar="ID", help="one compilation, closely: 0/0, or its number in the JSON")
    flag("--guards", "its guards, in plain words")
    flag("--bytecode", "its bytecode before and after Dynamo")
    add("--graph", metavar="NAME", help="one of its graphs: dynamo, joint, forward, post_grad_backward, …")
    flag("--fusion", "what was fused with what, and why not")
    add("--kernel", metavar="NAME", help="one generated kernel: its lines, cost and source")
    add("--against", metavar="INPUT", help="another log of the same program: what changed in the cache keys")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.progress import Reader, answered, load_shown

    texts = arguments.json and arguments.texts
    of_one = arguments.frame or arguments.guards or arguments.bytecode or arguments.graph or arguments.fusion
    if not arguments.json and (arguments.against or arguments.kernel or of_one):
        _closely(arguments, load_shown(arguments.inputs))
        return 0

    def find(read: Reader) -> Compilation:
        return _compiled(read(arguments.inputs), arguments.inputs, texts=texts)[1]

    document = answered(arguments.inputs, "kinetoscope.document:Compilation", find, texts=texts)
    if arguments.json:
        from kinetoscope.render.json import indented

        print(indented({"compilation": document}))
        return 0
    from kinetoscope.render.terminal import show, standard_output
    from kinetoscope.views.graphs import overview

    show(overview(document, arguments.inputs), standard_output())
    return 0


def _compiled(
    run: LoadedRun, inputs: list[str], *, texts: bool = False
) -> tuple[CompiledProgram, Compilation]:
    """The compile log of a run, and what a document says of it. Raises InputError where there is none."""
    from kinetoscope.analysis.compiled.join import join
    from kinetoscope.document.collect.compilation import as_document
    from kinetoscope.errors import InputError

    compilation = run.compilation
    if compilation is None:
        raise InputError(
            "there is no compile log in it",
            where=" ".join(inputs),
            hint="nothing was compiled while it was recorded"
            if run.manifest
            else "name the log and the trace, or record with `kinetoscope run`",
        )
    # A log alone has an empty trace: nothing to join with.
    joined = join(run) if any(trace.source.events for trace in run.traces) else None
    return compilation, as_document(compilation, joined, texts=texts)


def _closely(arguments: argparse.Namespace, run: LoadedRun) -> None:
    from kinetoscope.document.collect.compilation import frame_details, kernel_details
    from kinetoscope.render.terminal import show, standard_output
    from kinetoscope.views import graph_detail as view

    console = standard_output()
    compilation, document = _compiled(run, arguments.inputs)
    if arguments.against:
        from kinetoscope.compilation.cache_keys import changed
        from kinetoscope.compilation.sources import load
        from kinetoscope.views.graphs import key_changes

        show(key_changes(changed(load(arguments.against), compilation)), console)
    elif arguments.kernel:
        for kernel in kernel_details(compilation, document, arguments.kernel):
            show(view.kernel(kernel), console)
    else:
        for frame in frame_details(
            compilation,
            document,
            arguments.frame,
            with_guards=arguments.guards,
            with_bytecode=arguments.bytecode,
            text=arguments.graph,
        ):
            show(view.frame(frame, fusion=arguments.fusion), console)
