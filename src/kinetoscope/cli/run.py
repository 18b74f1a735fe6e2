"""`kinetoscope run`: record a program, unedited."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from kinetoscope.capture.options import Options, described
from kinetoscope.cli import _options
from kinetoscope.errors import UsageError

EPILOG = """\
examples:
  kinetoscope run train.py --batch 128                  a script, with its own arguments
  kinetoscope run -m package.train --batch 128          a module
  kinetoscope run -o before torchrun --nproc-per-node 8 train.py

then, REC being the folder that it names at its end:
  kinetoscope report REC
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "kinetoscope run [options] [--] script.py [arguments]   |   "
        "kinetoscope run [options] -m module [arguments]"
    )
    add = parser.add_argument
    for name, (default, text) in described().items():
        flag = f"--{name.removesuffix('_mb').replace('_', '-')}"
        if default is True:
            add(f"--no-{flag[2:]}", dest=name, action="store_false", help=f"do not {text}")
        elif default is False:
            _options.flag(parser, flag, text)
        else:
            kind, metavar = KINDS[name]
            add(flag, dest=name, type=kind, metavar=metavar, default=default, help=text)
    add("-o", "--out", type=Path, metavar="DIR", help="the recording's folder (recordings/<script>-<time>)")
    _options.flag(
        parser,
        "--stop",
        "end the program once everything is recorded, with status 0: SIGINT, SIGTERM after 10 s, "
        "SIGKILL after 30 s; the traceback of KeyboardInterrupt is the program's own",
    )
    _options.flag(parser, "--exit-code", "changes nothing: the exit status is always the program's own")
    _options.flag(parser, "--no-report", "do not print the summary at the end")
    _options.program(parser)


def _ranks(text: str) -> str:
    from kinetoscope.capture.process.ranks import listed

    if text not in ("all", "first", "hosts"):
        try:
            listed(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError("all, first, hosts, or a list such as 0,3,8-15") from error
    return text


# Options with a value: how it is read, and what the help calls it.
KINDS: dict[str, tuple[Callable[[str], object], str]] = {
    "steps": (_options.at_least(1), "N"),
    "warmup": (int, "N"),
    "range": (str, "NAME"),
    "step": (str, "NAME"),
    "ranks": (_ranks, "WHICH"),
    "budget_mb": (_options.at_least(1), "MB"),
}


# Options that --on-request heeds; the others are about a recording from the program's start.
HEEDED = ("on_request", "step", "shapes", "flops", "graphs", "ranks", "budget_mb")


def _check_on_request(options: Options, *, stop: bool) -> None:
    """Raises UsageError where another option has no meaning with it, or the system has no sockets for it."""
    usual = Options()
    others = [name for name in Options.__struct_fields__ if getattr(options, name) != getattr(usual, name)]
    others = ["stop", *others] if stop else others
    for name in others:
        if name not in HEEDED:
            raise UsageError(
                f"--{name.replace('_', '-')} has no meaning with --on-request",
                hint="it heeds --shapes, --flops, --graphs, --step, --ranks and --budget; `record` takes "
                "the steps",
            )
    if not sys.platform.startswith("linux"):
        raise UsageError("--on-request needs Linux", hint="record a block: kinetoscope.profile()")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.capture.process import launch
    from kinetoscope.capture.process.launch import announce, announce_waiting, summarize

    words: list[str] = arguments.program
    if arguments.module:
        words = ["-m", *words]
    arguments.lines = arguments.lines and not arguments.whole  # noted in a step of their own
    options = Options(**{name: getattr(arguments, name) for name in Options.__struct_fields__})
    if options.on_request:
        _check_on_request(options, stop=arguments.stop)
    program = launch.program(words)
    said = announce_waiting if options.on_request else announce
    report = not arguments.no_report
    outcome = launch.run(program, options, arguments.out, said, stop=arguments.stop, report=report)
    if outcome.speaks:
        summarize(outcome, report=report)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    return 0 if outcome.stopped else outcome.status
