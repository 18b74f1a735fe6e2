"""``kinetoscope report``: where the time went."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.report.document import Report

# Polars' allocator (jemalloc) keeps what is freed, so that it counts as ours for good. A report of millions
# of events makes and drops large tables all the time: what lay idle for this long goes back to the system.
_ALLOCATOR = "dirty_decay_ms:300,muzzy_decay_ms:0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a recording, a trace (.json, .json.gz, …), a compile log, or a folder of them; "
        "several are one run's ranks",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write a file instead; its suffix is the format: .html .json .md .txt",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="on the terminal: all of it, with how steps, launches and memory went, not a screenful",
    )


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.report import destination
    from kinetoscope.report.pages.formats import renderer

    output: Path | None = arguments.output
    if output is None:
        from kinetoscope.report.pages.console import standard_output
        from kinetoscope.report.pages.terminal import print_report

        console = standard_output()
        print_report(_report(arguments.inputs), arguments.inputs, console, whole=arguments.verbose)
        return 0
    render = renderer(output)
    destination.check(output, arguments.inputs)
    report = _report(arguments.inputs, page=output.suffix.lower() == ".html")
    page = render(report, arguments.inputs).encode()
    destination.write(output, page)
    print(f"wrote {output} ({len(page):,} bytes)", file=sys.stderr)
    return 0


def _report(inputs: list[str], *, page: bool = False) -> Report:
    os.environ.setdefault("_RJEM_MALLOC_CONF", _ALLOCATOR)  # read when Polars is loaded
    from kinetoscope.report.progress import load_shown

    run = load_shown(inputs, meanwhile=_load_analyses)
    from kinetoscope.report.collect.report import build

    return build(run, page=page)


def _load_analyses() -> None:
    import_module("kinetoscope.report.collect.report")
    import_module("kinetoscope.findings.registry").rules()
