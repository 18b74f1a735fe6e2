"""`kinetoscope tune`: which compile mode or setting wins for a program, measured side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kinetoscope.cli import _options

if TYPE_CHECKING:
    from kinetoscope.bench.tune.largest import Foreseen


EPILOG = """\
examples:
  kinetoscope tune train.py --batch 128                 eager next to each mode of torch.compile
  kinetoscope tune --batch 64,128 --modes default -- train.py --batch {batch}

The program is run unedited, once a setting and round. {batch} in its arguments becomes --batch.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "kinetoscope tune [options] [--] script.py [arguments]   |   "
        "kinetoscope tune [options] -m module [arguments]"
    )
    add = parser.add_argument
    listed = {
        "--modes M,…": "modes of torch.compile (default: all four); eager, the base, always runs",
        "--backends B,…": "backends of torch.compile (default: inductor); "
        "`kinetoscope doctor` says which are here",
        "--dynamic B,…": "true, false: what dynamic= is set to",
        "--matmul-precision P,…": "also with these: highest, high, medium",
        "--batch N,…": "values for {batch} among the program's arguments",
    }
    for option, what in listed.items():
        name, metavar = option.split()
        add(name, type=_words, default=[], metavar=metavar, help=what)
    add(
        "--fits",
        metavar="REC",
        help="only find the largest batch that fits, starting from what this recording of the program "
        "(run --memory) predicts; the batch that was recorded is read from its command, or is --batch",
    )
    add(
        "--tokens",
        type=_options.at_least(1),
        metavar="N",
        help="tokens of a sample: also show tokens a second",
    )
    add(
        "--rounds", type=_options.at_least(1), default=3, metavar="N", help="runs of each setting (default 3)"
    )
    add("--steps", type=_options.at_least(1), default=40, metavar="N", help="steps of each run (default 40)")
    seconds = "seconds of each run after its first step (default 60)"
    add("--seconds", type=_options.at_least(0, float), default=60.0, metavar="S", help=seconds)
    _options.output(parser, "keep the result, with every sample, in DIR/bench/", metavar="DIR")
    _options.as_json(parser)
    _options.program(parser)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.bench import kept
    from kinetoscope.bench.tune import settings
    from kinetoscope.bench.tune.program import check, tune_program
    from kinetoscope.views import tune as view

    words: list[str] = arguments.program
    check(words, module=arguments.module, batches=arguments.batch, tokens=arguments.tokens)
    if arguments.fits:
        return _largest(arguments, words)
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
        progress=_options.progress,
    )
    if arguments.output:
        kept.keep(arguments.output, "tune", tuning)
    _options.answer(arguments, tuning, lambda: view.settings(tuning))
    return 0


def _largest(arguments: argparse.Namespace, words: list[str]) -> int:
    from kinetoscope.bench import kept
    from kinetoscope.bench.tune.largest import largest_batch
    from kinetoscope.views.tune import largest

    found = largest_batch(
        _foreseen(arguments.fits, words, arguments.batch),
        words,
        module=arguments.module,
        steps=arguments.steps,
        seconds=arguments.seconds,
        progress=_options.progress,
    )
    if arguments.output:
        kept.keep(arguments.output, "largest", found)
    _options.answer(arguments, found, lambda: largest(found))
    return 0


def _foreseen(recording: str, words: list[str], batches: list[str]) -> Foreseen:
    """The recorded moment that leaves the least room."""
    from kinetoscope.bench.tune.largest import Foreseen, recorded_batch
    from kinetoscope.document.collect.memory import peaks
    from kinetoscope.errors import InputError, UsageError
    from kinetoscope.progress import load_shown

    run = load_shown([recording])
    command = run.manifest.command if run.manifest else ()
    given = int(batches[0]) if len(batches) == 1 and batches[0].isdecimal() else None
    batch = given if batches else recorded_batch(command, words)
    if not batch:
        raise UsageError(
            "the batch that was recorded is not known: its command is another one",
            hint="name it, a single number: --batch N",
        )
    rows = [peak.fits for peak in peaks(run).peaks if peak.fits is not None]
    if not rows:
        raise InputError(
            "it does not say what grows with the batch, or how large the device is",
            where=recording,
            hint="record it with `kinetoscope run --memory`",
        )
    least = min(rows, key=lambda row: row.high)
    return Foreseen(
        recording=recording,
        batch=batch,
        low=int(least.low * batch),
        high=int(least.high * batch),
        fixed_bytes=least.fixed_bytes,
        scaling_bytes=least.scaling_bytes,
    )
