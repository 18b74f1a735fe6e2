"""``kinetoscope map``: a part of each trace of a job of many ranks, from which ``report`` compares them."""

from __future__ import annotations

import argparse

from kinetoscope.cli import _options

EPILOG = """\
example, on each node or in each task of a job, and afterwards once:
  kinetoscope map /local/traces --parts s3://bucket/parts
  kinetoscope report s3://bucket/parts

One line a trace is printed. A trace that did not change is not mapped again. Exit status 3: some trace
could not be read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser, "traces, recordings, folders of them however deep, patterns and buckets")
    _options.parts(parser, required=True)
    job = "the name of the traces' job: `report` compares ranks of one job"
    parser.add_argument("--job", default="", metavar="NAME", help=job)
    _options.engine(parser, ("local", "ray"))


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.errors import InputError
    from kinetoscope.fleet.engine import ENGINES
    from kinetoscope.fleet.gather import mapped
    from kinetoscope.fleet.store import Store
    from kinetoscope.sources.paths import find

    found = find(arguments.inputs)
    if not found.traces:
        raise InputError("there is no trace in it", where=" ".join(arguments.inputs))
    for sentence in found.left_out:
        print(sentence, flush=True)
    status = 0
    for one in mapped(found.traces, Store(arguments.parts), ENGINES[arguments.engine], arguments.job):
        if isinstance(one.part, InputError):
            status = one.part.exit_code
            print(f"{one.trace.url}: left out: {one.part.what}", flush=True)
        else:
            facts = one.part.facts
            done = "was mapped before" if one.was_kept else f"{facts.events:,} events"
            print(f"{one.trace.url}: rank {facts.rank}, {done}", flush=True)
    return status
