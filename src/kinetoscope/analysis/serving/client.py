"""The time for a token as a client measured it, next to the steps that were recorded."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.serving.rows import ClientRow, ServingClient
from kinetoscope.analysis.serving.steps import steps
from kinetoscope.sources.client import ClientTimes
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

# Steps in which requests get a token each.
GENERATES = ["decode", "mixed", "verify", "unknown"]
# Of the median: a step that the next one follows so late had no request to follow it.
NO_REQUESTS = 20


def tokens(trace: Trace) -> pl.DataFrame:
    """From each step that generates to the next one: ``whole_ns``, of which ``work_ns`` is the step's own,
    ``busy_ns`` of it with the device at work, and ``other_ns`` that of other steps in between, ``prefill_ns``
    of it of prefill; ``requests`` that got a token, those that ``stayed`` for the next and all that are
    ``waiting`` for it, and the sum of what these wait since their latest token, which may be that of their
    prefill (``waited_ns``); null where the engine does not say. Without steps behind which no request
    waited."""
    table = steps(trace).drop_nulls("start_ns")
    until = pl.min_horizontal("end_ns", pl.col("start_ns").shift(-1))
    generates = pl.col("generates")
    table = table.with_columns(
        work_ns=until - pl.col("start_ns"),
        generates=pl.col("phase").is_in(GENERATES) & ~pl.col("warming"),
    ).with_columns(token=generates.cum_sum())
    came = pl.col("context_requests").fill_null(0) * ~generates
    # From the end of their prefill to that of the next step, which is taken to work as long as this one.
    since = pl.col("period_ns").cum_sum(reverse=True) - pl.col("work_ns")
    since += pl.col("work_ns").filter(generates).first()
    found = (
        table.group_by("token", maintain_order=True)
        .agg(
            came=came.sum(),
            came_waited_ns=(came * since).sum(),
            whole_ns=pl.col("period_ns").sum(),
            work_ns=pl.col("work_ns").filter(generates).sum(),
            busy_ns=pl.min_horizontal("busy_ns", "work_ns").filter(generates).sum(),
            other_ns=pl.col("work_ns").filter(~generates).sum(),
            prefill_ns=pl.col("work_ns").filter(phase="prefill").sum(),
            requests=pl.col("requests").filter(generates).first(),
        )
        .with_columns(stayed=(pl.col("requests").shift(-1) - pl.col("came")).clip(0))
        .filter(pl.col("token").is_between(1, pl.col("token").max() - 1))
    )
    waited_ns = pl.col("stayed") * pl.col("whole_ns") + pl.col("came_waited_ns")
    found = found.with_columns(waited_ns=waited_ns, waiting=pl.col("stayed") + pl.col("came"))
    found = found.drop("came", "came_waited_ns")
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
    whole, work, busy, other = (
        float(each[name].sum()) / len(each) / 1000 / made
        for name in ("whole_ns", "work_ns", "busy_ns", "other_ns")
    )
    known = each["requests"].null_count() == 0
    requests = float(each["requests"].sum()) / len(each) if known else None
    waited = (
        None
        if requests is None
        else float(each["waited_ns"].sum()) / float(each["waiting"].sum()) / 1000 / made
    )
    token = whole if waited is None else waited
    found = {
        "busy": busy,
        "idle": work - busy,
        "other steps": other - (whole - token),
        "between": whole - work - other,
        "outside": measured.token_us - token,
    }
    return ServingClient(
        measured=measured,
        recorded_token_us=whole,
        request_token_us=waited,
        recorded_tokens_per_s=None if requests is None else 1e6 * requests / whole,
        recorded_requests=requests,
        outside_us=found["outside"],
        parts=[ClientRow(part=part, us=us, share=us / measured.token_us) for part, us in found.items()],
    )
