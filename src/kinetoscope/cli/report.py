"""``kinetoscope report INPUT… [-o FILE]``"""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "show where the time went"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="a recording, a trace or a folder of them")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there; JSON")


def main(arguments: argparse.Namespace) -> int:
    import msgspec

    from kinetoscope.analysis.profile import load
    from kinetoscope.report.build import build

    encoded = msgspec.json.encode(build(load(*arguments.inputs)))
    if arguments.output:
        Path(arguments.output).write_bytes(encoded)
    else:
        print(encoded.decode())
    return 0
