"""How many blocks of a kernel a multiprocessor can hold."""

from __future__ import annotations

import re
from math import prod

import polars as pl

from kinetoscope.trace.model import DeviceProperties


def fitted(launches: pl.DataFrame, device: DeviceProperties) -> pl.DataFrame:
    """Rows of ``work`` with ``blocks`` (of the grid), ``threads`` (of a block), ``resident`` (blocks that one
    multiprocessor can hold at a time, by threads, registers and shared memory) and ``occupancy`` (the share
    of its threads that those are)."""
    threads = _limit(device, "maxThreadsPerMultiprocessor", 2048)
    registers = _limit(device, "regsPerMultiprocessor", 65536)
    shared = _limit(device, "sharedMemPerMultiprocessor", 233472)
    # Registers are given to warps in units of 256; each block takes 1 KiB of shared memory for the system.
    warps = (pl.col("threads") / 32).ceil()
    per_warp = (pl.col("registers") * 32 / 256).ceil() * 256
    resident = pl.min_horizontal(
        threads // pl.col("threads"),
        (registers / (warps * per_warp)).floor(),
        (shared / (pl.col("shared_memory_bytes").fill_null(0) + 1024)).floor(),
        32,  # blocks, whatever their size
    )
    launches = _sized(blocks(launches), "block", "threads")
    return launches.with_columns(resident=resident).with_columns(
        occupancy=pl.col("resident") * pl.col("threads") / threads
    )


def filled(launches: pl.DataFrame, device: DeviceProperties) -> pl.DataFrame:
    """Rows of ``work`` with ``filled``: the share of the blocks that the device can hold at a time that the
    grid has, at most 1; 1 where that is not known."""
    room = pl.col("resident") * (device.multiprocessors or 0)
    share = (pl.col("blocks") / room).fill_nan(1.0).fill_null(1.0).clip(0, 1)
    return fitted(launches, device).with_columns(filled=share)


def blocks(launches: pl.DataFrame) -> pl.DataFrame:
    """Rows of device work with ``blocks``, of the grid; null where it was not recorded."""
    return _sized(launches, "grid", "blocks")


def _sized(launches: pl.DataFrame, triple: str, name: str) -> pl.DataFrame:
    # Shapes are few, launches are many: the texts are read once each.
    shapes = launches[triple].unique()
    sizes = pl.Series(name, map(_product, shapes.cast(pl.String).to_list()), pl.Int64)
    sizes = pl.DataFrame([shapes, sizes])
    return launches.with_columns(launches[[triple]].join(sizes, triple, "left", maintain_order="left")[name])


def _limit(device: DeviceProperties, name: str, otherwise: int) -> int:
    value = device.properties.get(name)
    return value if isinstance(value, int) and 0 < value < 1 << 31 else otherwise


def _product(triple: str | None) -> int | None:
    """The product of a JSON list of three numbers; None where no column of integers holds it."""
    found = 1 << 63 if triple is None else prod(map(int, re.findall("[0-9]{1,20}", triple)))
    return found if found < 1 << 63 else None
