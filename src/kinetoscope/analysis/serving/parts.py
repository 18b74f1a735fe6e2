"""Parts of a server's steps (attention, experts, products, …), and the bytes and FLOPs of each."""

from __future__ import annotations

import re
from math import prod
from typing import Annotated

import msgspec
import polars as pl

from kinetoscope.analysis.cost.call import DTYPES
from kinetoscope.analysis.cost.formulas import ABSURD
from kinetoscope.analysis.cost.roofline import costed, device_spec
from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.serving.steps import marks, own
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import typed

# What device work of a transformer's step is for: the first that fits its category, name or op's name.
KV_WRITES, MOE, SAMPLING, PRODUCTS = "KV cache writes", "moe", "sampling", "matmul"
TOP_K = "top k"  # of experts for each token, or of tokens: by where it stands
PARTS: tuple[tuple[str, str], ...] = (
    ("communication", r"^communication:"),
    (KV_WRITES, r"(?i)reshape_and_cache|store_kv|store_cache|set_kv|write_kv|kv_cache_(write|scatter)"),
    (MOE, r"(?i)moe|expert|matmul_ogs|routing|gating|sorttokens|bitmatrix"),
    (TOP_K, r"(?i)top_?k"),
    ("attention", r"(?i)^attention:|attention|flash|mla_|paged"),
    (SAMPLING, r"(?i)argmax|multinomial|sampl|top_?p|penalt|log_?softmax"),
    (PRODUCTS, r"^(matmul|template):"),
    ("normalization", r"(?i)^normalization:|rotary|rms_?norm|layer_?norm|quant|silu|swiglu|act_and"),
    ("copy", r"^(copy|memset):"),
)
REST = "other"

Size = Annotated[int, msgspec.Meta(ge=0)]

COSTS = {
    "id": pl.UInt32,
    "bytes": pl.Int64,
    "flops": pl.Int64,
    "time_ns": pl.Int64,
    "memory_ns": pl.Float64,
    "compute_ns": pl.Float64,
}


@remembered
def parted(trace: Trace) -> pl.DataFrame:
    """``steps.own`` with ``op_name`` and ``part``."""
    table = own(trace)
    ops = trace.host_events["name"][table["op"]].cast(pl.String).fill_null("")
    named = table.select(
        text=pl.col("category").cast(pl.String) + ": " + pl.col("name").cast(pl.String) + " " + ops
    ).to_series()
    distinct = named.unique()
    part = pl.select(
        pl.coalesce(
            *(pl.when(distinct.str.contains(p)).then(pl.lit(name)) for name, p in PARTS), pl.lit(REST)
        )
    ).to_series()
    table = table.with_columns(op_name=ops, part=named.replace_strict(distinct, part, return_dtype=pl.String))
    # Experts are chosen before their products, tokens behind the last product of a step.
    product_ns = pl.col("start_ns").filter(pl.col("part").is_in([PRODUCTS, MOE])).max().over("step")
    chosen = pl.when(pl.col("start_ns") < product_ns).then(pl.lit(MOE)).otherwise(pl.lit(SAMPLING))
    return table.with_columns(part=pl.when(part=TOP_K).then(chosen).otherwise("part"))


@remembered
def costs(trace: Trace) -> pl.DataFrame:
    """Op calls of steps whose cost is known, one row each: ``id`` (row of ``device_events``: the longest
    kernel of the call), ``bytes``, ``flops``, ``time_ns`` of all its work, and ``memory_ns`` and
    ``compute_ns`` at the device's peaks; none of a device whose peaks are not known. By recorded shapes;
    attention over a paged cache by the tokens that the engine says the step reads. What would be faster than
    the device can be is left out."""
    of_shapes = costed(trace).select(
        "id", "bytes", "flops", "time_ns",
        memory_ns=1e9 * pl.col("bytes") / pl.col("peak_bandwidth"),
        compute_ns=1e9 * pl.col("flops") / pl.col("peak_flops"),
    )  # fmt: skip
    of_sums = _attention(trace)
    known = pl.concat(
        [of_sums, of_shapes.filter(~pl.col("id").is_in(of_sums["id"].implode())).select(typed(COSTS))]
    )
    return known.filter(pl.max_horizontal("memory_ns", "compute_ns") <= pl.col("time_ns"))


def _attention(trace: Trace) -> pl.DataFrame:
    """The ``costs`` of attention by its engine's sums: all keys and values are read once a layer, and each
    query is multiplied with its keys, and the result with its values."""
    table = parted(trace)
    sums = marks(trace).table.select("step", "query_tokens", "kv_tokens", "attention_pairs").drop_nulls()
    width = _width_of_cache(trace, table)
    spec = device_spec(trace, table["device"][0]) if len(table) else None
    if width is None or spec is None or sums.is_empty():
        return pl.DataFrame(schema=COSTS)
    calls = (
        table.filter(pl.col("part") == "attention", pl.col("op").is_not_null())
        .group_by("step", "op", maintain_order=True)
        .agg(pl.col("id").get(pl.col("duration_ns").arg_max()), time_ns=pl.col("duration_ns").sum())
    ).join(sums, on="step", maintain_order="left")
    rows: list[tuple[int, int, int, int, float, float]] = []
    for op, row, time_ns, queries, keys, pairs in calls.select(
        "op", "id", "time_ns", "query_tokens", "kv_tokens", "attention_pairs"
    ).iter_rows():
        query = _tensor(trace, op, 0)
        if query is None or len(query[0]) < 2:
            continue
        shape, size, dtype = query
        read = keys * width + 2 * queries * prod(shape[1:]) * size
        flops = 4 * pairs * prod(shape[1:])
        peak = spec.peak(dtype)
        if max(read, flops) >= ABSURD:
            continue
        rows.append(
            (row, read, flops, time_ns, 1e9 * read / spec.bandwidth, 1e9 * flops / peak if peak else 0.0)
        )
    return pl.DataFrame(rows, COSTS, orient="row")


def _width_of_cache(trace: Trace, table: pl.DataFrame) -> int | None:
    """Bytes of one token's key and value in one layer, as they are written into the cache, or None."""
    for op in table.filter(pl.col("part") == KV_WRITES)["op"].drop_nulls().head(1):
        written = [_tensor(trace, op, at) for at in range(2)]
        if all(one is not None and len(one[0]) >= 2 for one in written):
            return sum(prod(one[0][1:]) * one[1] for one in written if one is not None)
    return None


def _tensor(trace: Trace, op: int, at: int) -> tuple[list[int], int, str] | None:
    """Shape of an argument, bytes of an element and type; None where no tensor was recorded there."""
    dims, types = (trace.argument(name, op) for name in ("input_dims", "input_types"))
    if not dims or not types:
        return None
    try:
        shape = msgspec.convert(msgspec.json.decode(dims)[at], list[Size])
        dtype, size = DTYPES[msgspec.json.decode(types)[at]]
    except (LookupError, TypeError, msgspec.ValidationError):
        return None  # what a file says
    return (shape, size, dtype) if shape and prod(shape) < ABSURD else None


def rows_computed(trace: Trace, work: pl.DataFrame) -> int | None:
    """How many rows most products of a step compute: tokens and padding. None where no shapes are known."""
    products = work.filter(pl.col("part") == "matmul").drop_nulls("op")
    counts: dict[int, int] = {}
    for op, name in products.select("op", "op_name").iter_rows():
        first = _tensor(trace, op, 1 if re.search("addmm", name) else 0)
        if first is not None and len(first[0]) >= 2:
            rows = prod(first[0][:-1])
            counts[rows] = counts.get(rows, 0) + 1
    return max(counts, key=lambda rows: (counts[rows], rows)) if counts else None


@remembered
def parts(trace: Trace) -> pl.DataFrame:
    """Per ``step`` and ``part``: ``exposed_ns`` (nothing else of the step ran), ``device_ns``, ``launches``;
    of the calls whose cost is known ``costed_ns``, ``bytes``, ``flops``, ``memory_ns``, ``compute_ns``."""
    table = parted(trace)
    sums = table.group_by("step", "part").agg(
        device_ns=pl.col("duration_ns").sum(), launches=pl.len().cast(pl.Int64)
    )
    exposed = [pl.DataFrame(schema={"step": pl.UInt32, "length_ns": pl.Int64, "part": pl.String})]
    for (part,), of in table.group_by("part", maintain_order=True):
        own, others = (intervals.union(one, ["step"]) for one in (of, table.filter(pl.col("part") != part)))
        alone = intervals.subtract(own, others, ["step"])
        exposed.append(intervals.length(alone, ["step"]).with_columns(part=pl.lit(part)))
    lengths = pl.concat(exposed).rename({"length_ns": "exposed_ns"})
    figures = ["bytes", "flops", "memory_ns", "compute_ns"]
    known = (
        table.select("id", "step", "part")
        .join(costs(trace), on="id")
        .group_by("step", "part")
        .agg(pl.col("time_ns").sum().alias("costed_ns"), pl.col(figures).sum())
    )
    key = ["step", "part"]
    table = sums.join(lengths, on=key, how="left").join(known, on=key, how="left")
    return table.with_columns(pl.col("exposed_ns", "costed_ns", *figures).fill_null(0))
