"""SQL over the tables of a run."""

from __future__ import annotations

import re

import polars as pl

from kinetoscope.analysis import bounded
from kinetoscope.analysis.collectives import instances
from kinetoscope.analysis.kernels.work import work
from kinetoscope.errors import UsageError, meant
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace import schema
from kinetoscope.trace.model import with_arguments
from kinetoscope.trace.schema import Schema, TableColumn

RANK: Schema = {"rank": TableColumn(pl.Int32, "the trace's rank; row numbers count within one rank")}
WORK: Schema = {
    "end_ns": TableColumn(pl.Int64, "start + duration"),
    "category": TableColumn(schema.NAME, "what kind of kernel: pointwise, matmul, communication, …"),
    "part": TableColumn(schema.TEXT, "compute, copy or communication"),
    "op_name": TableColumn(schema.NAME, "name of `op`"),
    "step_name": TableColumn(schema.TEXT, "name of `step`"),
    "launch_name": TableColumn(schema.NAME, "name of `launch`"),
    "launch_start_ns": TableColumn(pl.Int64, "start of `launch`"),
}


def _shown(columns: Schema) -> Schema:
    """The columns as SQL and Parquet see them: names and categories are plain text."""
    return {
        name: TableColumn(pl.String, column.meaning)
        if column.dtype == pl.Categorical or isinstance(column.dtype, pl.Enum)
        else column
        for name, column in columns.items()
    }


# With comments and brackets before it; WITH names subqueries, FROM may stand first in Polars' dialect.
SELECT = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:select|with|from)\b", re.IGNORECASE | re.DOTALL)
# How the engine says that it found none of that name.
UNKNOWN = re.compile(
    r"relation '(?P<table>[^']+)' was not found|unable to find column \"(?P<column>[^\"]+)\""
)

# What `query` and `export --to parquet` offer: the declared tables of every rank one below the other.
TABLES: dict[str, Schema] = {
    name: _shown(RANK | columns | (WORK if name == "device_events" else {}))
    for name, columns in schema.TABLES.items()
} | {"collectives": _shown(instances.COLUMNS)}


def tables(run: LoadedRun) -> dict[str, pl.LazyFrame]:
    """``TABLES`` by name. Nothing is computed until it is used."""
    frames = {
        name: pl.concat(
            trace.table(name).lazy().with_columns(rank=pl.lit(trace.rank, pl.Int32)) for trace in run.traces
        )
        for name in schema.TABLES
    }
    every = [with_arguments(work(trace), trace.device_arguments).lazy() for trace in run.traces]
    frames["device_events"] = _resolved(pl.concat(every), frames)
    columns = {name: column.dtype for name, column in TABLES["collectives"].items()}
    frames["collectives"] = pl.defer(lambda: instances.of_run(run), schema=columns)
    return {
        name: frame.select(pl.col(column).cast(kind.dtype) for column, kind in TABLES[name].items())
        for name, frame in frames.items()
    }


# Polars' table functions, however quoted or spaced: what lies between name and bracket is not looked at, as a
# reader of SQL less exact than the engine's would be a way around it.
_READS_FILES = re.compile(r"\b(?:read|scan)_\w+.*\(", re.IGNORECASE | re.DOTALL)


def query(run: LoadedRun, sql: str, *, allow_files: bool = False) -> pl.DataFrame:
    """The rows that one SELECT (Polars' dialect) takes from ``tables(run)``.

    Args:
        allow_files: let the statement read files and addresses, with ``read_csv`` and its like.

    Raises:
        UsageError: the statement is no SELECT, reads files unasked, cannot be run, or takes more time or
            memory than it is given (see ``bounded``).
    """
    if not SELECT.match(sql):
        raise UsageError(
            "only a SELECT can be run: a recording is read, never changed",
            where=sql,
            hint='kinetoscope query INPUT "SELECT name, duration_ns FROM device_events LIMIT 10"',
        )
    if not allow_files and _READS_FILES.search(sql):
        raise UsageError(
            "the query would read files besides the recording (read_csv and its like)",
            where=sql,
            hint="if that is what you want: kinetoscope query --allow-files INPUT SQL",
        )
    try:
        found = bounded.executed(tables(run), sql)
    except bounded.RefusedError as error:
        reason = str(error).split("\n\n")[0].split("; valid columns:")[0]
        raise UsageError(
            f"the query cannot be run: {reason}", where=sql, hint=error.hint or _hint(reason, sql)
        ) from error
    # What is divided by 1000.0 is a decimal to Polars, and decimals are texts in JSON.
    return found.with_columns(pl.selectors.decimal().cast(pl.Float64))


def _hint(reason: str, sql: str) -> str:
    """Which table, or column of the tables that are named, may have been meant, and where they are listed."""
    listed = "kinetoscope query INPUT --tables lists the tables and their columns"
    word = UNKNOWN.search(reason)
    if not word:
        return listed
    named = [columns for table, columns in TABLES.items() if re.search(rf"\b{table}\b", sql)]
    columns = dict.fromkeys(column for table in named or TABLES.values() for column in table)
    return f"{meant(word['table'] or word['column'], TABLES if word['table'] else columns)}; {listed}"


def _resolved(work: pl.LazyFrame, frames: dict[str, pl.LazyFrame]) -> pl.LazyFrame:
    """Device work with the names of what it refers to by row number."""
    host = frames["host_events"]
    ops = host.select("rank", op="id", op_name="name")
    launches = host.select("rank", launch="id", launch_name="name", launch_start_ns="start_ns")
    steps = frames["steps"].select("rank", step="id", step_name="name")
    return (
        work.join(ops, on=["rank", "op"], how="left", maintain_order="left")
        .join(launches, on=["rank", "launch"], how="left", maintain_order="left")
        .join(steps, on=["rank", "step"], how="left", maintain_order="left")
    )
