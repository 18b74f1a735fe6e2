"""Damages of a file, and how much time of the recording the unreadable bytes may span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from kinetoscope.trace.model import Damage

# code: what happened to {n} of them, and whether something was lost.
UNREADABLE_BYTES = "unreadable-bytes"
DAMAGES: dict[str, tuple[str, bool]] = {
    "truncated": ("the file ends before its list of events does: how much stood behind is not known", True),
    "missing-head": ("the beginning of the file is missing", True),
    "bad-event": ("{n} events could not be read and are left out", True),
    UNREADABLE_BYTES: ("{n} bytes of events could not be read", True),
    "several-traces": (
        "the file holds several traces, one after the other ({n} after the first); they are read as one",
        True,
    ),
    "missing-time": ("{n} events have no time and are left out", True),
    "impossible-time": ("{n} events lie days away from all others and are left out", True),
    "impossible-duration": ("{n} events have an impossible duration; it is taken as zero", False),
    "missing-duration": ("{n} events have no duration; it is taken as zero", False),
    "bad-field": ("{n} fields had a value of the wrong kind and are left empty", False),
    "invalid-utf8": ("{n} events held bytes that are no text; those are replaced", False),
    "control-character": ("{n} events held control characters; those are replaced", False),
    "not-a-number": ("{n} events held NaN, Infinity or N/A; those are left empty", False),
    "lone-backslash": ("{n} events held backslashes that escape nothing; those are kept as text", False),
    "stray-comma": ("{n} events had a comma too many", False),
    "unescaped-quote": ("{n} events had quotes inside their name", False),
    "unreadable-metadata": ("what the file says about itself ({n} bytes) could not be read", False),
    "trailing-junk": ("{n} bytes after the end of the trace are ignored", False),
}


def described(counts: dict[str, int], lost_share: float = 0.0, lost_ns: int = 0) -> tuple[Damage, ...]:
    """Counts by code as damages, what was lost first; of bytes, what part of the file and what time.

    Of a file that ends early no part is given: the file does not say how long it was."""
    codes = sorted(counts, key=list(DAMAGES).index)
    texts = {code: DAMAGES[code][0].format(n=f"{counts[code]:,}") for code in codes}
    if UNREADABLE_BYTES in texts and lost_share and "truncated" not in counts:
        time = f", which span up to {lost_ns / 1e6:,.2f} ms of the recording" if lost_ns else ""
        texts[UNREADABLE_BYTES] += f" ({lost_share:.1%} of the file{time}): what ran there is missing"
    return tuple(Damage(code, texts[code], counts[code]) for code in codes)


def counts_bytes(code: str) -> bool:
    """Whether a damage of this code counts bytes of the file, not events."""
    return "{n} bytes" in DAMAGES[code][0]


def is_loss(code: str) -> bool:
    """Whether a damage of this code takes something of the recording away (else it was repaired)."""
    return DAMAGES[code][1]


def is_complete(counts: dict[str, int]) -> bool:
    """Whether nothing of the recording was lost."""
    return not any(is_loss(code) for code in counts)


_MEASURED = 16  # gaps whose time is looked for, the largest: thousands of single events span none
_WORTH = 1 << 10  # bytes of a gap that may hold more than an event
_BUSY = 0.05  # part of all events that a lane must have for its silence to mean something


class LostBytes(NamedTuple):
    """A run of so many bytes before the event at a position of the file."""

    event: int
    bytes: int


def spanned_ns(gaps: Sequence[LostBytes], frames: Mapping[str, pl.DataFrame]) -> int:
    """Nanoseconds of the recording whose events may lie in the gaps.

    Kineto writes one kind of event after the other, each kind in the order of time. So each busy lane is
    looked at kind by kind: a gap may hide what lies between the last event before it and the first one after,
    from the recording's beginning where none is before it, to its end where none is after. The lane that
    lost most counts.
    """
    timed = [
        frame.select("event", "lane", "start_ns", pl.lit(name).alias("kind"))
        for name, frame in frames.items()
        if {"event", "lane", "start_ns"} <= set(frame.columns)
    ]
    if not gaps or not timed:
        return 0
    events = pl.concat(timed).filter(pl.len().over("kind", "lane") >= _BUSY * pl.len()).sort("event")
    if events.is_empty():
        return 0
    first, last = events.select(first=pl.col("start_ns").min(), last=pl.col("start_ns").max()).row(0)
    return min(last - first, sum(_hidden_ns(events, at, first, last) for at in _places(gaps, events)))


def _places(gaps: Sequence[LostBytes], events: pl.DataFrame) -> list[int]:
    """Where the largest gaps are; those without an event between them are one."""
    table = pl.DataFrame(gaps, schema={"event": pl.UInt32, "bytes": pl.Int64}, orient="row")
    follows = events["event"].search_sorted(table["event"])
    holes = table.group_by(follows.alias("follows")).agg(pl.col("event").min(), pl.col("bytes").sum())
    return holes.filter(pl.col("bytes") >= _WORTH).top_k(_MEASURED, by="bytes")["event"].to_list()


def _hidden_ns(events: pl.DataFrame, place: int, first: int, last: int) -> int:
    start, is_before = pl.col("start_ns"), pl.col("event") < place
    lanes = events.group_by("kind", "lane").agg(
        start.filter(is_before).last().fill_null(first).alias("from_ns"),
        start.filter(~is_before).first().fill_null(last).alias("to_ns"),
    )
    return max(0, lanes.select((pl.col("to_ns") - pl.col("from_ns")).max()).item())
