"""Evidence of findings: events of the trace, intervals of idle time, lines of the program."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.events.torch_names import LIBRARY_FRAME
from kinetoscope.analysis.origins.attribution import lines_of_work
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rows import Evidence
from kinetoscope.trace.schema import whole

SHOWN_EVENTS = 12  # evidence lists the first few events; their number is in the text


def of(view: RankView, text: str, events: pl.DataFrame) -> Evidence:
    """Evidence that spans events (``event``, ``start_ns``, ``duration_ns``); without any, the steps."""
    start, end = view.bounds
    if len(events):
        start = whole(events["start_ns"].min())
        end = whole((events["start_ns"] + events["duration_ns"]).max())
    return Evidence(text, start / 1000, end / 1000, tuple(events["event"].head(SHOWN_EVENTS).to_list()))


def of_steps(view: RankView, text: str) -> list[Evidence]:
    return [of(view, text, view.trace.steps)]


def of_gaps(view: RankView, gaps: pl.DataFrame) -> list[Evidence]:
    """One piece of evidence for each row of ``view.gaps``, with the line of the program that was running."""
    called = [view.lines.line(row) if view.lines else None for row in gaps["host_event"].to_list()]
    gaps = gaps.with_columns(event=view.trace.host_events["event"][gaps["host_event"]])
    return [
        Evidence(
            f"idle {numbers.time((end - start) / 1000)}: {text}{f' ({line})' if line else ''}",
            start / 1000,
            end / 1000,
            () if event is None else (event,),
        )
        for (start, end, text, event), line in zip(
            gaps.select("start_ns", "end_ns", "text", "event").iter_rows(), called, strict=True
        )
    ]


def source(view: RankView, ops: pl.Series) -> str | None:
    """``file.py:12`` of the user's line around the first of these rows of ``host_events`` that has one."""
    host = view.trace.host_events
    for row in map(int, ops.drop_nulls().head(4)):
        if view.lines is not None and (line := view.lines.line(row)):
            return line
        stack = view.trace.argument("call_stack", row)
        for frame in stack.split(";") if stack else _frames(host, row):
            if line := user_line(frame):
                return line
    return None


def lines(view: RankView, shown: Iterable[Evidence]) -> tuple[str, ...]:
    """Lines of the program, as ``train.py:12 step``, that call the events of this evidence: those of most of
    their time first. Of backward work they are those of its forward ops."""
    if view.lines is None:
        return ()
    events = pl.Series(sorted({event for one in shown for event in one.events}), dtype=pl.UInt32)
    host, device = view.trace.host_events, view.trace.device_events
    called = pl.concat(
        [
            device.select("event", "duration_ns", line=lines_of_work(view.trace, view.lines)["line"]),
            host.select("event", "duration_ns", line=view.lines.texts["line"].cast(pl.Categorical)),
        ]
    )
    return tuple(
        called.filter(pl.col("event").is_in(events.implode()))
        .drop_nulls("line")
        .group_by("line")
        .agg(pl.col("duration_ns").sum())
        .sort("duration_ns", pl.col("line").cast(pl.String), descending=[True, False])["line"]
        .cast(pl.String)
    )


def at_line(file: str | None, line: int | None) -> str | None:
    """``file.py:12``, as findings name a place."""
    return None if file is None else file if line is None else f"{file}:{line}"


# A file begins where a word does: looked for at each letter, one long word would take its length squared.
_FRAME = re.compile(r"(?<![^\s;<>])(?P<file>[^\s;<>]+\.py)\((?P<line>\d+)\)")


def user_line(frame: str) -> str | None:
    """``train.py(12): step`` as ``train.py:12``, unless it is a frame of a library."""
    match = _FRAME.search(frame)
    return f"{match['file']}:{match['line']}" if match and not re.search(LIBRARY_FRAME, frame) else None


def _frames(host: pl.DataFrame, row: int | None) -> Iterable[str]:
    """Names of an event and of those around it, from the inside out; of a Python function its callers, also
    where the mark of a step that begins inside of one lies between."""
    while row is not None:
        yield str(host["name"][row])
        caller, inside = host["python_parent_id"][row], row
        row = host["parent"][row]
        if caller is not None and (row is None or host["python_id"][row] != caller):
            known = host["python_id"].index_of(caller)
            row = known if known is not None and known < inside else row
