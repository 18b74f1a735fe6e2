"""`kinetoscope tune`: which compile mode or setting wins for a program, measured side by side."""

from __future__ import annotations

import argparse
import time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "kinetoscope tune [options] [--] script.py [arguments]   |   kinetoscope tune [options] -m module [arguments]"
    parser.epilog = (
        "The program is run unedited, once a setting and round. {batch} in its arguments becomes --batch."
    )
    add = parser.add_argument
    add(
        "--modes",
        type=_words,
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

    import msgspec

    from kinetoscope.bench.measure import results
    from kinetoscope.bench.measure.device import import_torch
    from kinetoscope.bench.tune import settings
    from kinetoscope.bench.tune.programs import tune_program
    from kinetoscope.capture.compiler import backends
    from kinetoscope.errors import InputError, UsageError

    words: list[str] = arguments.program[1:] if arguments.program[:1] == ["--"] else list(arguments.program)
    if not words:
        raise UsageError("there is nothing to run", mend="kinetoscope tune [options] script.py [arguments]")
    if not arguments.module and not Path(words[0]).is_file():
        raise InputError("the script does not exist", where=words[0], mend="check the path")
    modes: list[str] = arguments.modes or list(settings.MODES)
    for given, known, option in (
        (modes, ("eager", *settings.MODES), "--modes"),
        (arguments.matmul_precision, settings.PRECISIONS, "--matmul-precision"),
        (arguments.dynamic, ("true", "false"), "--dynamic"),
    ):
        for word in given:
            if word not in known:
                raise UsageError(f"{option}: there is no {word!r}", mend=f"one or more of {','.join(known)}")
    if arguments.batch and not any("{batch}" in word for word in words):
        raise UsageError(
            "--batch has nowhere to go", mend="write {batch} where the program takes its batch size"
        )
    for name in arguments.backends:
        backend = backends.known(name)
        if backend is not None and backend.needs:
            raise UsageError(
                f"--backends: {name} cannot be used here",
                mend=f"{backend.needs} (`kinetoscope doctor` lists every backend)",
            )
    if arguments.tokens is not None and not (arguments.batch and all(map(str.isdecimal, arguments.batch))):
        raise UsageError(
            "--tokens are of a sample", mend="give batch sizes: --batch 8,16, and {batch} where they go"
        )
    import_torch()
    found = tune_program(
        settings.grid(
            [mode for mode in modes if mode != "eager"],
            backends=arguments.backends,
            dynamic=[word == "true" for word in arguments.dynamic],
            precisions=arguments.matmul_precision,
            batches=arguments.batch,
        ),
        words,
        module=arguments.module,
        rounds=max(1, arguments.rounds),
        steps=max(4, arguments.steps),
        seconds=arguments.seconds,
        progress=lambda text: print(f"kinetoscope: {text}", file=sys.stderr, flush=True),
    )
    found = msgspec.structs.replace(found, tokens_per_sample=arguments.tokens)
    if arguments.out:
        results.save(Path(arguments.out), f"tune-{time.strftime('%Y%m%d-%H%M%S')}", found)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return 0
    from kinetoscope.report.pages.console import standard_output
    from kinetoscope.report.verbs.tuning import print_tuning

    print_tuning(found, standard_output(widest=None))
    return 0
