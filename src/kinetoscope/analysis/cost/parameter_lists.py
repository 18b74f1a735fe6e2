"""How many elements the lists of an optimizer's ops have, which torch does not record when they are long."""

from __future__ import annotations

from math import prod

import msgspec
import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.events.torch_names import GRADIENT
from kinetoscope.analysis.memo import remembered
from kinetoscope.trace.model import Trace

LISTS = r"^aten::(_foreach_|_fused_(adam|sgd))"
# Elements that one block of multi_tensor_apply works on: kChunkSize, ATen/native/cuda/MultiTensorApply.cuh.
CHUNK = 65536


def listed_elements(trace: Trace, ops: pl.DataFrame) -> pl.Series:
    """For each row of ``ops`` (``op``, a row of ``host_events``, and its ``name``), the elements of its lists
    if they are those of the parameters; else null.

    What the parameters are is known from the backward passes, which record the shape of each gradient that
    they accumulate. That an op went over all of them is known from its kernels: every block takes one chunk
    of one tensor, so the blocks of its launches have to be as many as the chunks of those shapes, to the last
    one.
    """
    of_lists = ops.filter(matching(ops, "name", LISTS))["op"]
    gradients = _gradients(trace) if len(of_lists) else {}
    found: dict[int, int] = {}
    if gradients:
        blocks = (
            trace.device_events.filter(pl.col("op").is_in(of_lists.implode()))
            .group_by("op")
            .agg(pl.col("grid").cast(pl.String).str.extract(r"^\[(\d+)").cast(pl.Int64, strict=False).sum())
        )
        known = {count: _elements(gradients, count) for count in blocks["grid"].unique()}
        found = {op: elements for op, count in blocks.iter_rows() if (elements := known[count]) is not None}
    return pl.Series("listed", [found.get(op) for op in ops["op"]] if found else [None] * len(ops), pl.Int64)


def _elements(gradients: dict[tuple[int, ...], int], blocks: int) -> int | None:
    """The elements of one pass, if the recording holds a whole number of passes of so many chunks each."""
    chunks = sum(count * -(-prod(shape) // CHUNK) for shape, count in gradients.items())
    passes, left = divmod(chunks, blocks) if blocks > 0 else (0, 1)
    if left or not passes or any(count % passes for count in gradients.values()):
        return None
    return sum(count * prod(shape) for shape, count in gradients.items()) // passes


@remembered
def _gradients(trace: Trace) -> dict[tuple[int, ...], int]:
    """The shapes of the gradients that were accumulated while the trace was recorded, with how often."""
    host = trace.host_events
    recorded = host.filter(matching(host, "name", GRADIENT))["input_dims"].drop_nulls()
    gradients: dict[tuple[int, ...], int] = {}
    for text, count in recorded.cast(pl.String).value_counts().iter_rows():
        match msgspec.json.decode(text):
            case [[*shape], *_] if all(type(n) is int and n >= 0 for n in shape):
                gradients[tuple(shape)] = gradients.get(tuple(shape), 0) + count
            case _:
                return {}
    return gradients
