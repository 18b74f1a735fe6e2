"""``kinetoscope compare``: is the working tree faster than another version, on this machine, now?"""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options

EPILOG = """\
examples:
  kinetoscope compare --base git:main -- train.py --batch 8
  kinetoscope compare --base ../other-checkout --budget 600 --precision 0.5 -- train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "kinetoscope compare --base REF [options] [--] script.py [arguments]"
    add = parser.add_argument
    base = "git:BRANCH (a commit, a tag), or the other version's folder"
    add("--base", required=True, metavar="REF", help=base)
    steps = "steps of each run (default: all in its seconds)"
    add("--steps", type=_options.at_least(1), default=1_000_000, metavar="N", help=steps)
    seconds = "seconds of each run after its first step (default 5, less under a small budget)"
    add("--seconds", type=_options.at_least(0, float), metavar="S", help=seconds)
    link = "a path without git that the base needs too, as a folder of data (may be given several times)"
    add("--link", action="append", default=[], metavar="PATH", help=link)
    budget = "seconds for all runs together (default 300); a run that is not over by then is ended"
    add("--budget", type=_options.at_least(0, float), default=300.0, metavar="S", help=budget)
    precision = "stop once the interval is ± P %% (default 1)"
    add("--precision", type=_options.at_least(0, float), default=1.0, metavar="P", help=precision)
    _options.fail_on(parser, "end with 1 if so: 'step_time > 3%%'")
    _options.output(parser, "keep the result, with every run, in DIR/bench/", metavar="DIR")
    _options.as_json(parser)
    _options.program(parser)


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.bench import kept
    from kinetoscope.bench.versions.campaign import compare_versions
    from kinetoscope.bench.versions.worktree import at_hand, checked_out
    from kinetoscope.comparison.gates import STEP_TIME, judge, nothing_counted, parse
    from kinetoscope.errors import UsageError
    from kinetoscope.views import tune as view

    words: list[str] = arguments.program
    if not words:
        raise UsageError("there is nothing to run", hint="kinetoscope compare --base git:main -- script.py")
    gates = [parse(text) for text in arguments.fail_on]
    if any(gate.name != STEP_TIME for gate in gates):
        raise UsageError("runs that are only timed count nothing", where="--fail-on", hint="'step_time > 3%'")
    with checked_out(arguments.base, arguments.link) as base:
        found = compare_versions(
            base,
            at_hand(),
            words,
            module=arguments.module,
            steps=arguments.steps,
            seconds=arguments.seconds,
            budget_s=arguments.budget,
            precision=arguments.precision / 100,
            progress=_options.progress,
        )
    if arguments.output:
        kept.keep(arguments.output, "compare", found)
    times = {STEP_TIME: (found.base.step_s * 1e6, found.interval)}
    rows = [judge(gate, nothing_counted(), times) for gate in gates]
    _options.answer(arguments, view.versions_document(found, rows), lambda: view.versions(found, rows))
    return 1 if any(row.failed for row in rows) else 0
