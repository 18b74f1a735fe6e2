"""``kinetoscope check``: a recording compared with a committed baseline."""

from __future__ import annotations

import argparse
from pathlib import Path

from kinetoscope.cli import _options

EPILOG = """\
examples:
  kinetoscope check REC --against perf/train.json --update    write the baseline, to be committed
  kinetoscope check REC --against perf/train.json             ends with 1 if something grew
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser)
    parser.add_argument("--against", type=Path, required=True, metavar="FILE", help="the baseline, JSON")
    _options.flag(parser, "--update", "write the baseline instead")
    _options.fail_on(
        parser,
        "only on this, as `kinetoscope diff --help` names it (otherwise: any growth of exact counts, "
        "'peak_memory > 2%%', 'step_time > 5%%', 'device_time > 5%%')",
    )
    _options.as_json(parser)
    _options.limit(parser, 0)


def main(arguments: argparse.Namespace) -> int:
    import shlex
    import sys

    from kinetoscope.comparison import baseline, comparability
    from kinetoscope.comparison.gates import parse
    from kinetoscope.progress import load_shown
    from kinetoscope.render import destination
    from kinetoscope.views import gates as view

    file: Path = arguments.against
    gates = [parse(text) for text in arguments.fail_on]
    if arguments.update:
        destination.check(file, arguments.inputs, option="--against")
        written = baseline.of(load_shown(arguments.inputs))
        _options.write(file, baseline.render(written).encode())
        for why in comparability.busy("the baseline", written.load, written.cores):
            print(f"kinetoscope: no time is judged by it: {why}", file=sys.stderr)
        return 0
    rows = baseline.checked(load_shown(arguments.inputs), baseline.read(file), gates)
    again = f"kinetoscope check {shlex.join(arguments.inputs)} --against {shlex.quote(str(file))} --update"
    _options.answer(
        arguments, view.document(rows), lambda: view.listing(_options.first(rows, arguments.limit), again)
    )
    return 1 if any(row.failed for row in rows) else 0
