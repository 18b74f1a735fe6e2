"""The op table that ``torch.profiler``'s ``key_averages()`` prints, from the trace alone.

The rules are those of ``torch/autograd/profiler.py`` (``_parse_kineto_results``) and ``profiler_util.py``
(``EventList``), checked on PyTorch 2.11 and 2.13:

- rows are distinguished by name and by ``kind``; ``ProfilerStep#1``, ``#2`` … are one row, ``ProfilerStep*``;
- an event's children are the events of its thread that it encloses, runtime calls among them; what overlaps
  it only in part is a child of the next event out that encloses it;
- the profiler's own overhead is a child of the event, of any thread, that encloses it and started last;
- bookkeeping ops (``aten::is_leaf``, ``profiler::_record_function_enter``, …) are left out before that, and
  so are Python functions;
- an only child of the same name is merged into its parent: one call, not two;
- an op's total device time adds its children's: one that calls another of its own name counts the inner total
  twice, here as there;
- kernels, copies and memsets are rows of their own, and so are the ranges that annotations span on the
  device, whose time is not work.

It differs on purpose: torch counts an op's device time once more for every overhead event inside it, and
gives a device event to the op whose External id it carries; here it is counted once, and belongs to the
innermost op or annotation around its launch, as in every other table.
"""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.enclosing import nearest, with_inside
from kinetoscope.analysis.events.rows import END, constant, matching
from kinetoscope.analysis.events.torch_names import BOOKKEEPING, STEP
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

ANY_STEP = "ProfilerStep*"


@remembered
def ops(run: LoadedRun) -> pl.DataFrame:
    """One row per name and kind, all ranks together, most device time first: ``OpRow``, in integer ns."""
    tables = [ops_of(trace) for trace in run.traces]
    return (
        pl.concat(tables)
        .group_by("name", "kind")
        .agg(pl.col("calls", "host_self_ns", "host_total_ns", "device_self_ns", "device_total_ns").sum())
        .sort("device_self_ns", "host_self_ns", "name", descending=[True, True, False])
    )


@kept
def ops_of(trace: Trace) -> pl.DataFrame:
    """``ops`` of one trace, unordered."""
    return pl.concat([_host_rows(trace), _device_rows(trace)])


def _host_rows(trace: Trace) -> pl.DataFrame:
    tree = _tree(trace.host_events)
    counted = tree.select("name", "category", "duration_ns", "parent").filter(tree["counted"])
    # Sums of sums: every time goes to the row of the table that its event belongs to.
    calls = counted.group_by("name", "category").agg(
        calls=pl.len().cast(pl.Int64), host_total_ns=pl.col("duration_ns").sum()
    )
    children = _by_row(tree, counted["parent"], -counted["duration_ns"], "host_self_ns")
    # Of the op around the launch, as everywhere else.
    around, device_ns = tree["stands_for"][trace.device_events["op"]], trace.device_events["duration_ns"]
    device_self = _by_row(tree, around, device_ns, "device_self_ns")
    total = with_inside(tree["parent"], around, device_ns)
    totals = _by_row(tree, tree["id"], total, "device_total_ns")
    own = calls.with_columns(host_self_ns="host_total_ns")
    return (
        pl.concat([own, children, device_self, totals], how="diagonal")
        .with_columns(pl.exclude("name", "category").fill_null(0))
        .with_columns(pl.col("name").cast(pl.String).str.replace(f"{STEP}.*", ANY_STEP))
        .rename({"category": "kind"})
        .with_columns(pl.col("kind").cast(pl.String))
        .group_by("name", "kind")
        .sum()
        .select(COLUMNS)
    )


COLUMNS = ["name", "kind", "calls", "host_self_ns", "host_total_ns", "device_self_ns", "device_total_ns"]


def _tree(host: pl.DataFrame) -> pl.DataFrame:
    """Host events with torch's ``parent``; ``counted`` is false for those merged into their parent or left
    out, and ``stands_for`` is the row that counts instead (itself, for most)."""
    left_out = matching(host, "name", BOOKKEEPING)
    kept = ~left_out & ~matching(host, "category", "^(trace|python_function)$")
    end = host["start_ns"] + host["duration_ns"]
    above = nearest(host, kept)
    parent = _climb(above[host["parent"]], end, end, above[host["parent"]])
    table = host.select("id", "name", "category", "duration_ns", "depth").with_columns(
        counted=kept, parent=parent
    )
    table = _place_overhead(table, host)
    merged = (
        table["counted"]
        & _is_only(table.filter("counted")["parent"], len(table))[table["parent"]].fill_null(False)
        & (table["name"] == table["name"][table["parent"]]).fill_null(False)
    )
    outer = nearest(table, ~merged)
    return table.with_columns(
        counted=pl.col("counted") & ~merged, parent=outer.gather(table["parent"]), stands_for=outer
    )


def _is_only(parents: pl.Series, rows: int) -> pl.Series:
    """Whether each row stands among the parents exactly once."""
    ordered = parents.drop_nulls().sort()
    once = ordered.filter(
        (ordered != ordered.shift(1)).fill_null(True) & (ordered != ordered.shift(-1)).fill_null(True)
    )
    return constant(False, rows, pl.Boolean).scatter(once, True)


def _climb(rows: pl.Series, ends: pl.Series, end_of_row: pl.Series, parent: pl.Series) -> pl.Series:
    """From each row up to the first that does not end before ``ends``: at most as far as the tree is deep."""
    while (early := (end_of_row[rows] < ends).fill_null(False)).any():
        rows = pl.select(pl.when(early).then(parent[rows]).otherwise(rows)).to_series()
    return rows


def _place_overhead(table: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """``table`` with the event that each of the profiler's overhead events interrupted as its ``parent``."""
    reach = host.select("id", "lane", "start_ns", END)
    is_overhead = matching(host, "category", "^overhead$")
    overhead = reach.filter(is_overhead)
    if overhead.is_empty():
        return table
    running = reach.select("id", "lane", "start_ns").filter(
        table["counted"] & ~is_overhead
    )  # by lane and start
    pairs = (
        overhead.drop("lane")
        .join(running.select("lane").unique(), how="cross")
        .sort("start_ns")
        .join_asof(
            running.select("lane", "start_ns", around="id"), on="start_ns", by="lane", check_sortedness=False
        )
    )
    around = _climb(pairs["around"], pairs["end_ns"], reach["end_ns"], table["parent"])
    found = (
        pairs.with_columns(around=around, began_ns=reach["start_ns"][around])
        # What the overhead itself encloses did not get interrupted by it, even if it starts and ends with it.
        .filter(
            (pl.col("began_ns") < pl.col("start_ns")) | (reach["end_ns"].gather(around) > pl.col("end_ns"))
        )
        .sort("began_ns", "around", descending=True)
        .unique("id", keep="first")
        .select("id", "around")
    )
    return table.with_columns(table["parent"].set(is_overhead, None).scatter(found["id"], found["around"]))


def _by_row(tree: pl.DataFrame, ids: pl.Series, ns: pl.Series, column: str) -> pl.DataFrame:
    """(name, category, ``column``): times of the host events that are counted, summed by name."""
    names = tree[["name", "category", "counted"]][ids].hstack([ns.alias(column)]).filter("counted")
    return names.group_by("name", "category").agg(pl.sum(column))


def _device_rows(trace: Trace) -> pl.DataFrame:
    is_range = matching(trace.device_annotations, "category", "^gpu_user_annotation$")
    ranges = trace.device_annotations.select("name", "duration_ns").filter(is_range)
    sums = (
        table.group_by("name", kind).agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("duration_ns").sum())
        for table, kind in (
            (trace.device_events, pl.col("kind").cast(pl.String)),
            (ranges, pl.lit("device annotation").alias("kind")),
        )
    )
    return (
        pl.concat(sums)
        .group_by(pl.col("name").cast(pl.String).str.replace(f"{STEP}.*", ANY_STEP), "kind")
        .agg(
            pl.col("calls").sum(),
            host_self_ns=pl.lit(0, pl.Int64),
            host_total_ns=pl.lit(0, pl.Int64),
            device_self_ns=pl.col("duration_ns").sum(),
            device_total_ns=pl.col("duration_ns").sum(),
        )
        .select(COLUMNS)
    )
