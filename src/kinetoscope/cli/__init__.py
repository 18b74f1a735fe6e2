"""The command line: one file a verb, the verb's name is the file's.

Each verb's module has ``add_arguments(parser)`` and ``main(arguments) -> int``. Only the module of the verb
that was asked for is imported, and heavy imports stay inside its ``main``: profiled processes import this.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from kinetoscope.errors import KinetoscopeError, meant

# verb → the line that --help shows; in the order a newcomer meets them.
VERBS: dict[str, str] = {
    "run": "run a program, unedited, and record where its time goes",
    "report": "show where the time went: terminal, .html, .json, .md, .txt",
    "view": "the report with its timeline in a browser, served on this machine alone",
    "kernels": "the device kernels, by category, op, graph, step or stream",
    "findings": "what is slow, why, and what to change, ranked by time saved",
    "whatif": "what a step would take if something changed, and its critical path",
    "graphs": "what torch.compile did: frames, breaks, recompilations, guards, fusion, code",
    "bench": "time generated kernels and modules alone, honestly",
    "tune": "which compile mode or setting wins here, measured side by side",
    "query": "SQL over the tables of a trace",
    "export": "write the tables as Parquet or a trace for Perfetto",
    "explain": "what a rule, op, kernel name or runtime call means",
    "doctor": "what this machine lets a profiler see, and how to mend the rest",
}

EPILOG = """\
start here:
  kinetoscope run train.py --batch 128      record a program (needs PyTorch)
  kinetoscope report trace.json.gz          read a trace that somebody else recorded
  kinetoscope explain                       the rules and the glossary
"""


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """The whole parser, with the arguments of one verb (or of none, for ``--help``)."""
    from kinetoscope import __version__

    parser = argparse.ArgumentParser(
        prog="kinetoscope",
        description="See where every microsecond of the GPU went, why, and which change buys the most.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kinetoscope {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, summary in VERBS.items():
        if verb not in (None, name):
            continue
        sub = verbs.add_parser(
            name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if verb == name:
            module = importlib.import_module(f"kinetoscope.cli.{name}")
            module.add_arguments(sub)
    return parser


def run() -> NoReturn:
    """The command as a process of its own, ended at once: taking large tables down costs a report 60 ms."""
    status = main()
    sys.stderr.flush()
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is the contract's (see ``kinetoscope.errors``)."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words[0] if words and words[0] in VERBS else None
    parser = build_parser(verb)
    if words and verb is None and not words[0].startswith("-"):
        parser.error(f"there is no verb {words[0]!r}; {meant(words[0], VERBS)}")
    if not words:
        parser.print_help()
        return 2
    arguments = parser.parse_args(words)
    module = importlib.import_module(f"kinetoscope.cli.{arguments.verb}")
    try:
        status = module.main(arguments)
        sys.stdout.flush()
        return status
    except KinetoscopeError as error:
        print(f"kinetoscope: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("kinetoscope: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
