"""Memory timelines, which torch's profiler exports (``export_memory_timeline``): bytes over time by category.

``.json`` has times (µs) and the bytes of each category at them; ``.raw.json`` each change: its time (ns; −1:
before the recording), what it was, its bytes and its category. ``.html`` holds a picture, and no number.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import msgspec
import polars as pl

from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file
from kinetoscope.snapshot.read import unpacked

# As torch numbers them (``_CATEGORY_TO_COLORS`` of torch.profiler._memory_profiler), by what they are here.
CATEGORIES = (
    "parameter", "optimizer state", "input", "temporary", "activation", "gradient", "temporary", "unknown",
)  # fmt: skip
KINDS = tuple(dict.fromkeys(CATEGORIES))

Raw = list[tuple[int, int, int, int]]
Summed = tuple[list[float], list[list[int]]]
LARGEST = 4 << 30  # bytes


class MemoryTimeline(msgspec.Struct, frozen=True, eq=False):
    """``table``: ``time_us``, and the bytes of each of ``KINDS`` from then on."""

    path: str
    table: pl.DataFrame


def read(path: Path) -> MemoryTimeline:
    """Raises InputError where it is damaged, or lists something else."""
    data = unpacked(path) if path.suffix == ".gz" else plain_file.content(path, LARGEST)
    try:
        try:
            table = _of_changes(msgspec.json.decode(data, type=Raw))
        except msgspec.ValidationError:
            table = _of_sums(*msgspec.json.decode(data, type=Summed))
    except (msgspec.DecodeError, ValueError, IndexError, OverflowError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"it is no memory timeline: {error}",
            where=str(path),
            hint="name what export_memory_timeline wrote as .json, .json.gz or .raw.json.gz",
        ) from error
    if table.is_empty():
        raise InputError("the memory timeline holds no change", where=str(path))
    return MemoryTimeline(str(path), table)


def _of_sums(times_us: list[float], sizes: list[list[int]]) -> pl.DataFrame:
    columns = [[row[1 + number] for row in sizes] for number in range(len(CATEGORIES))]
    return _by_kind(pl.Series(times_us, dtype=pl.Float64), columns)


def _of_changes(changes: Raw) -> pl.DataFrame:
    first = min((time for time, *_ in changes if time >= 0), default=0)
    times = pl.Series([max(time, first) / 1000 for time, *_ in changes], dtype=pl.Float64)
    columns = [
        [*accumulate(size if category == number else 0 for _, _, size, category in changes)]
        for number in range(len(CATEGORIES))
    ]
    return _by_kind(times, columns)


def _by_kind(times_us: pl.Series, columns: list[list[int]]) -> pl.DataFrame:
    numbered = [pl.Series(str(number), column, dtype=pl.Int64) for number, column in enumerate(columns)]
    table = pl.DataFrame([times_us.alias("time_us"), *numbered])
    sums = [
        pl.sum_horizontal(str(number) for number, one in enumerate(CATEGORIES) if one == kind).alias(kind)
        for kind in KINDS
    ]
    return table.select("time_us", *sums).group_by("time_us", maintain_order=True).last()
