"""Products of whose rows only some are read, by the sizes of what ops get."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.sized_ops import (
    PRODUCTS,
    ROW_BY_ROW,
    SizedOp,
    forward_ops,
    result_of_product,
    with_sizes,
)
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

PICKS = ("aten::index", "aten::index_select", "aten::select", "aten::slice")
NEAR = 12  # ops after the product in which its rows are picked
MANY, MOST = 8, 0.5  # rows at least, of which so many are picked at most


class PickedRows(NamedTuple):
    """A product (``aten::linear``) of so many ``rows``, of which ``read`` are picked: the rows of
    ``host_events`` that are it, what comes of each of its rows, and what picks."""

    product: str
    ops: tuple[int, ...]
    rows: int
    read: int


@remembered
def picked_rows(trace: Trace) -> list[PickedRows]:
    """The products of a trace with recorded sizes of whose rows few are read."""
    ops = forward_ops(trace)
    product, picks = pl.when(pl.col("name").is_in(PRODUCTS)).then("row"), pl.col("name").is_in(PICKS)
    places = ops.with_columns(product=product.forward_fill().over("lane"))
    places = places.filter(picks, pl.col("row") - pl.col("product") <= NEAR).unique("product")
    if places.is_empty() or not trace.host_arguments["input_dims"].count():
        return []
    rows = with_sizes(trace, ops)
    found = list[PickedRows | None]()
    for (lane,), near in places.sort("product").group_by("lane", maintain_order=True):
        own = rows[: whole(ops.filter(lane=lane)["row"].max()) + 1]
        found += (_picked(own, place) for place in near["product"])
    return [one for one in found if one is not None]


def _picked(ops: Sequence[SizedOp], place: int) -> PickedRows | None:
    result = result_of_product(ops[place])
    if result is None or (rows := prod(result[:-1])) < MANY:
        return None
    ends = min(place + NEAR, len(ops))
    if not any(ops[at].name in PICKS and result in ops[at].sizes for at in range(place + 1, ends)):
        return None
    used, read = [place], 0
    for at in range(place + 1, len(ops)):
        if result not in ops[at].sizes:
            # What follows may get that one, as the next token's or step's.
            if result_of_product(ops[at]) == result:
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


def _rows_read(pick: SizedOp, whole: Sequence[int], following: Sequence[SizedOp]) -> int:
    """How many rows an op picks of the whole; 0 where it gives the whole on, all where that is not known."""
    rows = prod(whole[:-1])
    if pick.name not in ("aten::select", "aten::slice"):
        sizes = (size for op in following for size in op.sizes if len(size) > 1 and size[-1] == whole[-1])
        return next((prod(size[:-1]) for size in sizes if list(size) != list(whole)), rows)
    try:
        values = pick.arguments()[1:]
        dimension = int(values[0])
        size = whole[:-1][dimension if dimension >= 0 else dimension + len(whole)]
        if pick.name == "aten::select":
            return rows // size
        count = len(range(size)[slice(*(int(value) if value else None for value in values[1:]))])
    except (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError):
        return rows  # of a column, too, which all rows have
    return 0 if count == size else rows // size * count
