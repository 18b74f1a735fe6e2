"""``kinetoscope findings``: what is slow, why, and what to change."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="a recording, a trace, a compile log, or a folder of them"
    )
    parser.add_argument(
        "--proof",
        metavar="AFTER",
        help="a recording of the program after a change: what it saved, beside what was promised",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.findings.proof.measured import proofs
    from kinetoscope.report.collect.build import finding_rows
    from kinetoscope.report.progress import load_shown
    from kinetoscope.report.verbs.findings import print_findings, render_json

    run = load_shown(arguments.inputs)
    proven = proofs(run, load_shown([arguments.proof]) if arguments.proof else None)
    rows = finding_rows(run, proven)
    if arguments.json:
        print(render_json(rows, (*run.unread, *proven.unread), proven.after))
        return 0
    if proven.after is not None:
        print(f"{proven.after}\n")
    from kinetoscope.analysis.time.window import window
    from kinetoscope.report.pages.console import standard_output

    start = min((window(trace).start_ns for trace in run.traces), default=0) / 1000
    unit = "step" if any(len(trace.steps) for trace in run.traces) else "recording"
    print_findings(rows, standard_output(), start_us=start, unit=unit, unread=(*run.unread, *proven.unread))
    return 0
