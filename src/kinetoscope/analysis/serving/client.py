"""The time for a token as a client measured it, next to the steps that were recorded."""

from __future__ import annotations

import msgspec
import polars as pl

from kinetoscope.analysis.serving.steps import steps
from kinetoscope.sources.client import ClientTimes
from kinetoscope.sources.run import LoadedRun

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


def compared(run: LoadedRun, measured: ClientTimes) -> ServingClient:
    """A client's times next to the steps of the first rank that has any."""
    tables = (steps(trace).drop_nulls("start_ns") for trace in run.traces)
    table = next((one for one in tables if len(one)), None)
    if table is None:
        return ServingClient(measured=measured)
    until = pl.min_horizontal("end_ns", pl.col("start_ns").shift(-1))
    table = table.with_columns(
        work_ns=until - pl.col("start_ns"),
        generates=pl.col("phase").is_in(GENERATES) & ~pl.col("warming"),
    ).with_columns(token=pl.col("generates").cum_sum())
    # From one step that generates until the next, with what else ran there.
    tokens = (
        table.filter(pl.col("token").is_between(1, pl.col("token").max() - 1))
        .group_by("token", maintain_order=True)
        .agg(
            busy=pl.min_horizontal("busy_ns", "work_ns").filter("generates").sum(),
            work=pl.col("work_ns").filter("generates").sum(),
            other=pl.col("work_ns").filter(~pl.col("generates")).sum(),
            whole=pl.col("period_ns").sum(),
            requests=pl.col("requests").filter("generates").sum(),
            known=pl.col("requests").filter("generates").is_not_null().all(),
        )
    )
    tokens = tokens.filter(pl.col("whole") <= NO_REQUESTS * pl.col("whole").median())
    if tokens.is_empty():
        return ServingClient(measured=measured)
    mean = {
        name: float(tokens[name].sum()) / len(tokens) / 1000 for name in ("busy", "work", "other", "whole")
    }
    requests = float(tokens["requests"].sum()) / len(tokens) if tokens["known"].all() else None
    outside = measured.token_us - mean["whole"]
    found = {
        "busy": mean["busy"],
        "idle": mean["work"] - mean["busy"],
        "other steps": mean["other"],
        "between": mean["whole"] - mean["work"] - mean["other"],
        "outside": outside,
    }
    return ServingClient(
        measured=measured,
        recorded_token_us=mean["whole"],
        recorded_tokens_per_s=None if requests is None else 1e6 * requests / mean["whole"],
        recorded_requests=requests,
        outside_us=outside,
        parts=[ClientRow(part=part, us=us, share=us / measured.token_us) for part, us in found.items()],
    )
