"""``kinetoscope graphs``: what the compiler did, what it cost, and what each piece costs on the device."""

from __future__ import annotations

import argparse
from functools import partial

from kinetoscope.cli import _options


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
    from kinetoscope.analysis.compiled.join import join
    from kinetoscope.document.collect.compilation import as_document, frame_details, kernel_details
    from kinetoscope.errors import InputError
    from kinetoscope.progress import load_shown
    from kinetoscope.render.json import indented
    from kinetoscope.render.terminal import show, standard_output
    from kinetoscope.views import graph_detail as view

    run = load_shown(arguments.inputs)
    compilation = run.compilation
    if compilation is None:
        raise InputError(
            "there is no compile log in it",
            where=" ".join(arguments.inputs),
            hint="nothing was compiled while it was recorded"
            if run.manifest
            else "name the log and the trace, or record with `kinetoscope run`",
        )
    # A log alone has an empty trace: nothing to join with.
    joined = join(run) if any(trace.source.events for trace in run.traces) else None
    document = as_document(compilation, joined, texts=arguments.json and arguments.texts)
    console = standard_output()
    if arguments.json:
        print(indented({"compilation": document}))
    elif arguments.against:
        from kinetoscope.compilation.cache_keys import changed
        from kinetoscope.compilation.sources import load
        from kinetoscope.views.graphs import key_changes

        show(key_changes(changed(load(arguments.against), compilation)), console)
    elif arguments.kernel:
        for kernel in kernel_details(compilation, document, arguments.kernel):
            show(view.kernel(kernel), console)
    elif arguments.frame or arguments.guards or arguments.bytecode or arguments.graph or arguments.fusion:
        for frame in frame_details(
            compilation,
            document,
            arguments.frame,
            with_guards=arguments.guards,
            with_bytecode=arguments.bytecode,
            text=arguments.graph,
        ):
            show(view.frame(frame, fusion=arguments.fusion), console)
    else:
        from kinetoscope.views.graphs import overview

        show(overview(document, arguments.inputs), console)
    return 0
