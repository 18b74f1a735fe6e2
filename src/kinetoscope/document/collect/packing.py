"""Columns of whole numbers as planes of bytes, which compress to a third of what the numbers do."""

from __future__ import annotations

import sys
from array import array

import polars as pl

from kinetoscope.document.timeline import PackedColumn

WIDTH = 8


def packed(name: str, values: pl.Series, *, deltas: bool = False) -> PackedColumn:
    """The numbers, none of them negative or null; ``deltas`` for columns that mostly rise.

    Raises:
        OverflowError: a number is negative.
    """
    stored = array("Q", (_differences(values) if deltas else values).to_list())
    planes = (max(stored, default=0).bit_length() + 7) // 8
    if sys.byteorder == "big":
        stored.byteswap()
    whole = stored.tobytes()
    data = b"".join(whole[plane::WIDTH] for plane in range(planes))
    return PackedColumn(name=name, length=len(values), planes=planes, deltas=deltas, data=data)


def _differences(values: pl.Series) -> pl.Series:
    """From the number before, from 0 for the first; d as 2d, -d as 2d - 1: small whatever their sign."""
    now = pl.col("values").cast(pl.Int64)
    d = now - now.shift(1, fill_value=0)
    return (
        values.alias("values").to_frame().select(pl.when(d < 0).then(-2 * d - 1).otherwise(2 * d))["literal"]
    )
