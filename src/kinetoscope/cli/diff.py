"""``kinetoscope diff``: what changed from one recording to another, by how much, because of what."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from kinetoscope.document.difference import Difference

EPILOG = """\
examples:
  kinetoscope diff BASE NEW                                  two recordings, traces or compile logs
  kinetoscope diff BEFORE/ AFTER/ -o difference.html         folders of repeated recordings: intervals of runs
  kinetoscope diff BASE NEW --fail-on 'launches > 0' --fail-on 'step_time > 3%'

what --fail-on takes:
  of the usual step   launches eager_kernels graph_calls syncs copies pageable_copies copied_bytes ops
  in all              graph_breaks recompilations compile_failures graphs generated_kernels guards peak_memory
                      cache_hits cache_misses compile_s (they may differ from run to run)
  time                step_time device_time (they fail only if the whole interval lies above)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "base", metavar="BASE", help="a recording, a trace, a compile log, a folder of repeats"
    )
    parser.add_argument("new", metavar="NEW", help="likewise, of the other version")
    _options.fail_on(
        parser,
        "end with 1 if it grew by more: 'launches > 0', 'graph_breaks > 0', 'peak_memory > 5%%', "
        "'step_time > 3%%' (names below)",
    )
    written = "write a file instead: .html .json .md .txt (may be given several times)"
    _options.output(parser, written, action="append", default=[])
    _options.as_json(parser)
    github = "in a workflow of GitHub: also a summary of the job, and annotations of lines"
    _options.flag(parser, "--github", github)
    parser.add_argument("-v", "--verbose", action="store_true", help="on the terminal, print all of it")


def main(arguments: argparse.Namespace) -> int:
    import sys

    from kinetoscope.comparison.gates import parse
    from kinetoscope.progress import Reader, answered
    from kinetoscope.render import destination
    from kinetoscope.render.formats import COMPARED, renderer
    from kinetoscope.render.json import indented
    from kinetoscope.render.terminal import standard_output

    gates = [parse(text) for text in arguments.fail_on]
    files: list[Path] = arguments.output
    inputs = [arguments.base, arguments.new]
    renderers = [renderer(destination.check(file, inputs), COMPARED) for file in files]
    page = any(file.suffix == ".html" for file in files)

    def find(read: Reader) -> Difference:
        from kinetoscope.document.collect.difference import compared

        return compared(inputs[0], inputs[1], gates, page=page, read=read)

    kind = "kinetoscope.document.difference:Difference"
    found = answered(inputs, kind, find, gates=arguments.fail_on, page=page)
    from kinetoscope.views import difference, github
    from kinetoscope.views.page import render_difference

    view = difference.view(found, lambda: render_difference(found))
    for file, render in zip(files, renderers, strict=True):
        _options.write(file, render(view).encode())
    if arguments.json:
        print(indented(found))
    elif not files:
        difference.show(found, standard_output(), whole=arguments.verbose)
    if arguments.github:
        github.announce(found)
    if files or arguments.json:
        difference.complain(found, sys.stderr)
    return 1 if found.failed else 0
