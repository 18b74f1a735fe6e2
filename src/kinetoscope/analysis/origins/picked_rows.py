"""Products of whose rows only some are read, by the sizes of what ops get."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import msgspec
import polars as pl

from kinetoscope.analysis.events.backward import in_backward
from kinetoscope.analysis.events.enclosing import outermost
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace, with_arguments
from kinetoscope.trace.schema import whole

PRODUCTS = ("aten::linear", "aten::matmul", "aten::mm")
PICKS = ("aten::index", "aten::index_select", "aten::select", "aten::slice")
# Ops whose rows are each of one row of what they get.
ROW_BY_ROW = ("aten::to", "aten::float", "aten::contiguous", "aten::detach")
NEAR = 12  # ops after the product in which its rows are picked
MANY, MOST = 8, 0.5  # rows at least, of which so many are picked at most


class PickedRows(NamedTuple):
    """A product (``aten::linear``) of so many ``rows``, of which ``read`` are picked: the rows of
    ``host_events`` that are it, what comes of each of its rows, and what picks."""

    product: str
    ops: tuple[int, ...]
    rows: int
    read: int


class _Op(NamedTuple):
    id: int
    name: str
    sizes: Sequence[Sequence[int]]  # of what it gets
    values: str | None  # JSON of its scalar arguments


@remembered
def picked_rows(trace: Trace) -> list[PickedRows]:
    """The products of a trace with recorded sizes of whose rows few are read."""
    host = trace.host_events
    is_op = matching(host, "category", "^cpu_op$") & ~in_backward(trace)
    ops = host.select("id", "lane", "name", "arguments").filter(outermost(host, is_op)).sort("lane", "id")
    ops = ops.with_row_index("row").with_columns(pl.col("name").cast(pl.String))
    product, picks = pl.when(pl.col("name").is_in(PRODUCTS)).then("row"), pl.col("name").is_in(PICKS)
    places = ops.with_columns(product=product.forward_fill().over("lane"))
    places = places.filter(picks, pl.col("row") - pl.col("product") <= NEAR).unique("product")
    if places.is_empty() or not trace.host_arguments["input_dims"].count():
        return []
    given = with_arguments(ops, trace.host_arguments, "input_dims", "concrete_inputs")
    texts, values = (given[name].cast(pl.String) for name in ("input_dims", "concrete_inputs"))
    known = {text: sizes(text) for text in texts.unique().drop_nulls()}
    columns = ops["id"], ops["name"], (known.get(text, []) for text in texts), values
    rows = [_Op(*row) for row in zip(*columns, strict=True)]
    found = list[PickedRows | None]()
    for (lane,), near in places.sort("product").group_by("lane", maintain_order=True):
        own = rows[: whole(ops.filter(lane=lane)["row"].max()) + 1]
        found += (_picked(own, place) for place in near["product"])
    return [one for one in found if one is not None]


def sizes(text: str) -> list[list[int]]:
    """The sizes of what an op gets, as far as the file has such: of a scalar none, of lists each of their
    tensors'."""
    found: Any = msgspec.json.decode(text)
    given = found if isinstance(found, list) else []
    nested = (one if one and isinstance(one[0], list) else [one] for one in given if isinstance(one, list))
    return [size for tensors in nested for size in tensors if _is_size(size)]


def _is_size(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(number, int) for number in found)


def _picked(ops: Sequence[_Op], place: int) -> PickedRows | None:
    result = _result(ops[place])
    if result is None or (rows := prod(result[:-1])) < MANY:
        return None
    ends = min(place + NEAR, len(ops))
    if not any(ops[at].name in PICKS and result in ops[at].sizes for at in range(place + 1, ends)):
        return None
    used, read = [place], 0
    for at in range(place + 1, len(ops)):
        if result not in ops[at].sizes:
            if _result(ops[at]) == result:  # what follows may get that one, as the next token's or step's
                break
            continue
        used.append(at)
        if ops[at].name in PICKS:
            read += _rows_read(ops[at], result, ops[at + 1 : at + NEAR])
        elif ops[at].name not in ROW_BY_ROW:
            return None
    if not 0 < read <= MOST * rows:
        return None
    return PickedRows(ops[place].name, tuple(ops[at].id for at in used), rows, read)


def _result(op: _Op) -> list[int] | None:
    """The size of what a product with a matrix gives; None of other ops."""
    sizes = [list(size) for size in op.sizes]
    if op.name == "aten::linear" and len(sizes) >= 2 and len(sizes[1]) == 2:
        return [*sizes[0][:-1], sizes[1][0]]
    if op.name in PRODUCTS and len(sizes) == 2 and len(sizes[1]) == 2:
        return [*sizes[0][:-1], sizes[1][1]]
    return None


def _rows_read(pick: _Op, whole: Sequence[int], following: Sequence[_Op]) -> int:
    """How many rows an op picks of the whole; 0 where it gives the whole on, all where that is not known."""
    rows = prod(whole[:-1])
    if pick.name not in ("aten::select", "aten::slice"):
        sizes = (size for op in following for size in op.sizes if len(size) > 1 and size[-1] == whole[-1])
        return next((prod(size[:-1]) for size in sizes if list(size) != list(whole)), rows)
    try:
        values: list[Any] = msgspec.json.decode(pick.values or "")[1:]
        dimension = int(values[0])
        size = whole[:-1][dimension if dimension >= 0 else dimension + len(whole)]
        if pick.name == "aten::select":
            return rows // size
        count = len(range(size)[slice(*(int(value) if value else None for value in values[1:]))])
    except (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError):
        return rows  # of a column, too, which all rows have
    return 0 if count == size else rows // size * count
