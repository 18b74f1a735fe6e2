"""``kinetoscope graphs``: what the compiler did, what it cost, and what each piece costs on the device."""

from __future__ import annotations

import argparse
import sys

SUMMARY = "what torch.compile did: frames, breaks, recompilations, guards, fusion, code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        metavar="INPUT",
        help="a recording, a TORCH_TRACE file or folder, a TORCH_COMPILE_DEBUG folder",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def main(arguments: argparse.Namespace) -> int:
    import msgspec

    from kinetoscope.compilation import as_contract, load

    compilation = load(arguments.input)
    document = {"compilation": as_contract(compilation)}
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    return 0
