"""``kinetoscope export``: the recording for other tools."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kinetoscope.cli import _options

EPILOG = """\
example:
  kinetoscope export REC --to perfetto -o trace.pftrace

formats:
  perfetto     for https://ui.perfetto.dev, with counters of device memory; PATH is a file: .pftrace is
               Perfetto's own format, anything else Chrome JSON, with .gz compressed
  speedscope   JSON for https://www.speedscope.app; PATH is a file, with .gz compressed
  parquet, csv one file a table (see `kinetoscope query --tables`); PATH is a folder. Of the parts of many
               ranks (`kinetoscope map`) one table: every collective with each rank's arrival and waiting

A recording's memory/rank0.pickle (`run --memory`) is what https://pytorch.org/memory_viz reads, as it is.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.inputs(parser)
    formats = ("perfetto", "parquet", "csv", "speedscope")
    parser.add_argument("--to", required=True, choices=formats, help="the format to write")
    _options.output(parser, "where to write it", metavar="PATH", required=True)


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.progress import load_shown
    from kinetoscope.render import destination

    output: Path = arguments.output
    if arguments.to in ("parquet", "csv"):
        destination.make_folder(output)
        from kinetoscope.analysis.query import tables
        from kinetoscope.cli._many import collectives
        from kinetoscope.export import write

        frames = collectives(arguments.inputs) or tables(load_shown(arguments.inputs))
        written = write.tables(frames, output, arguments.to, arguments.inputs)
        print(f"wrote {len(written)} tables into {output}", file=sys.stderr)
        return 0
    destination.check(output, arguments.inputs)
    from kinetoscope.export.write import rendered

    _options.write(output, rendered(load_shown(arguments.inputs), arguments.to, output))
    return 0
