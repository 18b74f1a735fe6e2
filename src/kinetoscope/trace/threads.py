"""Tables on every core: what Polars does on one, letting go of Python's lock, can be done piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import polars as pl

Item = TypeVar("Item")
Result = TypeVar("Result")
PIECE = 1 << 16  # values; below it another thread costs more than it saves


def on_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The results of ``work`` for every item, in order; as many at a time as Polars has threads."""
    each = list(items)
    if len(each) < 2 or pl.thread_pool_size() < 2:
        return list(map(work, each))
    with ThreadPoolExecutor(pl.thread_pool_size()) as threads:
        return list(threads.map(work, each))


def places(ordered: pl.Series, values: pl.Series) -> pl.Series:
    """How many of the ordered ones lie below each value: ``search_sorted(side="left")``, piece by piece."""
    size = max(PIECE, -(-len(values) // pl.thread_pool_size()))
    pieces = [values.slice(at, size) for at in range(0, len(values) or 1, size)]
    return pl.concat(
        on_threads(lambda piece: ordered.search_sorted(piece, side="left"), pieces), rechunk=True
    )
