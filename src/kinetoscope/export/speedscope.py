"""A profile for speedscope.app: one evented profile a lane.

Source: https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts
"""

from __future__ import annotations

import msgspec
import polars as pl

from kinetoscope.export.nesting import nested
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
    titles = {
        lane: f"{process or pid} · {thread or tid}"
        for lane, pid, tid, process, thread in trace.lanes.select(
            "id", "pid", "tid", "process_name", "thread_name"
        ).iter_rows()
    }
    rank = f"rank {trace.rank} · " if several else ""
    profiles: list[Profile] = []
    for lane in events.partition_by("lane", "extra", maintain_order=True):
        number = f" ({extra})" if (extra := lane["extra"][0]) else ""
        changes = _events(lane, frames)
        name = f"{rank}{titles[lane['lane'][0]]}{number}"
        profiles.append(Profile("evented", name, "nanoseconds", 0, changes[-1].at, changes))
    return profiles


def _events(lane: pl.DataFrame, frames: dict[str, int]) -> list[FrameEvent]:
    """Openings and closings in order; the rows nest and come outermost first."""
    events: list[FrameEvent] = []
    still_open: list[tuple[int, int]] = []  # end, frame
    for name, start, duration in lane.select("name", "start_ns", "duration_ns").iter_rows():
        while still_open and still_open[-1][0] <= start:
            end, frame = still_open.pop()
            events.append(FrameEvent("C", frame, end))
        frame = frames.setdefault(name, len(frames))
        still_open.append((start + duration, frame))
        events.append(FrameEvent("O", frame, start))
    for end, frame in reversed(still_open):
        events.append(FrameEvent("C", frame, end))
    return events
