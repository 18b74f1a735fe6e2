"""A server's host while its device waited: it scheduled, prepared inputs, sampled, detokenised or copied."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.idle.gaps import SILENT, gaps
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.serving.steps import own, steps
from kinetoscope.analysis.serving.worked import on_host
from kinetoscope.analysis.time.intervals import overlay, subtract, union
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

# Names of an engine's scopes, functions and ops, the innermost work first: where several are open, that.
ACTIVITIES: dict[str, str] = {
    "copies": r"^(cuda|cu|hip)Memcpy|^aten::(_local_scalar_dense|item|_to_copy)$|: (tolist|to_cpu)$",
    "detokenise": r"(?i)detoken|(?:: |^)_?(batch_)?decode_(tokens|ids)|process_batch_result|process_outputs?"
    r"|_handle_responses|update_from_output|_update_requests|bookkeep",
    "sample": r"(?i)(^|[_: ])sampl(e|er|ing)\w*|argmax|multinomial|logits_?proc|_sample_async",
    "prepare inputs": r"(?i)prepare_?(\w*_)?(inputs?|batch|decode|prefill|extend)|preprocess|update_states"
    r"|build\w*_metadata|init_forward_metadata|resolve_future",
    "schedule": r"(?i)(^|[_: ])schedul(e|er_step)?\b|get_next_batch|get_new_batch|_fetch_new_requests"
    r"|recv_requests|broadcast_requests",
}
OTHER = "other"
NO_OP = "no op runs"  # without a device: Python does, or the thread waits for requests
FRAMES = r"^(user_annotation|python_function|cpu_op|cuda_runtime|cuda_driver)$"


@remembered
def activities(trace: Trace) -> pl.DataFrame:
    """Disjoint intervals (``start_ns``, ``end_ns``) of the launching threads with their ``activity``."""
    host = trace.host_events
    lanes = host["lane"].gather(own(trace)["launch"]).unique()
    events = host.filter(host["lane"].is_in(lanes.implode()) & matching(host, "category", FRAMES))
    layers = {
        name: union(events.filter(matching(events, "name", pattern)).select("start_ns", END))
        for name, pattern in ACTIVITIES.items()
    }
    keyed = {
        name: table.with_row_index("row").with_columns(key=pl.lit(0))
        for name, table in layers.items()
        if len(table)
    }
    if not keyed:
        return pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "activity": pl.String})
    named = pl.coalesce(pl.when(pl.col(name).is_not_null()).then(pl.lit(name)) for name in keyed)
    return overlay(keyed, ["key"]).select("start_ns", "end_ns", activity=named)


@remembered
def waiting(run: LoadedRun) -> pl.DataFrame:
    """Idle time of the devices within steps and between them, each piece with one cause and one activity:
    ``rank``, ``step``, ``start_ns``, ``end_ns``, ``idle_ns``, ``cause`` (see ``idle.gaps``), ``between`` (it
    lies between the step's work and the next step's), ``activity`` (what the host did: a key of
    ``ACTIVITIES``, ``waiting for a rank``, or ``other``), ``silent`` (the launching thread recorded nothing).
    """
    none = pl.DataFrame(
        schema={
            "rank": pl.Int32, "step": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64,
            "idle_ns": pl.Int64, "cause": pl.String, "between": pl.Boolean, "activity": pl.String,
            "silent": pl.Boolean,
        }
    )  # fmt: skip
    found = (_between_ops(trace) if on_host(trace) else _waiting(run, trace) for trace in run.traces)
    return pl.concat([none, *(one.select(none.columns) for one in found)])


def _between_ops(trace: Trace) -> pl.DataFrame:
    """The same without a device: time in which no op of a step runs, while its Python does or nothing."""
    table = steps(trace).drop_nulls("start_ns")
    whole = table.select("step", "start_ns", "end_ns", between=pl.lit(False))
    after = table.drop_nulls("period_ns").select(
        "step", start_ns="end_ns", end_ns=pl.col("start_ns") + pl.col("period_ns"), between=pl.lit(True)
    )
    bounds = pl.concat([whole, after]).with_row_index("row")
    runs = union(own(trace).select("start_ns", "end_ns")).join(bounds.select("row"), how="cross")
    idle = subtract(bounds.select("row", "start_ns", "end_ns"), runs, ["row"])
    return idle.join(bounds.select("row", "step", "between"), on="row").with_columns(
        rank=pl.lit(trace.rank, pl.Int32),
        idle_ns=pl.col("end_ns") - pl.col("start_ns"),
        cause=pl.lit(NO_OP),
        activity=pl.lit(OTHER),
        silent=pl.lit(False),
    )


def _waiting(run: LoadedRun, trace: Trace) -> pl.DataFrame:
    table = steps(trace).drop_nulls("start_ns")
    bounds = table.select("step", "start_ns", until_ns="end_ns", last=pl.col("period_ns").is_null())
    pieces = gaps(run).filter(pl.col("rank") == trace.rank)
    # Other devices of the process are other steps'.
    pieces = pieces.filter(pl.col("device").is_in(own(trace)["device"].unique().implode())).sort("start_ns")
    known = pieces.with_row_index("row").with_columns(key=pl.col("device").cast(pl.Int64))
    did = activities(trace)
    each = did.with_row_index("row").join(known.select("key").unique(), how="cross")
    cut = overlay({"gap": known, "did": each}, ["key"]).filter(pl.col("gap").is_not_null())
    cause = pieces["cause"].cast(pl.String).gather(cut["gap"]).alias("cause")
    silent = (pieces["text"].cast(pl.String) == SILENT).fill_null(False).gather(cut["gap"]).alias("silent")
    activity = did["activity"].gather(cut["did"]).fill_null(OTHER).alias("activity")
    found = cut.with_columns(cause, activity, silent).sort("start_ns").join_asof(
        bounds.sort("start_ns"), on="start_ns", check_sortedness=False
    )  # fmt: skip
    for_a_rank = pl.col("cause") == "waiting-for-rank"
    between = pl.col("start_ns") >= pl.col("until_ns")
    return found.drop_nulls("step").filter(~(between & pl.col("last"))).with_columns(
        between=between,
        rank=pl.lit(trace.rank, pl.Int32),
        idle_ns=pl.col("end_ns") - pl.col("start_ns"),
        activity=pl.when(for_a_rank).then(pl.lit("waiting for a rank")).otherwise("activity"),
    )  # fmt: skip
