"""Ops in the order in which they are called, with the sizes of what they get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from kinetoscope.analysis.events.backward import in_backward
from kinetoscope.analysis.events.enclosing import outermost
from kinetoscope.analysis.events.rows import matching
from kinetoscope.trace.model import Trace, with_arguments

PRODUCTS = ("aten::linear", "aten::matmul", "aten::mm")
# Ops whose rows are each of one row of what they get.
ROW_BY_ROW = ("aten::to", "aten::float", "aten::contiguous", "aten::detach")


class SizedOp(NamedTuple):
    """A row of ``host_events``, the sizes of what it gets, and its scalar arguments, in JSON."""

    id: int
    name: str
    sizes: Sequence[Sequence[int]]
    values: str | None

    def arguments(self) -> list[Any]:
        """Its arguments, numbers and lists as text, as far as the file has such; of tensors an empty one."""
        found: Any = msgspec.json.decode(self.values) if self.values else []
        return found if isinstance(found, list) else []


def forward_ops(trace: Trace) -> pl.DataFrame:
    """The ops that no other op calls, outside of backward passes, thread after thread: ``id``, ``lane``,
    ``name``, ``arguments`` and their ``row`` among them."""
    host = trace.host_events
    is_op = matching(host, "category", "^cpu_op$") & ~in_backward(trace)
    ops = host.select("id", "lane", "name", "arguments").filter(outermost(host, is_op)).sort("lane", "id")
    return ops.with_row_index("row").with_columns(pl.col("name").cast(pl.String))


def with_sizes(trace: Trace, ops: pl.DataFrame) -> list[SizedOp]:
    """These ``forward_ops`` as they were noted."""
    given = with_arguments(ops, trace.host_arguments, "input_dims", "concrete_inputs")
    texts, values = (given[name].cast(pl.String) for name in ("input_dims", "concrete_inputs"))
    known = {text: sizes(text) for text in texts.unique().drop_nulls()}
    columns = ops["id"], ops["name"], (known.get(text, []) for text in texts), values
    return [SizedOp(*row) for row in zip(*columns, strict=True)]


def sizes(text: str) -> list[list[int]]:
    """The sizes of what an op gets, as far as the file has such: of a scalar none, of lists each of their
    tensors'."""
    found: Any = msgspec.json.decode(text)
    given = found if isinstance(found, list) else []
    nested = (one if one and isinstance(one[0], list) else [one] for one in given if isinstance(one, list))
    return [size for tensors in nested for size in tensors if _is_size(size)]


def _is_size(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(number, int) for number in found)


def result_of_product(op: SizedOp) -> list[int] | None:
    """The size of what a product with a matrix gives; None of other ops."""
    sizes = [list(size) for size in op.sizes]
    if op.name == "aten::linear" and len(sizes) >= 2 and len(sizes[1]) == 2:
        return [*sizes[0][:-1], sizes[1][0]]
    if op.name in PRODUCTS and len(sizes) == 2 and len(sizes[1]) == 2:
        return [*sizes[0][:-1], sizes[1][1]]
    return None
