"""A profile for speedscope.app: one evented profile a lane.

Source: https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts
"""

from __future__ import annotations

import msgspec
import polars as pl

from kinetoscope.export.nesting import changes, named, nested
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace


class FrameEvent(msgspec.Struct):
    """A frame opens (``O``) or closes (``C``)."""

    type: str
    frame: int
    at: int


class Profile(msgspec.Struct):
    type: str
    name: str
    unit: str
    startValue: int
    endValue: int
    events: list[FrameEvent]


def render(run: LoadedRun) -> bytes:
    """One JSON document, times in nanoseconds from each rank's first event; the fullest lane opens first."""
    frames: dict[str, int] = {}
    several = len(run.traces) > 1
    lanes = [lane for trace in run.traces for lane in _lanes(trace, frames, several=several)]
    sizes = [len(lane.events) for lane in lanes]
    return msgspec.json.encode(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "kinetoscope",
            "activeRunIndex": sizes.index(max(sizes)) if sizes else None,
            "shared": {"frames": [{"name": name} for name in frames]},
            "profiles": lanes,
        }
    )


def _lanes(trace: Trace, frames: dict[str, int], *, several: bool) -> list[Profile]:
    events = nested(trace).with_columns(
        pl.col("name").cast(pl.String), pl.col("start_ns") - pl.col("start_ns").min()
    )
    profiles = {
        (lane.lane, lane.extra): Profile(
            "evented", f"{lane.process} · {lane.thread}", "nanoseconds", 0, 0, list[FrameEvent]()
        )
        for lane in named(trace, events, several=several)
    }
    opened: list[int] = []
    for place, at, begun in changes(events, "name"):
        if begun is not None:
            opened.append(frames.setdefault(begun[0], len(frames)))
        frame = opened.pop() if begun is None else opened[-1]
        profiles[place].events.append(FrameEvent("C" if begun is None else "O", frame, at))
        profiles[place].endValue = at
    return list(profiles.values())
