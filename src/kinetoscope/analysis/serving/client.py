"""The time for a token as a client measured it, next to the steps that were recorded."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.serving.rows import ClientRow, ServingClient
from kinetoscope.analysis.serving.steps import steps
from kinetoscope.sources.client import ClientTimes
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

GENERATES = ["decode", "mixed", "verify", "unknown"]  # steps in which requests get a token each
NO_REQUESTS = 20  # of the median: a step that follows so late on the one before had no request to follow that


def tokens(trace: Trace) -> pl.DataFrame:
    """From the end of each step that generates to that of the next one (``end_ns``), when tokens are there:
    ``whole_ns``, of which ``work_ns`` is the next step's own, ``busy_ns`` of it with the device at work, and
    ``other_ns`` that of other steps in between, ``prefill_ns`` of it of prefill; ``requests`` that get a
    token, those that ``stayed`` for it since the one before and all that are ``waiting`` for it, and the sum
    of what these wait since their latest token, which may be that of their prefill (``waited_ns``); null
    where the engine does not say. Prompts that the next step itself reads wait for no token yet. Without
    steps before which no request waited."""
    table = steps(trace).drop_nulls("start_ns").with_columns(pl.col("end_ns").cum_max())
    generates, end_ns = pl.col("generates"), pl.col("end_ns")
    table = table.with_columns(
        work_ns=(end_ns - pl.max_horizontal("start_ns", end_ns.shift(1))).clip(0),
        generates=pl.col("phase").is_in(GENERATES) & ~pl.col("warming"),
    ).with_columns(token=generates.cum_sum() - generates)
    came = pl.col("context_requests").fill_null(0) * ~generates
    found = (
        table.group_by("token", maintain_order=True)
        .agg(
            came=came.sum(),
            came_waited_ns=(came * (end_ns.filter(generates).first() - end_ns)).sum(),
            end_ns=end_ns.filter(generates).first(),
            work_ns=pl.col("work_ns").filter(generates).sum(),
            busy_ns=pl.min_horizontal("busy_ns", "work_ns").filter(generates).sum(),
            other_ns=pl.col("work_ns").filter(~generates).sum(),
            prefill_ns=pl.col("work_ns").filter(phase="prefill").sum(),
            requests=pl.col("requests").filter(generates).first(),
            generating=pl.coalesce("generation_requests", "requests").filter(generates).first(),
        )
        .with_columns(
            whole_ns=end_ns - end_ns.shift(1), stayed=(pl.col("generating") - pl.col("came")).clip(0)
        )
        .filter(pl.col("token") > 0, end_ns.is_not_null())
    )
    waited_ns = pl.col("stayed") * pl.col("whole_ns") + pl.col("came_waited_ns")
    found = found.with_columns(waited_ns=waited_ns, waiting=pl.col("stayed") + pl.col("came"))
    found = found.drop("came", "came_waited_ns", "generating")
    nothing_runs = pl.col("whole_ns") - pl.col("work_ns") - pl.col("other_ns")
    return found.filter(nothing_runs <= NO_REQUESTS * pl.col("whole_ns").median())


def verified(trace: Trace) -> bool:
    """Whether steps check drafted tokens: each makes as many as it accepts."""
    return "verify" in steps(trace)["phase"]


def compared(run: LoadedRun, measured: ClientTimes) -> ServingClient:
    """A client's times next to the steps of the first rank that has any."""
    traces = (trace for stage in (run, *run.stages) for trace in stage.traces)
    each, verifies = next(
        ((one, verified(trace)) for trace in traces if len(one := tokens(trace))), (None, False)
    )
    made = measured.tokens_per_step if verifies else 1.0
    if each is None or made is None:
        return ServingClient(measured=measured)
    known = each["requests"].null_count() == 0
    # As requests feel it: what many wait for counts as often.
    weights = each["waiting"] if known and each["waiting"].sum() else pl.repeat(1, len(each), eager=True)
    whole = float(each["whole_ns"].sum()) / len(each) / 1000 / made
    between_ns = each["whole_ns"] - each["work_ns"] - each["other_ns"]
    work, busy, between = (
        float((weights * column).sum()) / float(weights.sum()) / 1000 / made
        for column in (each["work_ns"], each["busy_ns"], between_ns)
    )
    requests = float(each["requests"].sum()) / len(each) if known else None
    waited = float(each["waited_ns"].sum()) / float(weights.sum()) / 1000 / made if known else None
    token = whole if waited is None else waited
    between = min(between, token - work)
    found = {
        "busy": busy,
        "idle": work - busy,
        "other steps": token - work - between,
        "between": between,
        "outside": measured.token_us - token,
    }
    return ServingClient(
        measured=measured,
        recorded_token_us=whole,
        request_token_us=waited,
        recorded_tokens_per_s=None if requests is None else 1e6 * requests / whole,
        outside_us=found["outside"],
        parts=[ClientRow(part=part, us=us, share=us / measured.token_us) for part, us in found.items()],
    )
