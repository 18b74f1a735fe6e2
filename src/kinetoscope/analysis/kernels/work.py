"""The one table of device work that every other analysis starts from."""

from __future__ import annotations

import re

import polars as pl

from kinetoscope.analysis.events.backward import in_update
from kinetoscope.analysis.events.enclosing import caller, nearest, outermost
from kinetoscope.analysis.events.rows import END, matching, of_ascii
from kinetoscope.analysis.events.torch_names import COMPUTES_NOTHING, OP, OPS, OPTIMIZER
from kinetoscope.analysis.kernels import taxonomy
from kinetoscope.analysis.memo import kept, remembered
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

CATEGORY = pl.Categorical


@remembered
def categories(trace: Trace) -> pl.Series:
    """The category of each row of ``device_events``, in its order.

    Copies and memsets are what the file says they are. A kernel with a recorded collective is communication;
    every other is the first rule of ``taxonomy.RULES`` that fits its name, the op and the call that launched
    it, and what is around that op; the rest is "other". Rules are tried once for each distinct combination.
    """
    return _categories(trace).to_series()


@kept
def _categories(trace: Trace) -> pl.DataFrame:
    device, host = trace.device_events, trace.host_events
    called_by = caller(device)
    launched = device.select(
        "kind",
        "name",
        op=host["name"][device["op"]],
        call=host["name"][device["launch"]],
        is_collective=pl.col("collective").is_not_null(),
        **{_under(around): _inside(trace, around)[called_by].fill_null(False) for around in AROUND},
    )
    distinct = launched.unique(maintain_order=True)
    texts = distinct.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    if len(_KNOWN) > MOST_KNOWN:
        _KNOWN.clear()
    new = texts.filter([combination not in _KNOWN for combination in texts.iter_rows()])
    if len(new):
        _KNOWN.update(zip(new.iter_rows(), classify(new), strict=True))
    known = [_KNOWN[combination] for combination in texts.iter_rows()]
    decided = distinct.with_columns(pl.Series("category", known, pl.String).cast(CATEGORY))
    keys = launched.columns
    found = launched.join(decided, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return found.select("category")


# Of what was classified before: ranks of a run, and the windows of a rank, have the same kernels.
_KNOWN: dict[tuple[object, ...], str] = {}
MOST_KNOWN = 50_000
AROUND = [rule.under for rule in taxonomy.RULES if rule.under is not None]


def classify(table: pl.DataFrame) -> pl.Series:
    """The category of each piece of work by ``kind``, ``name`` and ``is_collective``, and where it has such
    columns by ``op``, ``call``, and for each pattern of ``AROUND`` whether it fits something around."""
    category = (
        pl.when(pl.col("kind") == "memcpy")
        .then(pl.lit(taxonomy.COPY))
        .when(pl.col("kind") == "memset")
        .then(pl.lit(taxonomy.MEMSET))
        .when(pl.col("is_collective"))
        .then(pl.lit(taxonomy.COMMUNICATION))
    )
    for rule in taxonomy.RULES:
        asked = {"name": rule.kernel, "op": rule.op, "call": rule.call}
        fits = {
            column: pl.col(column).str.contains(_lower(of_ascii(pattern))).fill_null(False)
            for column, pattern in asked.items()
            if pattern is not None
        }
        if rule.under is not None:
            fits[_under(rule.under)] = pl.col(_under(rule.under))
        if fits.keys() <= set(table.columns):
            category = category.when(pl.all_horizontal(fits.values())).then(pl.lit(rule.category))
    lowered = table.with_columns(pl.col(pl.String).str.to_lowercase())
    return lowered.select(category=category.otherwise(pl.lit(taxonomy.OTHER))).to_series()


def _lower(pattern: str) -> str:
    """The pattern for names without capitals: to leave case to the pattern takes twice as long to compile."""
    return re.sub(r"(?<!\\)[A-Z]", lambda letter: letter[0].lower(), pattern)


def _under(pattern: str) -> str:
    return f"under {pattern}"


def _inside(trace: Trace, pattern: str) -> pl.Series:
    """Whether each host event is, or is inside, one whose name the pattern fits; of optimizers, whether it
    is in an update, and not in the passes that a closure runs first."""
    if pattern == OPTIMIZER:
        return in_update(trace)
    host = trace.host_events
    fits = matching(host, "name", f"(?i){pattern}")
    if not fits.any():
        return fits
    return nearest(host, fits).is_not_null()


# A device is distinguished from others by both: every rank may call its own device 0.
DEVICE = ["rank", "device"]


@remembered
def work(trace: Trace) -> pl.DataFrame:
    """``device_events`` of one trace, with

    - ``rank`` (Int32), ``end_ns`` (Int64, exclusive), ``category`` (Categorical, see ``taxonomy``),
    - ``part`` (Enum): what the time counts as when a device's time is split — ``communication``
      (collectives), ``copy`` (the driver's copies and memsets) or ``compute`` (every other kernel, those that
      copy included: they occupy the multiprocessors).
    """
    kind, category = pl.col("kind"), pl.col("category")
    return trace.device_events.with_columns(
        pl.lit(trace.rank, pl.Int32).alias("rank"), END, category=categories(trace)
    ).with_columns(
        part=pl.when(kind != "kernel")
        .then(pl.lit("copy", PART))
        .when(category == taxonomy.COMMUNICATION)
        .then(pl.lit("communication", PART))
        .otherwise(pl.lit("compute", PART))
    )


@remembered
def computed(trace: Trace) -> pl.DataFrame:
    """The ops of a program without a device as ``work`` of their own, as far as rules of both ask for it:
    those that no other op is in, of rows of ``host_events`` (``id``, ``launch`` and ``op`` are the same)."""
    host = trace.host_events
    computes = matching(host, "category", OPS) & matching(host, "name", OP)
    computes &= ~matching(host, "name", COMPUTES_NOTHING)
    own = host.select("id", "event", "name", "lane", "start_ns", "duration_ns", END)
    own = own.filter(outermost(host, computes))
    steps = trace.steps.select("start_ns", until_ns=END, step="id").sort("start_ns")
    own = own.sort("start_ns").join_asof(steps, on="start_ns", check_sortedness=False)
    under = {_under(around): _inside(trace, around)[own["id"]] for around in AROUND}
    named = own.select(pl.col("name").cast(pl.String), kind=pl.lit("kernel"), is_collective=False, **under)
    own = own.with_columns(
        step=pl.when(pl.col("start_ns") < pl.col("until_ns")).then("step"),
        launch="id",
        op="id",
        op_name="name",
        kind=pl.lit("kernel", trace.device_events["kind"].dtype),
        stream=pl.col("lane").cast(pl.Int64),
        category=classify(named.with_columns(op="name")).cast(CATEGORY),
    )
    return pl.concat([work(trace).clear(), own.drop("until_ns")], how="diagonal")


PART = pl.Enum(["compute", "copy", "communication"])


@remembered
def work_of_all(run: LoadedRun) -> pl.DataFrame:
    """``work`` of every rank, one below the other."""
    return pl.concat([work(trace) for trace in run.traces])
