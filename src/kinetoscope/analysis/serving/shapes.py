"""Requests and tokens of a step that nothing marks, by the shapes of what it computes."""

from __future__ import annotations

from math import prod
from typing import Annotated, NamedTuple, cast

import msgspec
import polars as pl

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.serving.worked import worked
from kinetoscope.analysis.time import intervals
from kinetoscope.trace.model import Trace, with_arguments

LOOKS_UP = "^aten::embedding$"
LOOKS_UP_COMPILED = r"^triton_[a-z]+_fused_(\w*_)?embedding"  # as Inductor names what it made of one
PACKS = r"(^|/)transformers/generation/continuous_batching/"  # all requests in one row
ATTENDS = r"scaled_dot_product|_attention_forward$|flash_attn"
Size = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
# Where the ops behind scaled_dot_product_attention, and flash_attn's, say at which token each request begins.
BEGINNINGS = {"aten::_efficient_attention_forward": 4}
USUAL_BEGINNINGS = 3
SAMPLES = "^aten::(argmax|multinomial)$"


class Shape(NamedTuple):
    """Requests, the tokens of each that a step computes, and whether a graph's capture says so: that is what
    the graph was made for, and some of the requests may be padding. ``mixed``: the tokens are of a prompt and
    of requests that generate, in one row."""

    requests: int
    each: int
    captured: bool
    mixed: bool = False


def shapes(trace: Trace, bounds: pl.DataFrame) -> dict[int, Shape]:
    """Requests and tokens of steps (``bounds``: ``step``, and the host's time from ``start_ns`` to
    ``end_ns``, in order), by the shape of the tokens that each looks up first, else of the queries that it
    attends from. None of a step whose last attention is from other tokens than it looks up: that is several
    models in turn, as of a pipeline that reads a prompt and makes an image; nor of one that attends from many
    and looks up none: those are patches of an image."""
    bounds = bounds.select("step", "start_ns", "end_ns")
    host, called = trace.host_events, worked(trace).filter(pl.col("launch").is_not_null())
    is_captured, is_op = (matching(host, "category", f"^{kind}_op$") for kind in ("captured", "cpu"))
    looks_up = matching(host, "name", LOOKS_UP)
    says = (is_captured | is_op) & (looks_up | matching(host, "name", ATTENDS))
    captured = is_captured.gather(called["op"]).fill_null(False)
    row = nearest(host, says).gather(called["op"].zip_with(captured, called["launch"]))
    by_work = pl.DataFrame(
        {"row": row, "start_ns": host["start_ns"].gather(called["launch"]), "captured": captured}
    )
    by_host = host.filter(looks_up & is_op).select("start_ns", row="id", captured=pl.lit(False))
    said = pl.concat([by_work, by_host.select(by_work.columns)]).drop_nulls("row").sort("start_ns")
    said = said.hstack(host.select("name", "arguments")[said["row"]])
    said = with_arguments(said, trace.host_arguments, "input_dims").with_columns(
        pl.col("name", "input_dims").cast(pl.String)
    )
    said = said.drop_nulls("input_dims").pipe(intervals.beginning_in, bounds)
    is_lookup = pl.col("name").str.contains(LOOKS_UP)
    in_kernels = called.filter(matching(called, "name", LOOKS_UP_COMPILED))["launch"]
    looks = pl.DataFrame({"start_ns": host["start_ns"].gather(in_kernels)})
    compiled = looks.sort("start_ns").pipe(intervals.beginning_in, bounds)
    reads = {*compiled["step"], *said.filter(is_lookup)["step"]}
    first = said.unique(["step", "name", "input_dims", "captured"], keep="first", maintain_order=True)
    found = _first(first.sort(~is_lookup, maintain_order=True))
    attended = said.filter(~is_lookup).unique("step", keep="last")
    last = _first(attended)
    begun = ~pl.col("name").str.contains("scaled_dot_product")  # these say where requests begin
    packed = set(attended.filter(begun & ~pl.col("step").is_in([*last]))["step"])
    if matching(host, "name", PACKS).any():
        packed |= found.keys() - last.keys() | {step for step, shape in last.items() if shape.each > 1}
    sampled = _sampled(with_arguments(host.filter(is_op), trace.host_arguments, "input_dims"), bounds)
    known: dict[int, Shape] = {}
    for step, shape in found.items():
        other = last.get(step, shape)
        tokens = shape.requests * shape.each
        if other.captured == shape.captured and other.requests * other.each != tokens:
            continue
        # Of requests that a program packs into one row attention alone says where each begins.
        if shape.requests == 1 < shape.each:
            made = sampled.get(step, 1)
            if 1 < made <= shape.each:
                several = shape._replace(requests=made, each=1)
                known[step] = several if made == shape.each else shape._replace(mixed=True)
                continue
            if step in packed:
                continue
            shape = shape._replace(requests=shape.each, each=1) if other.each == 1 else shape
        if shape.each == 1 or step in reads:
            known[step] = shape
    return known


def _sampled(ops: pl.DataFrame, bounds: pl.DataFrame) -> dict[int, int]:
    """Tokens that each step samples last: the rows that are as long as the table of tokens."""
    tables = ops.filter(matching(ops, "name", LOOKS_UP))["input_dims"].cast(pl.String).drop_nulls().unique()
    sizes = {shape[0] for dims in tables if (shape := _tensor(dims)) is not None}
    found = ops.filter(matching(ops, "name", SAMPLES)).select(
        "start_ns", pl.col("input_dims").cast(pl.String)
    )
    found = found.drop_nulls().pipe(intervals.beginning_in, bounds)
    each = ((step, _tensor(dims)) for step, dims in found.select("step", "input_dims").iter_rows())
    return {step: prod(shape[:-1]) for step, shape in each if shape is not None and shape[-1] in sizes}


def _tensor(dims: str) -> list[int] | None:
    try:
        return msgspec.convert(msgspec.json.decode(dims, type=list[object])[0], list[Size]) or None
    except (LookupError, ValueError, msgspec.MsgspecError):
        return None  # what a file says


def _first(said: pl.DataFrame) -> dict[int, Shape]:
    """The requests and tokens of each step, by the first op whose shapes say them."""
    found: dict[int, Shape] = {}
    for step, name, dims, captured in said.select("step", "name", "input_dims", "captured").iter_rows():
        if step not in found and (shape := _requests(name, dims)) is not None:
            found[step] = Shape(*shape, captured)
    return found


def _requests(name: str, dims: str) -> tuple[int, int] | None:
    """Requests and the tokens of each; None: the shapes of this op do not say.

    ``embedding`` has a table and indices (requests × tokens). Attention has queries first: requests × heads ×
    tokens × size of ``scaled_dot_product_attention`` and its like, requests × tokens × heads × size of the
    ops behind them; of requests that follow each other, tokens × heads × size, and where each begins.
    """
    try:
        tensors = msgspec.json.decode(dims, type=list[object])
        if name == "aten::embedding":
            requests, each = msgspec.convert(tensors[1], tuple[Size, Size])
            return requests, each
        query = msgspec.convert(tensors[0], list[Size])
        if "scaled_dot_product" in name:
            return (query[0], _apart(query[2], tensors)) if len(query) == 4 else None
        beginnings = tensors[BEGINNINGS.get(name, USUAL_BEGINNINGS)]
        if beginnings == []:
            return (query[0], query[1]) if len(query) == 4 else None
        requests = msgspec.convert(beginnings, tuple[Size])[0] - 1
    except (LookupError, ValueError, msgspec.MsgspecError):
        return None  # what a file says
    tokens = query[0] if len(query) == 3 else query[1]
    if requests == tokens:
        return requests, 1
    return (1, tokens) if requests == 1 else None


def _apart(queries: int, tensors: list[object]) -> int:
    """The tokens of each request, by the rows of their mask."""
    keys = msgspec.convert(tensors[1], list[Size])
    masks = [one for one in tensors[3:] if isinstance(one, list) and len(cast(list[object], one)) == 4]
    rows = msgspec.convert(masks[0], list[Size])[2] if masks else queries
    return rows if rows < queries != keys[2] and queries % rows == 0 else queries
