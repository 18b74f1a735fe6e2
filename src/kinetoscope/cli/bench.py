"""`kinetoscope bench`: generated kernels and modules timed alone, configurations tried, winners applied."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetoscope.render.blocks import Block

KERNELS, AUTOTUNED = 20, 8

EPILOG = """\
examples:
  kinetoscope bench REC --limit 3                       the three generated kernels with most time
  kinetoscope bench REC --max-autotune --apply          better configurations, kept for Inductor
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, flag = parser.add_argument, partial(_options.flag, parser)
    read = "a recording, Inductor's cache folder, or a module that Inductor generated"
    add("input", metavar="INPUT", help=read)
    add("--kernel", metavar="GLOB", default="*", help="only kernels whose full name matches")
    graph = "replay the modules whose hash or AOT id begins so (with --kernel: only theirs)"
    add("--graph", metavar="HASH", help=graph)
    flag("--max-autotune", "try every configuration, then coordinate descent from the best")
    config = "also try this one: XBLOCK=128,num_warps=8"
    add("--config", action="append", default=[], metavar="C", help=config)
    add("--configs", metavar="FILE", help="also try these: one configuration a line")
    flag("--apply", "write the winners for Inductor, and replay their graphs with them")
    flag("--ncu", "also Nsight Compute's durations and speed-of-light numbers")
    timer = "how samples are taken (see docs/guide/bench.md)"
    add("--timer", choices=("activity", "events", "graph", "host"), help=timer)
    seconds = "seconds that a kernel is measured in one mode, at most (default 1)"
    add("--seconds", type=_options.at_least(0, float), default=1.0, metavar="S", help=seconds)
    limit = (
        f"kernels, most time first (default {KERNELS}; 0: all); with --max-autotune those that could "
        f"win most (default {AUTOTUNED})"
    )
    add("--limit", type=_options.at_least(0), metavar="N", help=limit)
    _options.as_json(parser, ", with every sample")
    flag("--trust", "run the recording's code, also where another user made it")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.bench import kept
    from kinetoscope.bench.autotune.configurations import parse_configuration, read_configurations
    from kinetoscope.bench.request import Request, Task, ask
    from kinetoscope.document.collect import measurements
    from kinetoscope.errors import InputError, UsageError
    from kinetoscope.recording.manifest import is_recording
    from kinetoscope.views import bench as view

    path = Path(arguments.input)
    if not path.exists():
        raise InputError("there is no such file or folder", where=str(path), hint="check the path")
    if arguments.apply and not arguments.max_autotune:
        raise UsageError("--apply has nothing to apply", hint="add --max-autotune")
    configurations = [parse_configuration(text) for text in arguments.config]
    if arguments.configs:
        configurations += read_configurations(Path(arguments.configs))
    _permit(path, arguments.trust)
    replayed = arguments.graph is not None and arguments.kernel == "*"
    task: Task = "autotune" if arguments.max_autotune else "module" if replayed else "kernels"
    default = AUTOTUNED if arguments.max_autotune else KERNELS
    model = measurements.in_model(path)
    result = ask(
        Request(
            task=task,
            input=str(path),
            pattern=arguments.kernel,
            graph=arguments.graph or "",
            order=tuple(model),
            limit=default if arguments.limit is None else arguments.limit,
            seconds=arguments.seconds,
            timer=arguments.timer,
            configurations=tuple(configurations),
            apply_in=str(path if is_recording(path) else Path.cwd()) if arguments.apply else None,
            with_ncu=arguments.ncu,
        )
    )
    if is_recording(path):
        kept.keep(path, task, result)

    def blocks() -> Iterable[Block]:
        if task == "autotune":
            return view.autotuned(measurements.autotuned(result, model))
        if task == "module":
            return view.replays(measurements.replayed(result))
        return view.kernels(measurements.benched(result, model))

    _options.answer(arguments, {"measured": result, "in_model": model}, blocks)
    return 0


def _permit(path: Path, trusted: bool) -> None:
    """Ask, once, before code is run that this user is not known to have made. Raises InputError where it may
    not be run, or there is no terminal to ask on."""
    import sys

    from kinetoscope import numbers
    from kinetoscope.bench.kernels import generated
    from kinetoscope.errors import InputError
    from kinetoscope.recording import trust
    from kinetoscope.recording.manifest import is_recording
    from kinetoscope.render.names import printable

    files = [*trust.code(path), *trust.inputs(path)]
    if not files or trust.is_known(path):
        return
    generated.find(path)  # what holds no code of Inductor's is refused, and nothing asked
    if not trusted:
        held = numbers.count(len(files), "file")
        what = f"bench runs the Python code in here ({held}), as you, and nothing says it is yours"
        where = f"{path}{_provenance(path)}"
        refused = InputError(what, where=where, hint="read that code; --trust runs it")
        if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise refused
        print(f"kinetoscope: {printable(str(refused))}\nRun it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise InputError("nothing was run", where=str(path))
    if is_recording(path):
        trust.sign(path)


def _provenance(path: Path) -> str:
    import shlex

    from kinetoscope.recording import manifest

    if not manifest.is_recording(path):
        return ""
    made = manifest.read(path)
    host = made.environment.host or "a machine without a name"
    return f", which says it was made on {host}, {made.created or 'no date'}, by {shlex.join(made.command)}"
