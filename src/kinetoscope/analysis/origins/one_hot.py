"""Products with rows of zeros and a one, by the sizes of what ops get."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.memo import remembered
from kinetoscope.analysis.origins.sized_ops import (
    ROW_BY_ROW,
    SizedOp,
    forward_ops,
    result_of_product,
    with_sizes,
)
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

ENCODES, WRITES = "aten::one_hot", "aten::scatter_"
ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros")
VIEWS = ("aten::view", "aten::reshape", "aten::flatten", "aten::type_as")
NEAR = 4  # ops before, in which the zeros are made that ones are written into
LEAST = 64  # columns: with fewer a product is as quick as a lookup, whose gradients meet in few rows


class OneHotProducts(NamedTuple):
    """So many ``rows`` of zeros and a one in one of ``columns``: the rows of ``host_events`` that make what
    nothing else reads, and the products (``aten::linear``) that get it, each with the width of its result."""

    made: tuple[int, ...]
    products: tuple[tuple[int, str, int], ...]
    rows: int
    columns: int


@remembered
def one_hot_products(trace: Trace) -> list[OneHotProducts]:
    """The products of a trace with recorded sizes whose first matrix has one 1 in each row."""
    ops = forward_ops(trace)
    places = ops.filter(pl.col("name").is_in([ENCODES, WRITES]))
    if places.is_empty() or not trace.host_arguments["input_dims"].count():
        return []
    noted = with_sizes(trace, ops)
    found = list[OneHotProducts | None]()
    for (lane,), made in places.group_by("lane", maintain_order=True):
        own = noted[: whole(ops.filter(lane=lane)["row"].max()) + 1]
        found += (_products(own, place) for place in made["row"])
    return [one for one in found if one is not None]


def _products(ops: Sequence[SizedOp], place: int) -> OneHotProducts | None:
    """The products that get what is made at a place before any other op does, but for views and types."""
    size, zeros = _encoded(ops, place)
    if size is None or size[-1] < LEAST:
        return None
    forms, made, products = [size, [prod(size[:-1]), size[-1]]], [*zeros, ops[place].id], []
    for op in ops[place + 1 :]:
        given = result_of_product(op)
        if any(form in op.sizes for form in forms):
            if given is not None and list(op.sizes[0]) in forms:
                products.append((op.id, op.name, given[-1]))
            elif op.name in ROW_BY_ROW or op.name in VIEWS:
                made.append(op.id)
            elif products:
                made = []
                break
            else:
                return None
        if (given or _zeros(op) or _hot(op)) in forms:  # what follows may get that one
            break
    return OneHotProducts(tuple(made), tuple(products), prod(size[:-1]), size[-1]) if products else None


def _encoded(ops: Sequence[SizedOp], place: int) -> tuple[list[int] | None, list[int]]:
    """The size of what has a one in each row from a place on, and the ops that make its zeros."""
    op = ops[place]
    if op.name == ENCODES:
        return _hot(op), []
    size, arguments = list(op.sizes[0]) if len(op.sizes) > 2 else [], op.arguments()
    last = ("-1", str(len(size) - 1))  # where an index for each row is
    if len(size) < 2 or list(op.sizes[2]) != [*size[:-1], 1]:
        return None, []
    if len(arguments) < 4 or arguments[1] not in last or arguments[3] not in ("1", "1."):
        return None, []
    zeros = [one.id for one in ops[max(0, place - NEAR) : place] if _zeros(one) == size]
    return (size, zeros[-1:]) if zeros else (None, [])


def _hot(op: SizedOp) -> list[int] | None:
    """The size of what ``one_hot`` gives, if the call says so; None of others."""
    columns = str(op.arguments()[1:2]).strip("[']") if op.name == ENCODES else ""
    return [*op.sizes[0], int(columns)] if columns.isdigit() and op.sizes else None


def _zeros(op: SizedOp) -> list[int] | None:
    """The size of zeros that an op makes; None of others."""
    if op.name == "aten::zeros_like":
        return list(op.sizes[0]) if op.sizes else None
    if op.name not in ZEROS:
        return None
    size = str(op.arguments()[op.name == "aten::new_zeros" :][:1])
    return [int(number) for number in re.findall(r"\d+", size)]
