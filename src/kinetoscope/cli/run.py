"""`kinetoscope run`: record a program, unedited."""

from __future__ import annotations

import argparse
import contextlib
import functools
from pathlib import Path

from kinetoscope.cli import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "kinetoscope run [options] [--] script.py [arguments]   |   "
        "kinetoscope run [options] -m module [arguments]"
    )
    add, flag = parser.add_argument, functools.partial(_options.flag, parser)
    steps = "record this many steps (3, more where steps are very short)"
    add("--steps", type=_positive, metavar="N", help=steps)
    warmup = "let N steps pass first (otherwise: until the step time has settled)"
    add("--warmup", type=int, metavar="N", help=warmup)
    flag("--whole", "record everything, from the import of torch to the end")
    flag("--one-pass", "record once, the host and the device together, and not the device alone as well")
    add("--range", metavar="NAME", help="record only inside torch.profiler.record_function(NAME)")
    flag("--shapes", "record the shapes of operators' inputs")
    flag("--stacks", "record Python stacks")
    memory = "record allocations, and what the device's memory holds at its peak and when it runs out"
    flag("--memory", memory)
    flag("--flops", "record FLOPs of matmuls and convolutions (implies --shapes)")
    add("-o", "--out", type=Path, metavar="DIR", help="the recording's folder (recordings/<script>-<time>)")
    for name, what in {
        "compile-log": "do not keep torch.compile's log and generated code",
        "source": "do not keep the source of the program's own modules",
        "provenance": "compile as a plain run does, and find its caches warm",
    }.items():
        add(f"--no-{name}", dest=name.replace("-", "_"), action="store_false", help=what)
    flag("--bench-harness", "have Inductor write a benchmark into each generated file")
    flag(
        "--kernel-inputs",
        "in one more step, keep the integers that generated kernels are called with (they are the "
        "program's data: token ids, indices; up to 64 MiB) and the sources of hand-written Triton kernels, "
        "for `bench`",
    )
    ranks = (
        "of a launcher's ranks, those to record: all, first, hosts (the first of each) or a list (0,3,8-15)"
    )
    add("--ranks", type=_ranks, metavar="WHICH", default="all", help=ranks)
    budget = "memory that a whole recording may take (1000)"
    add("--budget", dest="budget_mb", type=_positive, metavar="MB", default=1000, help=budget)
    flag(
        "--stop",
        "end the program once everything is recorded, with status 0: SIGINT, SIGTERM after 10 s, "
        "SIGKILL after 30 s",
    )
    flag(
        "--careful",
        "record as cautiously as possible: no recording of the first steps, nothing detached, no compile log",
    )
    flag("--exit-code", "changes nothing: the exit status is always the program's own")
    flag("--no-report", "do not print the summary at the end")
    _options.program(parser)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _ranks(text: str) -> str:
    from kinetoscope.capture.process.ranks import listed

    if text not in ("all", "first", "hosts"):
        try:
            listed(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError("all, first, hosts, or a list such as 0,3,8-15") from error
    return text


def main(arguments: argparse.Namespace) -> int:
    import sys

    from kinetoscope.capture.options import Options
    from kinetoscope.capture.process import launch
    from kinetoscope.capture.process.summary import announce, summarize
    from kinetoscope.errors import UsageError

    words: list[str] = arguments.program
    module = None
    if arguments.module:
        if not words:
            raise UsageError(
                "-m needs the name of a module", hint="kinetoscope run -m package.module [arguments]"
            )
        module, words = words[0], words[1:]
    options = Options(**{name: getattr(arguments, name) for name in Options.__struct_fields__})
    program = launch.program(words, module)
    outcome = launch.run(program, options, arguments.out, announce, stop=arguments.stop)
    if outcome.speaks:
        summarize(outcome, report=not arguments.no_report)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    return 0 if outcome.stopped else outcome.status
