"""What made each allocation: an op of the trace, or a line of the code that Inductor generated."""

from __future__ import annotations

import re
from pathlib import PurePath

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest, running
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.origins.attribution import origins
from kinetoscope.analysis.time.memory import CPU
from kinetoscope.sources.run import Run
from kinetoscope.trace.model import Trace

EMPTY = r"^aten::(new_)?(empty|resize)"  # they allocate for the op that calls them
BASE = "baseTimeNanoseconds"  # what a trace's times are counted from, on the wall clock
APART = 1_000_000  # ns that the two clocks may differ by
COLUMNS = {"allocation": pl.UInt32, "op": pl.String, "ran_module": pl.String}


def unseen(known: pl.DataFrame) -> pl.DataFrame:
    """Where there is no trace."""
    return pl.DataFrame(schema=COLUMNS)


def ops(trace: Trace, known: pl.DataFrame) -> pl.DataFrame:
    """Of allocations that the trace saw: ``allocation``, ``op`` (the innermost that computes) and
    ``ran_module`` (of backward work its forward op's; null where modules were not recorded)."""
    base = trace.metadata.get(BASE)
    made = trace.memory.filter(pl.col("device_type") != CPU, pl.col("bytes") > 0)
    if not isinstance(base, int) or made.is_empty():
        return pl.DataFrame(schema=COLUMNS)
    made = made.select(
        "device", "lane", "start_ns", pl.col("address").cast(pl.Int64), wall_ns=pl.col("start_ns") + base
    )
    begun = known.filter(pl.col("start_us").is_not_null())
    begun = begun.select("allocation", "device", "address", wall_ns=pl.col("start_us") * 1000)
    found = begun.sort("wall_ns").join_asof(
        made.sort("wall_ns"),
        on="wall_ns",
        by=["device", "address"],
        strategy="nearest",
        tolerance=APART,
        check_sortedness=False,
    )
    found = found.filter(pl.col("lane").is_not_null())
    host = trace.host_events
    at = running(host, found)
    is_op = matching(host, "category", "^cpu_op$") & ~matching(host, "name", EMPTY)
    return found.select(
        "allocation",
        host["name"].gather(nearest(host, is_op).gather(at)).cast(pl.String).alias("op"),
        origins(host, at)["module_name"].cast(pl.String).alias("ran_module"),
    )


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
