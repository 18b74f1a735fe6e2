"""`kinetoscope tune`: which compile mode or setting wins for a program, measured side by side."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "kinetoscope tune [options] [--] script.py [arguments]   |   "
        "kinetoscope tune [options] -m module [arguments]"
    )
    parser.epilog = (
        "The program is run unedited, once a setting and round. {batch} in its arguments becomes --batch."
    )
    add = parser.add_argument
    add(
        "--modes",
        type=_words,
        default=[],
        metavar="M,…",
        help="modes of torch.compile (default: all four); eager, the base, always runs",
    )
    add(
        "--backends",
        type=_words,
        default=[],
        metavar="B,…",
        help="backends of torch.compile (default: inductor); `kinetoscope doctor` says which are here",
    )
    add("--dynamic", type=_words, default=[], metavar="B,…", help="true, false: what dynamic= is set to")
    add(
        "--matmul-precision",
        type=_words,
        default=[],
        metavar="P,…",
        help="also with these: highest, high, medium",
    )
    add(
        "--batch",
        type=_words,
        default=[],
        metavar="N,…",
        help="values for {batch} among the program's arguments",
    )
    add("--tokens", type=int, metavar="N", help="tokens of a sample: also show tokens a second")
    add("--rounds", type=int, default=3, metavar="N", help="runs of each setting (default 3)")
    add("--steps", type=int, default=40, metavar="N", help="steps of each run (default 40)")
    add(
        "--seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="of each run after its first step (default 60)",
    )
    add("--out", metavar="DIR", help="keep the result, with every sample, in DIR/bench/")
    add("--json", action="store_true", help="print one JSON document")
    add("-m", dest="module", action="store_true", help="run a module, as python -m does")
    add("program", nargs=argparse.REMAINDER, metavar="script.py [arguments]", help="what to run")


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def main(arguments: argparse.Namespace) -> int:
    import sys
    from pathlib import Path

    from kinetoscope.bench import kept
    from kinetoscope.bench.tune import settings
    from kinetoscope.bench.tune.program import check, tune_program
    from kinetoscope.report.pages.json import indented

    words: list[str] = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    check(words, module=arguments.module, batches=arguments.batch, tokens=arguments.tokens)
    tuning = tune_program(
        settings.named(
            arguments.modes,
            backends=arguments.backends,
            dynamic=arguments.dynamic,
            precisions=arguments.matmul_precision,
            batches=arguments.batch,
        ),
        words,
        module=arguments.module,
        rounds=arguments.rounds,
        steps=arguments.steps,
        seconds=arguments.seconds,
        tokens_per_sample=arguments.tokens,
        progress=lambda text: print(f"kinetoscope: {text}", file=sys.stderr, flush=True),
    )
    if arguments.out:
        kept.keep(Path(arguments.out), "tune", tuning)
    if arguments.json:
        print(indented(tuning))
        return 0
    from kinetoscope.report.pages.console import standard_output
    from kinetoscope.report.verbs.tune import print_tuning

    print_tuning(tuning, standard_output(widest=None))
    return 0
