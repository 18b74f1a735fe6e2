"""Recorded convolutions: whether they are grouped, and how their input lies in memory."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.kernels.work import work
from kinetoscope.analysis.memo import kept
from kinetoscope.trace.model import Trace, with_arguments

# Kernels for one channel a group, or few: what the libraries have for them is another code.
GROUPED = r"(?i)_c1_k1_|grouped_direct|depthwise|dwconv"
ARGUMENTS = ["input_dims", "input_strides"]
SAID = ["name", *ARGUMENTS]


@kept
def convolutions(trace: Trace) -> pl.DataFrame:
    """One row per op that launched device work of category convolution: ``op`` (row of ``host_events``),
    ``is_grouped`` and ``is_channels_last`` (of its input; false where no shapes were recorded)."""
    done = work(trace).drop_nulls("op")
    done = done.filter(matching(done, "category", "^convolution$"))
    by_name = done.select("op", named=matching(done, "name", GROUPED)).group_by("op").agg(pl.any("named"))
    calls = by_name.hstack(trace.host_events.select("name", "arguments")[by_name["op"]])
    calls = with_arguments(calls, trace.host_arguments, *ARGUMENTS)
    distinct = calls.select(SAID).unique()
    known = [_read(*row) for row in distinct.cast(pl.String).iter_rows()]
    distinct = distinct.with_columns(
        pl.Series("by_shape", [grouped for grouped, _ in known], pl.Boolean),
        pl.Series("is_channels_last", [last for _, last in known], pl.Boolean),
    )
    return calls.join(distinct, on=SAID, how="left", nulls_equal=True).select(
        "op", "is_channels_last", is_grouped=pl.col("named") | pl.col("by_shape")
    )


def _read(name: str, dims: str | None, strides: str | None) -> tuple[bool, bool]:
    """Grouped: the weight has fewer input channels than the input."""
    first = 1 if name.endswith("_backward") else 0  # before the input stands the output's gradient
    shapes, steps = (_sizes(text, first) for text in (dims, strides))
    if len(shapes) < 2 or any(len(shape) < 3 for shape in shapes):
        return False, False
    image, weight = shapes
    is_last = bool(steps) and len(steps[0]) == len(image) and image[1] > 1 and steps[0][1] == 1
    return image[1] != weight[1], is_last


def _sizes(text: str | None, first: int) -> list[list[int]]:
    found: Any = msgspec.json.decode(text) if text else []  # what a file says
    if not isinstance(found, list):
        return []
    return [size for size in found[first : first + 2] if isinstance(size, list)]
