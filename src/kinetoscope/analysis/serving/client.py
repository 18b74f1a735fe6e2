"""The time for a token as a client measured it, next to the steps that were recorded."""

from __future__ import annotations

import msgspec
import polars as pl

from kinetoscope.analysis.serving.steps import steps
from kinetoscope.sources.client import ClientTimes
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

# Steps in which requests get a token each.
GENERATES = ["decode", "mixed", "verify", "unknown"]
# Of the median: a step that the next one follows so late had no request to follow it.
NO_REQUESTS = 20


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a token's time.

    Attributes:
        part: ``busy`` and ``idle`` of the device in steps that generate, ``other steps`` meanwhile (prefill),
            ``between`` steps, and ``outside`` the steps: queueing, detokenising, HTTP.
        share: of the client's time for a token.
    """

    part: str
    us: float
    share: float


class ServingClient(msgspec.Struct, frozen=True, kw_only=True):
    """A client's times, and what of them the recorded steps are; ``parts`` sum to the client's time.

    Attributes:
        recorded_token_us: from one step that generates to the next, at the mean; null where one alone was
            recorded.
        recorded_tokens_per_s: by the recorded steps; null where the engine does not say their requests.
        recorded_requests: of a step that generates, at the mean.
        outside_us: what is not the engine's steps; negative where the recording slowed these down.
    """

    measured: ClientTimes
    recorded_token_us: float | None = None
    recorded_tokens_per_s: float | None = None
    recorded_requests: float | None = None
    outside_us: float | None = None
    parts: list[ClientRow] = []


def tokens(trace: Trace) -> pl.DataFrame:
    """From each step that generates to the next one: ``whole_ns``, of which ``work_ns`` is the step's own,
    ``busy_ns`` of it with the device at work, and ``other_ns`` that of other steps in between; ``requests``
    that got a token (null where the engine does not say). Without steps behind which no request waited."""
    table = steps(trace).drop_nulls("start_ns")
    until = pl.min_horizontal("end_ns", pl.col("start_ns").shift(-1))
    generates = pl.col("generates")
    table = table.with_columns(
        work_ns=until - pl.col("start_ns"),
        generates=pl.col("phase").is_in(GENERATES) & ~pl.col("warming"),
    ).with_columns(token=generates.cum_sum())
    found = (
        table.filter(pl.col("token").is_between(1, pl.col("token").max() - 1))
        .group_by("token", maintain_order=True)
        .agg(
            whole_ns=pl.col("period_ns").sum(),
            work_ns=pl.col("work_ns").filter(generates).sum(),
            busy_ns=pl.min_horizontal("busy_ns", "work_ns").filter(generates).sum(),
            other_ns=pl.col("work_ns").filter(~generates).sum(),
            requests=pl.col("requests").filter(generates).first(),
        )
    )
    nothing_runs = pl.col("whole_ns") - pl.col("work_ns") - pl.col("other_ns")
    return found.filter(nothing_runs <= NO_REQUESTS * pl.col("whole_ns").median())


def compared(run: LoadedRun, measured: ClientTimes) -> ServingClient:
    """A client's times next to the steps of the first rank that has any."""
    each = next((one for trace in run.traces if len(one := tokens(trace))), None)
    if each is None:
        return ServingClient(measured=measured)
    whole, work, busy, other = (
        float(each[name].sum()) / len(each) / 1000 for name in ("whole_ns", "work_ns", "busy_ns", "other_ns")
    )
    known = each["requests"].null_count() == 0
    requests = float(each["requests"].sum()) / len(each) if known else None
    found = {
        "busy": busy,
        "idle": work - busy,
        "other steps": other,
        "between": whole - work - other,
        "outside": measured.token_us - whole,
    }
    return ServingClient(
        measured=measured,
        recorded_token_us=whole,
        recorded_tokens_per_s=None if requests is None else 1e6 * requests / whole,
        recorded_requests=requests,
        outside_us=found["outside"],
        parts=[ClientRow(part=part, us=us, share=us / measured.token_us) for part, us in found.items()],
    )
