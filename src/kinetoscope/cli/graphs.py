"""``kinetoscope graphs``: what the compiler did, what it cost, and what each piece costs on the device."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a recording, a TORCH_TRACE file or folder, a TORCH_COMPILE_DEBUG folder, TORCH_LOGS=fusion text; "
        "and, beside a log, the trace of the same program",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.add_argument(
        "--texts", action="store_true", help="with --json: guards, bytecode, graphs and code as well"
    )
    parser.add_argument(
        "--frame", metavar="ID", help="one compilation, closely: 0/0, or its number in the JSON"
    )
    parser.add_argument("--guards", action="store_true", help="its guards, in plain words")
    parser.add_argument("--bytecode", action="store_true", help="its bytecode before and after Dynamo")
    parser.add_argument(
        "--graph", metavar="NAME", help="one of its graphs: dynamo, joint, forward, post_grad_backward, …"
    )
    parser.add_argument("--fusion", action="store_true", help="what was fused with what, and why not")
    parser.add_argument("--kernel", metavar="NAME", help="one generated kernel: its lines, cost and source")
    parser.add_argument(
        "--against", metavar="INPUT", help="another log of the same program: what changed in the cache keys"
    )


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.analysis.compiled.join import join
    from kinetoscope.errors import InputError
    from kinetoscope.report.collect.compilation import as_contract
    from kinetoscope.report.pages.console import standard_output
    from kinetoscope.report.progress import load_shown

    run = load_shown(arguments.inputs)
    compilation = run.compilation
    if compilation is None:
        raise InputError(
            "there is no compile log in it",
            where=" ".join(arguments.inputs),
            mend="name the log beside the trace, or record with `kinetoscope run`",
        )
    # A log alone has an empty trace: nothing to join with.
    joined = join(run) if any(trace.source.events for trace in run.traces) else None
    if arguments.json:
        import msgspec

        document = {"compilation": as_contract(compilation, joined, texts=arguments.texts)}
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return 0
    shown = joined.compilation if joined else compilation
    console = standard_output()
    if arguments.against:
        from kinetoscope.compilation.cache_keys import changed
        from kinetoscope.compilation.sources import load as load_logs
        from kinetoscope.report.verbs.cache_keys import print_changes

        print_changes(changed(load_logs(arguments.against), compilation), console)
    elif arguments.kernel:
        from kinetoscope.report.verbs.compiled_choice import kernels_named
        from kinetoscope.report.verbs.compiled_detail import print_kernel

        for kernel in kernels_named(shown, arguments.kernel):
            print_kernel(shown, kernel, console)
    elif arguments.frame or arguments.guards or arguments.bytecode or arguments.graph or arguments.fusion:
        from kinetoscope.report.verbs.compiled_choice import frames_named
        from kinetoscope.report.verbs.compiled_detail import print_frame

        parts = {name for name in ("guards", "bytecode", "fusion") if getattr(arguments, name)}
        for frame in frames_named(shown, arguments.frame):
            print_frame(shown, frame, parts, arguments.graph, console)
    else:
        from kinetoscope.report.verbs.compiled import print_overview

        print_overview(compilation, joined, arguments.inputs, console)
    return 0
