"""The steps of a serving engine, by phase, batch and graph mode."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import polars as pl

from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import GRAPH_LAUNCH
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.time import intervals
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.engines import FAMILIES, engine_step
from kinetoscope.trace.model import Trace

# What device work of a transformer's step is for: the first that fits its category, name or op's name.
PARTS: tuple[tuple[str, str], ...] = (
    ("communication", r"^communication:"),
    (
        "KV cache writes",
        r"(?i)reshape_and_cache|store_kv|store_cache|set_kv|write_kv|kv_cache_(write|scatter)",
    ),
    ("moe", r"(?i)moe|expert|matmul_ogs|routing|top_?k|sorttokens|bitmatrix"),
    ("attention", r"(?i)^attention:|attention|flash|mla_|paged"),
    ("sampling", r"(?i)argmax|multinomial|sampl|top_?p|penalt|log_?softmax"),
    ("matmul", r"^(matmul|template):"),
    (
        "normalization",
        r"(?i)^normalization:|rotary|rms_?norm|layer_?norm|quant|silu|swiglu|act_and",
    ),
    ("copy", r"^(copy|memset):"),
)
REST = "other"
# A step that takes so many times the median of its like, before two others like it, is warming up.
WARMING = 1.5


# What an engine says of a step.
_SAID: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("engine", "phase"), pl.String),
    **dict.fromkeys(
        (
            "batch",
            "context_requests",
            "generation_requests",
            "requests",
            "query_tokens",
            "kv_tokens",
            "padded",
        ),
        pl.Int64,
    ),
}


class ServingPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a step's device time.

    Attributes:
        us: time per step in which nothing else ran: what the step would lose without it, at most.
        device_us: the sum of its durations per step.
        launches: per step.
    """

    category: str
    us: float
    device_us: float
    launches: float


class ServingIdle(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time per step of one cause, within the step's work (``between`` is false) or before the next's."""

    cause: str
    idle_us: float
    between: bool = False


class ServingPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """From one step's first work to the next step's: median and ninth decile."""

    median: float
    p90: float


class ServingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one phase, batch and graph mode; means per step unless it says otherwise.

    Attributes:
        batch: requests (decode) or tokens (prefill) up to this power of two.
        graph_mode: ``full`` where one replay holds nine tenths of a step's work or more, ``piecewise`` where
            replays hold less or are several, ``eager``.
        n, warmup: steady steps, of which the figures are, and those that were still warming up.
        context_requests, generation_requests, requests, query_tokens, kv_tokens, padded_to: medians, where
            the engine says them.
        period_us: None where no step follows.
        span_us, busy_us: from the first work to the end of the last; when its own work ran: medians.
        between_us: from the end of a step's work to the next step's first: median.
        exposed_idle_us: waiting of the device within the step and before the next one.
        tokens_per_s: new tokens of all requests in a second, by the period, else by the span; decode alone.
        client_token_us: what a client measured for a token; None where no client's times were given.
    """

    rank: int
    engine: str
    phase: str
    batch: int | None
    graph_mode: str
    n: int
    warmup: int
    context_requests: float | None
    generation_requests: float | None
    requests: float | None
    query_tokens: float | None
    kv_tokens: float | None
    padded_to: float | None
    period_us: ServingPeriod | None
    span_us: float
    busy_us: float
    between_us: float | None
    exposed_idle_us: float
    kernels: float
    launches: float
    tokens_per_s: float | None
    idle: list[ServingIdle]
    exposed: list[ServingPart]
    client_token_us: float | None = None


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a serving engine (``vllm``, ``sglang``, ``tensorrt-llm``, ``atom``, ``xdit``)."""

    engine: str
    steps: list[ServingRow]


class GraphReplays(msgspec.Struct, frozen=True, kw_only=True):
    """Device events of replayed graphs, and what is known of them.

    Attributes:
        captured: launches that recorded captures put into graphs.
        replayed: device events that ran inside replays.
        joined, verified: those whose op is known by a capture; nothing is joined that was not verified.
        by: ``order`` or ``none``.
        why: what keeps the others from it; empty where none is left.
    """

    captured: int
    replayed: int
    joined: int
    verified: int
    by: str
    why: str = ""


@remembered
def serving(run: LoadedRun) -> Serving | None:
    """The table of an engine's steps, the phase with most time first; None where no engine marked any."""
    rows = [row for trace in run.traces for row in _rows(run, trace)]
    rows.sort(key=lambda row: (row.rank, -row.n * (row.period_us.median if row.period_us else row.span_us)))
    return Serving(engine=rows[0].engine, steps=rows) if rows else None


@remembered
def replays(run: LoadedRun) -> GraphReplays | None:
    """Work inside replayed graphs and how much of it is known, of all ranks; None where there is none."""
    counts = [replayed(trace) for trace in run.traces]
    inside, known, captured = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0, 0)
    if not inside:
        return None
    why = "" if known == inside else "no recorded capture fits these replays, or several do"
    return GraphReplays(
        captured=captured,
        replayed=inside,
        joined=known,
        verified=known,
        by="order" if known else "none",
        why=why,
    )


@remembered
def replayed(trace: Trace) -> tuple[int, int, int]:
    """How many device events ran inside replayed graphs, of how many of them the captured op is known, and
    how many launches their captures hold."""
    host, device = trace.host_events, trace.device_events
    inside = matching(host, "name", GRAPH_LAUNCH).gather(device["launch"]).fill_null(False)
    known = matching(host, "category", "^captured_").gather(device["op"]).fill_null(False)
    joined = device.select("launch", capture=host["lane"].gather(device["op"])).filter(inside & known)
    each = joined.group_by("capture").agg(launches=pl.len() / pl.col("launch").n_unique())
    return int(inside.sum()), len(joined), round(each["launches"].sum())


def _rows(run: LoadedRun, trace: Trace) -> Iterable[ServingRow]:
    table = _steps(trace)
    if table.is_empty():
        return
    table = table.with_columns(_warming(table))
    parts, idle = _parts(trace), _idle(run, trace, table)
    for key, group in table.group_by("engine", "phase", "batch", "graph", maintain_order=True):
        steady = group.filter(~pl.col("warming"))
        yield _row(trace, tuple(key), group, steady, parts, idle)


def _row(
    trace: Trace,
    key: tuple[object, ...],
    group: pl.DataFrame,
    steady: pl.DataFrame,
    parts: pl.DataFrame,
    idle: pl.DataFrame,
) -> ServingRow:
    engine, phase, batch, graph = key
    wanted, count = steady["step"].implode(), len(steady)
    period, requests = _median(steady, "period_ns"), _median(steady, "requests")
    span_ns = _median(steady, "span_ns") or 0.0
    each_ns = period or span_ns
    by_part = parts.filter(pl.col("step").is_in(wanted)).group_by("part").sum()
    by_part = by_part.sort("exposed_ns", "part", descending=[True, False])
    causes = idle.filter(pl.col("step").is_in(wanted))
    causes = causes.group_by("cause", "between").agg(pl.col("idle_ns").sum())
    waited = [
        ServingIdle(cause=cause, between=between, idle_us=idle_ns / 1000 / count)
        for cause, between, idle_ns in causes.sort("idle_ns", "cause", descending=[True, False]).iter_rows()
    ]
    return ServingRow(
        rank=trace.rank,
        engine=str(engine).lower(),
        phase=str(phase),
        batch=batch if isinstance(batch, int) else None,
        graph_mode=str(graph),
        n=count,
        warmup=len(group) - count,
        context_requests=_median(steady, "context_requests"),
        generation_requests=_median(steady, "generation_requests"),
        requests=requests,
        query_tokens=_median(steady, "query_tokens"),
        kv_tokens=_median(steady, "kv_tokens"),
        padded_to=_median(steady, "padded"),
        period_us=None
        if period is None
        else ServingPeriod(median=period / 1000, p90=(_quantile(steady, "period_ns", 0.9) or period) / 1000),
        span_us=span_ns / 1000,
        busy_us=(_median(steady, "busy_ns") or 0.0) / 1000,
        between_us=_us(_median(steady, "between_ns")),
        exposed_idle_us=sum(one.idle_us for one in waited),
        kernels=_median(steady, "kernels") or 0.0,
        launches=_median(steady, "launches") or 0.0,
        tokens_per_s=1e9 * requests / each_ns if phase == "decode" and requests and each_ns else None,
        idle=waited,
        exposed=[
            ServingPart(
                category=part,
                us=exposed_ns / 1000 / count,
                device_us=device_ns / 1000 / count,
                launches=launches / count,
            )
            for part, exposed_ns, device_ns, launches in by_part.select(
                "part", "exposed_ns", "device_ns", "launches"
            ).iter_rows()
        ],
    )


def _median(table: pl.DataFrame, column: str) -> float | None:
    return _quantile(table, column, 0.5)


def _quantile(table: pl.DataFrame, column: str, quantile: float) -> float | None:
    found = table[column].quantile(quantile, "linear")
    return None if found is None else float(found)


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1000


@remembered
def _marks(trace: Trace) -> pl.DataFrame:
    """``step`` (its number), ``name``, and the annotation's ``start_ns`` and ``end_ns``, in order."""
    host = trace.host_events
    families = (matching(host, "name", family) for family in FAMILIES)
    marked = next((host.filter(of) for of in families if of.any()), host.head(0))
    marked = marked.select(pl.col("name").cast(pl.String), "start_ns", END).sort("start_ns")
    known = [engine_step(name) is not None for name in marked["name"]]
    return marked.filter(pl.Series(known, dtype=pl.Boolean)).with_row_index("step")


@remembered
def _own(trace: Trace) -> pl.DataFrame:
    """Device work that was launched within an engine's step, with the number of the ``step``."""
    table = work(trace).filter(pl.col("launch").is_not_null())
    at = trace.host_events["start_ns"].gather(table["launch"])
    marks = _marks(trace)
    row = marks["start_ns"].search_sorted(at, side="right").cast(pl.Int64) - 1
    row = row.set(row < 0, None)
    inside = (at < marks["end_ns"].gather(row)).fill_null(False)
    return table.with_columns(marks["step"].gather(row).alias("step")).filter(inside)


def _steps(trace: Trace) -> pl.DataFrame:
    """One row per marked step that did any device work, in order, with what its engine says of it."""
    own, marks = _own(trace), _marks(trace)
    busy = intervals.length(intervals.union(own, ["step"]), ["step"]).rename({"length_ns": "busy_ns"})
    is_replay = matching(trace.host_events, "name", GRAPH_LAUNCH)
    worked = (
        own.with_columns(is_replay.gather(own["launch"]).alias("replayed"))
        .group_by("step")
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            kernels=pl.len(),
            launches=pl.col("launch").n_unique(),
            graphs=pl.col("launch").filter("replayed").n_unique(),
            inside=pl.col("replayed").sum(),
        )
    )
    said = [_said(name) for name in marks["name"]]
    table = pl.DataFrame(said, schema=_SAID, orient="row").with_columns(marks["step"])
    following = pl.col("start_ns").shift(-1)
    graph = (
        pl.when(pl.col("graphs") == 0)
        .then(pl.lit("eager"))
        .when(pl.col("inside") >= 0.9 * pl.col("kernels"), pl.col("graphs") == 1)
        .then(pl.lit("full"))
        .otherwise(pl.lit("piecewise"))
    )
    return (
        table.join(worked, on="step", maintain_order="left")
        .join(busy, on="step", maintain_order="left")
        .sort("start_ns")
        .with_columns(
            graph.alias("graph"),
            span_ns=pl.col("end_ns") - pl.col("start_ns"),
            period_ns=following - pl.col("start_ns"),
            between_ns=following - pl.col("end_ns"),
        )
    )


def _said(name: str) -> tuple[str | int | None, ...]:
    step = engine_step(name)
    if step is None:
        return (None,) * len(_SAID)
    size = step.requests if step.phase in ("decode", "verify", "diffusion") else step.query_tokens
    batch = None if size is None else 1 << max(0, size - 1).bit_length()
    requests = step.context_requests, step.generation_requests, step.requests
    return step.engine, step.phase, batch, *requests, step.query_tokens, step.kv_tokens, step.padded


def _warming(table: pl.DataFrame) -> pl.Series:
    """Whether a step is among the first of its like and takes much longer than they do."""
    like = ["engine", "phase", "batch", "graph"]
    place = pl.int_range(pl.len()).over(like)
    slow = pl.col("span_ns") > WARMING * pl.col("span_ns").median().over(like)
    return table.select(warming=slow & (place < 2) & (pl.len().over(like) > 2)).to_series()


def _parts(trace: Trace) -> pl.DataFrame:
    """Per step and part of its work: ``exposed_ns``, ``device_ns``, ``launches``."""
    own = _own(trace)
    ops = trace.host_events["name"].cast(pl.String).gather(own["op"]).fill_null("")
    own = own.select("step", "start_ns", "end_ns", "duration_ns", part=_part(own, ops))
    sums = own.group_by("step", "part").agg(
        device_ns=pl.col("duration_ns").sum(), launches=pl.len().cast(pl.Int64)
    )
    exposed = [
        intervals.length(
            intervals.subtract(
                intervals.union(of, ["step"]),
                intervals.union(own.filter(pl.col("part") != part), ["step"]),
                ["step"],
            ),
            ["step"],
        ).with_columns(pl.lit(part).alias("part"))
        for (part,), of in own.group_by("part", maintain_order=True)
    ]
    if not exposed:
        return sums.with_columns(pl.lit(0).alias("exposed_ns"))
    lengths = pl.concat(exposed).rename({"length_ns": "exposed_ns"})
    return sums.join(lengths, on=["step", "part"], how="left").with_columns(pl.col("exposed_ns").fill_null(0))


def _part(own: pl.DataFrame, ops: pl.Series) -> pl.Expr:
    """The part of each row, decided once for each distinct kernel, op and category."""
    named = own.select(
        text=pl.col("category").cast(pl.String) + ": " + pl.col("name").cast(pl.String) + " " + ops
    ).to_series()
    distinct = named.unique()
    part = pl.select(
        pl.coalesce(
            *(pl.when(distinct.str.contains(p)).then(pl.lit(name)) for name, p in PARTS), pl.lit(REST)
        )
    ).to_series()
    return pl.lit(named.replace_strict(distinct, part, return_dtype=pl.String))


def _idle(run: LoadedRun, trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Idle time per step and cause, within it or (``between``) before the next one."""
    bounds = steps.select("step", "start_ns", until_ns="end_ns").sort("start_ns")
    pieces = gaps(run).filter(pl.col("rank") == trace.rank).sort("start_ns")
    found = pieces.select("start_ns", "end_ns", pl.col("cause").cast(pl.String)).join_asof(
        bounds, on="start_ns", check_sortedness=False
    )
    return found.drop_nulls("step").select(
        "step",
        "cause",
        between=pl.col("start_ns") >= pl.col("until_ns"),
        idle_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
