"""The command line: one file a verb, the verb's name is the file's.

Each verb's module has ``add_arguments(parser)`` and ``main(arguments) -> int``. Only the module of the verb
that was asked for is imported, and heavy imports stay inside its ``main``: profiled processes import this.
"""

from __future__ import annotations

import argparse
import codecs
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from kinetoscope.errors import KinetoscopeError, meant

# verb → the line that --help shows; in the order a newcomer meets them.
VERBS: dict[str, str] = {
    "run": "run a program, unedited, and record where its time goes",
    "report": "show where the time went: terminal, .html, .json, .md, .txt, .sarif",
    "view": "the report with its timeline in a browser, served on this machine alone",
    "kernels": "the device kernels, by category, op, graph, step or stream",
    "findings": "what is slow, why, and what to change, ranked by time saved",
    "memory": "what holds a device's memory at its peak, which line asked for it, and what grows",
    "whatif": "what a step would take if something changed, and its critical path",
    "graphs": "what torch.compile did: frames, breaks, recompilations, guards, fusion, code",
    "bench": "time generated kernels and modules alone, honestly",
    "tune": "which compile mode or setting wins here, measured side by side",
    "diff": "what changed from one recording to another, by how much, because of what",
    "compare": "two versions of a program on this machine, in turn, until the difference is known",
    "check": "a recording held against a baseline that is kept in the repository",
    "history": "what the step took over many recordings, and where it changed",
    "query": "SQL over the tables of a trace",
    "export": "write the tables as Parquet or a trace for Perfetto",
    "explain": "what a rule, op, kernel name or runtime call means",
    "doctor": "what this machine lets a profiler see, and how to mend the rest",
}

ESCAPED = "kinetoscope.escaped"
DEBUG = "KINETOSCOPE_DEBUG"
LONGEST_LINE = 4000  # of a message: a name in it may have a million characters
ISSUES = "the project's issue tracker"

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
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: its number must not be a file's of ours
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    status = main()
    with suppress(OSError):
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
    _have_every_character_written()
    module = importlib.import_module(f"kinetoscope.cli.{arguments.verb}")
    try:
        status = module.main(arguments)
        sys.stdout.flush()
        return status
    except KinetoscopeError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        _say(str(_unforeseen(error)))
        return KinetoscopeError.exit_code


def _have_every_character_written() -> None:
    """Streams that cannot write a character (of an ASCII terminal) write its number, as JSON does."""
    codecs.register_error(ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end


def _unforeseen(error: Exception) -> KinetoscopeError:
    """What no code of ours expected: the system's refusals by their own names, anything else as our fault."""
    if isinstance(error, OSError) and error.strerror:
        return KinetoscopeError(
            f"the system refused: {error.strerror}",
            where=str(error.filename or "reading the input or writing the output"),
        )
    if isinstance(error, MemoryError):
        return KinetoscopeError("there is not enough memory for this", mend="give it a shorter recording")
    last = traceback.extract_tb(error.__traceback__)[-1]
    return KinetoscopeError(
        f"a fault of kinetoscope itself, not of yours: {type(error).__name__}: {error}",
        where=f"{os.path.basename(last.filename)}:{last.lineno}, in {last.name}",
        mend=f"please report it, with what {DEBUG}=1 in the environment makes it print: {ISSUES}",
    )


def _say(text: str) -> None:
    """A message on stderr, where there is one: paths and foreign words in it are kept from the terminal."""
    from kinetoscope.report.words.names import printable

    with suppress(OSError):
        lines = (printable(line[:LONGEST_LINE]) for line in text.splitlines())
        print("kinetoscope:", "\n".join(lines), file=sys.stderr)
