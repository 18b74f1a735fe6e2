"""So many events that a page holds them: steps in the middle whole, of the rest the longest."""

from __future__ import annotations

import polars as pl

from kinetoscope import numbers


def excerpt(events: pl.DataFrame, step_starts: pl.Series, most: int) -> tuple[pl.DataFrame, str | None]:
    """``most`` events (columns ``start_ns``, ``duration_ns``), and in a sentence what is left out.

    Half of them are all that start in one interval of time in the middle, of whole steps where half of them
    hold a step; the others the longest outside of it.
    """
    if len(events) <= most:
        return events, None
    starts = events["start_ns"].sort()
    start, end = _whole_steps(starts, step_starts.sort(), most // 2) or _middle(starts, most // 2)
    inside = pl.col("start_ns").is_between(start, end, closed="left")
    interval = events.filter(inside).head(most)  # any number may start at one instant
    longest = events.filter(~inside).sort("duration_ns", descending=True, maintain_order=True)
    longest = longest.head(max(most - len(interval), 0))
    kept = pl.concat([interval, longest])
    least = numbers.time((longest["duration_ns"][-1] if len(longest) else 0) / 1000)
    since = [numbers.time((at - starts[0]) / 1000) for at in (start, end)]
    return kept, (
        f"{len(events) - len(kept):,} of {len(events):,} events are not drawn, nor counted in ranges: those "
        f"shorter than {least} before {since[0]} and after {since[1]}. Tables count all."
    )


def _middle(starts: pl.Series, most: int) -> tuple[int, int]:
    first = (len(starts) - most) // 2
    return starts[first], starts[first + most]


def _whole_steps(starts: pl.Series, steps: pl.Series, most: int) -> tuple[int, int] | None:
    """The steps around the middle one that have so many events at most; None where it alone has more."""
    edges = starts.search_sorted(steps, side="left").to_list()
    low = (len(steps) - 1) // 2
    high = low + 1
    if high >= len(steps) or edges[high] - edges[low] > most:
        return None
    while True:
        if high + 1 < len(steps) and edges[high + 1] - edges[low] <= most:
            high += 1
        elif low > 0 and edges[high] - edges[low - 1] <= most:
            low -= 1
        else:
            return steps[low], steps[high]
