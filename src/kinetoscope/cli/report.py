"""``kinetoscope report``: where the time went."""

from __future__ import annotations

import argparse
import glob
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.cli import _many, _options

if TYPE_CHECKING:
    from kinetoscope.document import Report
    from kinetoscope.sources.run import LoadedRun

REPORT = "kinetoscope.document:Report"
PAGE = "kinetoscope.views.page"  # loads a template engine that no other format needs

EPILOG = """\
examples:
  kinetoscope report REC                                the recording of `kinetoscope run`
  kinetoscope report trace.json.gz -o report.html       a trace of torch.profiler, as a page

then:
  kinetoscope findings REC                              what to change, with the evidence
  kinetoscope view REC                                  the timeline
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(
        parser,
        "a recording, a trace (.json, .json.gz, …, .sqlite of nsys), a compile log, or a folder of them; "
        "several are one run's ranks; of many ranks also folders of folders, "
        "patterns, buckets (s3://…, gs://…), the parts that --parts keeps, NCCL flight-recorder dumps "
        "and Inspector logs",
    )
    _options.output(parser, "write a file instead; its suffix is the format: .html .json .md .txt .sarif")
    _options.as_json(parser, ": the report, numbers not rounded")
    _options.engine(
        parser,
        ("auto", "local", "ray"),
        "; the ranks alone are compared then (auto: where there are more than 16 traces, or in a bucket)",
    )
    _options.parts(parser)
    _options.flag(parser, "--every-rank", "with a row for every rank")
    whole = "on the terminal, print the whole report, not one screenful of it"
    parser.add_argument("-v", "--verbose", action="store_true", help=whole)


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.errors import UsageError
    from kinetoscope.render import destination
    from kinetoscope.render.formats import renderer
    from kinetoscope.render.json import indented

    output: Path | None = arguments.output
    if arguments.json and output is not None:
        raise UsageError("both --json and -o were given", hint="-o report.json writes the same document")
    if arguments.engine != "auto" or arguments.parts is not None or _many.are_many(arguments.inputs):
        _compared(arguments)
        return 0
    arguments.inputs = [name for text in arguments.inputs for name in _matching(text)]
    if arguments.json:
        print(indented(report_of(arguments.inputs)))
        return 0
    if output is None:
        from kinetoscope.render.terminal import standard_output
        from kinetoscope.views import overview

        overview.show(
            report_of(arguments.inputs), arguments.inputs, standard_output(), whole=arguments.verbose
        )
        return 0
    render = renderer(output)
    destination.check(output, arguments.inputs)
    report = report_of(arguments.inputs, page=output.suffix.lower() == ".html")
    from kinetoscope.views import overview

    view = overview.view(
        report, arguments.inputs, lambda: import_module(PAGE).render(report, arguments.inputs)
    )
    _options.write(output, render(view).encode())
    return 0


def _matching(text: str) -> list[str]:
    """The files that a pattern stands for, in the order of their numbers; anything else is a name."""
    from kinetoscope.sources import paths as fleet_inputs
    from kinetoscope.sources.numbering import natural

    if Path(text).exists() or not glob.has_magic(text) or fleet_inputs.is_remote(text):
        return [text]
    return sorted(glob.glob(text, recursive=True), key=natural) or [text]


def _compared(arguments: argparse.Namespace) -> None:
    """The ranks alone, compared: printed or written. Raises UsageError where that cannot be written."""
    from kinetoscope.render import destination
    from kinetoscope.render.formats import COMPARED, renderer
    from kinetoscope.views import ranks

    output: Path | None = arguments.output
    render = None if output is None else renderer(destination.check(output, arguments.inputs), COMPARED)
    every = arguments.every_rank or arguments.verbose
    found = _many.compared(arguments.inputs, arguments.engine, arguments.parts, every=every)
    if output is None or render is None:
        _options.answer(arguments, found, lambda: ranks.blocks(found), as_page=True)
    else:
        _options.write(
            output, render(ranks.view(found, lambda: import_module(PAGE).render_ranks(found))).encode()
        )


def report_of(inputs: Sequence[str], *, page: bool = False, loaded: list[LoadedRun] | None = None) -> Report:
    """The report on all inputs; ``loaded`` gets the run, if one had to be read. With a ``page`` it is what
    was reported before, where that is known, and the page's own tables."""
    from kinetoscope.progress import Reader, answered

    def find(read: Reader) -> Report:
        report: Report | None = read.knew(REPORT, page=False) if page else None
        run = read(inputs, _load_analyses if report is None else None)
        if loaded is not None:
            loaded.append(run)
        if report is None:
            from kinetoscope.document.collect import findings
            from kinetoscope.document.collect.report import build

            report = build(run)
            read.knows("kinetoscope.document:FindingsListing", findings.of_report(run, report), proof=False)
            if page:
                read.knows(REPORT, report, page=False)
        if not page:
            return report
        from kinetoscope.document.collect.page import with_page  # with it comes what reads bench's results

        return with_page(run, report)

    return answered(inputs, REPORT, find, page=page)


def _load_analyses() -> None:
    import_module("kinetoscope.document.collect.report")
    import_module("kinetoscope.findings.registry").rules()
