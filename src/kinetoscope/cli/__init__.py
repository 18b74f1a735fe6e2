"""The command line: one file a verb, the verb's name is the file's.

Each verb's module has ``add_arguments(parser)``, ``main(arguments) -> int`` and, in ``EPILOG``, examples.
Only the module of the verb that is typed is imported, and heavy imports stay inside its ``main``: profiled
processes import this.
"""

from __future__ import annotations

import argparse
import codecs
import gc
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from kinetoscope.errors import KinetoscopeError, meant, near

# verb → the line that --help shows; in the order a newcomer meets them.
VERBS: dict[str, str] = {
    "run": "run a program, unedited, and record where its time goes",
    "record": "record some steps of a server that `run --on-request` started, while it serves",
    "report": "show where the time went: terminal, .html, .json, .md, .txt, .sarif",
    "map": "keep of each trace what a comparison of many ranks needs, so that `report` needs no traces",
    "view": "the report with its timeline in a browser, served on this machine alone",
    "steps": "what a step of the program is, what it is made of, and what else it could be",
    "kernels": "the device kernels, by category, op, graph, step or stream",
    "findings": "what is slow, why, and what to change, ranked by time saved",
    "memory": "what takes a device's memory at its peak, which line allocated it, and what grows",
    "whatif": "what a step would take if something changed, and its critical path",
    "graphs": "what torch.compile did: frames, breaks, recompilations, guards, fusion, code",
    "bench": "benchmark Inductor's kernels and modules in isolation",
    "tune": "which compile mode or setting wins here, measured side by side",
    "diff": "what changed from one recording to another, by how much, because of what",
    "compare": "two versions of a program on this machine, in turn, until the difference is known",
    "check": "compare a recording with a committed baseline; fails on regressions",
    "history": "what the step took over many recordings, and where it changed",
    "query": "SQL over the tables of a trace",
    "mcp": "small answers for agents: a server of the Model Context Protocol, or one answer at a time",
    "export": "write the tables as Parquet or a trace for Perfetto",
    "explain": "what a rule, op, kernel name or runtime call means",
    "completion": "the script that completes these verbs and options in bash, zsh or fish",
    "doctor": "what this machine lets a profiler see, and how to make the rest visible",
}

ESCAPED = "kinetoscope.escaped"
DEBUG = "KINETOSCOPE_DEBUG"
LONGEST_LINE = 4000  # of a message: a name in it may have a million characters
ISSUES = "the project's issue tracker"

EPILOG = """\
start here:
  kinetoscope run train.py --batch 128      record a program (needs PyTorch)
  kinetoscope report trace.json.gz          read a trace that was recorded elsewhere
  kinetoscope explain                       the rules and the glossary
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of what stands before a verb, whose help lists the verbs."""
    from kinetoscope import __version__

    parser = argparse.ArgumentParser(
        prog="kinetoscope",
        description="See where every microsecond of the GPU went, why, and which change buys the most.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kinetoscope {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, summary in VERBS.items():
        verbs.add_parser(name, help=summary)
    return parser


def parser_of(verb: str) -> _VerbParser:
    module = importlib.import_module(f"kinetoscope.cli.{verb}")
    parser = _VerbParser(
        prog=f"kinetoscope {verb}",
        description=VERBS[verb],
        epilog=getattr(module, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an option to come would change what an abbreviation means
    )
    module.add_arguments(parser)
    return parser


def parse(verb: str, words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a verb; those of a program that it runs are in ``program``, word for word. Raises
    SystemExit where they are wrong, which is on stderr by then, or help was requested."""
    parser = parser_of(verb)
    own, program = parser.divided(words)
    arguments, unknown = parser.parse_known_args(own)
    if unknown:
        parser.refuse(unknown)
    if program is not None:
        arguments.program = program
    return arguments


class _VerbParser(argparse.ArgumentParser):
    """The parser of one verb's words; a program's words, which may look like options, it leaves alone."""

    def divided(self, words: Sequence[str]) -> tuple[list[str], list[str] | None]:
        """Split the words: ours, and the program's (None for a verb that runs no program)."""
        if not any(action.nargs == argparse.REMAINDER for action in self._actions):
            return list(words), None
        options = self._option_string_actions
        place = 0
        while place < len(words) and words[place].startswith("-") and words[place] != "-":
            option, is_whole, _ = words[place].partition("=")
            if option == "--":
                return list(words[:place]), list(words[place + 1 :])
            place += 1
            if option == "-m":  # as Python has it: what follows is the module and its arguments
                break
            place += option in options and options[option].nargs is None and not is_whole
        return list(words[:place]), list(words[place:])

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """End with an error: the verb has no such words."""
        option = unknown[0].partition("=")[0]
        if not option.startswith("-"):
            self.error(f"nothing is to follow here: {' '.join(unknown)}")
        like = near(option, self._option_string_actions)
        self.error(f"there is no option {option}; {f'did you mean {like}?' if like else 'see --help'}")


def run() -> NoReturn:
    """The command as a process of its own, ended at once: taking large tables down costs a report 60 ms, and
    looking for cycles among what it has just made another 40."""
    gc.set_threshold(100_000, 20, 20)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: its number must not be a file's of ours
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    status = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    if status < 0:
        _die_of(-status)
    os._exit(status)


def _die_of(number: int) -> NoReturn:
    """End as the program did that a signal ended: a shell whose command dies of Ctrl-C ends its script."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        # Of 1 and not 0, which a core that is piped to a program would not heed: the core is the program's.
        resource.setrlimit(resource.RLIMIT_CORE, (1, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError, AttributeError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container does not die of it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is the contract's (see ``kinetoscope.errors``), of ``run`` the
    program's, or minus the number of the signal that ended the program."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words[0] if words and words[0] in VERBS else None
    if verb is None:
        parser = build_parser()
        if words and not words[0].startswith("-"):
            parser.error(f"there is no verb {words[0]!r}; {meant(words[0], VERBS)}")
        parser.parse_args(words)
        parser.print_help()
        return 2
    arguments = parse(verb, words[1:])
    _have_every_character_written()
    if getattr(arguments, "inputs", None):
        from kinetoscope.cli._many import settle

        settle(arguments.inputs)
    module = importlib.import_module(f"kinetoscope.cli.{verb}")
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
    """An error that was not expected: the system's refusals by their own names, others as our fault."""
    if isinstance(error, OSError) and error.strerror:
        return KinetoscopeError(
            f"the system refused: {error.strerror}",
            where=str(error.filename or "reading the input or writing the output"),
        )
    if isinstance(error, MemoryError):
        return KinetoscopeError("there is not enough memory for this", hint="give it a shorter recording")
    last = traceback.extract_tb(error.__traceback__)[-1]
    return KinetoscopeError(
        f"a fault of kinetoscope itself, not of yours: {type(error).__name__}: {error}",
        where=f"{os.path.basename(last.filename)}:{last.lineno}, in {last.name}",
        hint=f"please report it, with what {DEBUG}=1 in the environment makes it print: {ISSUES}",
    )


def _say(text: str) -> None:
    """A message on stderr, where there is one: paths and foreign words in it are kept from the terminal."""
    from kinetoscope.render.names import printable

    with suppress(OSError):
        lines = (printable(line[:LONGEST_LINE]) for line in text.splitlines())
        print("kinetoscope:", "\n".join(lines), file=sys.stderr)
