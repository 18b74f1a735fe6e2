"""Which buffer of which compiled graph a line of generated code allocates."""

from __future__ import annotations

import re
from pathlib import PurePath

import polars as pl

from kinetoscope.sources.run import Run

BUFFER = re.compile(r"^\s*(?P<name>\w+) = (?:empty_strided\w*|torch\.empty\w*|\w*\.empty_strided\w*)\(")
EXTERN = re.compile(r"^\s*(?P<name>\w+) = (?P<callee>[\w.]+)\(")
SCHEMA = {"graph": pl.String, "graph_line": pl.Int32, "buffer": pl.String}


def buffers(run: Run) -> pl.DataFrame:
    """What lines of generated modules allocate, by the name of the module's file.

    Returns:
        ``graph``, ``graph_line``, ``buffer``: ``0/0 forward: buf3``, or with the library's function that
        returns it. Modules that no compile log lists have no rows.
    """
    rows: list[tuple[str, int, str]] = []
    if run.compilation is not None:
        for graph in run.compilation.graphs:
            text = run.compilation.modules.get(graph.index)
            if graph.module is None or text is None:
                continue
            stem, label = PurePath(graph.module).stem, f"{graph.compile_id} {graph.direction}"
            for number, line in enumerate(text.read().splitlines(), 1):
                if made := BUFFER.match(line):
                    rows.append((stem, number, f"{label}: {made['name']}"))
                elif made := EXTERN.match(line):
                    rows.append((stem, number, f"{label}: {made['name']} of {made['callee']}"))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").unique(["graph", "graph_line"], keep="first")
