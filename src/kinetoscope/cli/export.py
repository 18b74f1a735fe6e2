"""``kinetoscope export``: the recording for other tools."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

EPILOG = """\
formats:
  perfetto     for https://ui.perfetto.dev, with counters of device memory; PATH is a file: .pftrace is
               Perfetto's own format, anything else Chrome JSON, with .gz compressed
  speedscope   JSON for https://www.speedscope.app; PATH is a file, with .gz compressed
  parquet      one file a table (see `kinetoscope query --tables`); PATH is a folder

A recording's memory/rank0.pickle (`run --memory`) is what https://pytorch.org/memory_viz reads, as it is.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="a recording, a trace, or a folder of them"
    )
    parser.add_argument("--to", required=True, choices=("perfetto", "parquet", "speedscope"))
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="PATH")


def main(arguments: argparse.Namespace) -> int:
    from kinetoscope.progress import load_shown
    from kinetoscope.render import destination

    output: Path = arguments.output
    if arguments.to == "parquet":
        destination.make_folder(output)
        from kinetoscope.export import parquet

        written = parquet.write(load_shown(arguments.inputs), output, arguments.inputs)
        print(f"wrote {len(written)} tables into {output}", file=sys.stderr)
        return 0
    destination.check(output, arguments.inputs)
    from kinetoscope.export import perfetto, pftrace, speedscope

    chosen = pftrace if output.suffix == ".pftrace" else perfetto
    render = chosen.render if arguments.to == "perfetto" else speedscope.render
    content = render(load_shown(arguments.inputs))
    if output.suffix == ".gz":
        import gzip

        content = gzip.compress(content, compresslevel=6)
    destination.write(output, content)
    print(f"wrote {output} ({len(content):,} bytes)", file=sys.stderr)
    return 0
