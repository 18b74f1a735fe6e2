"""A profile for speedscope.app: one evented profile a lane, and one of all work by module, line and op.

Source: https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts
"""

from __future__ import annotations

import msgspec
import polars as pl

from kinetoscope.analysis.events.enclosing import nearest
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.origins.attribution import lines_of_ops, lines_of_work
from kinetoscope.analysis.origins.lines import WITHIN, op_lines
from kinetoscope.export.nesting import nested
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace


class FrameEvent(msgspec.Struct):
    """A frame opens (``O``) or closes (``C``)."""

    type: str
    frame: int
    at: int


class Samples(msgspec.Struct):
    """Stacks of frames, the outermost first, and how long each took; the order means nothing."""

    type: str
    name: str
    unit: str
    startValue: int
    endValue: int
    samples: list[list[int]]
    weights: list[int]


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
    by_line = [found for trace in run.traces if (found := _by_line(run, trace, frames, several=several))]
    sizes = [len(lane.events) for lane in lanes]
    return msgspec.json.encode(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "kinetoscope",
            "activeRunIndex": sizes.index(max(sizes)) if sizes else None,
            "shared": {"frames": [{"name": name} for name in frames]},
            "profiles": [*lanes, *by_line],
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


def _by_line(run: LoadedRun, trace: Trace, frames: dict[str, int], *, several: bool) -> Samples | None:
    """The time of a rank's device work (without any, of its ops) by the modules, line and op that it came
    from; None where no line was noted."""
    if (lines := op_lines(run).get(trace.rank)) is None:
        return None
    host, device = trace.host_events, trace.device_events
    if has_device := len(device) > 0:
        origin, op = lines_of_work(trace, lines), host["name"].gather(device["op"])
        work = origin.select("modules", "line").with_columns(device["name", "duration_ns"], op=op)
    else:
        is_op = matching(host, "category", "^cpu_op$")
        inside = host.select(id=nearest(host, is_op).gather(host["parent"]), ns=pl.col("duration_ns")).filter(
            is_op
        )
        inner = host.select("id").join(
            inside.group_by("id").sum(), on="id", how="left", maintain_order="left"
        )
        work = lines_of_ops(trace, lines).select("modules", "line", op=pl.lit(None, pl.Categorical))
        work = work.with_columns(host["name"], duration_ns=host["duration_ns"] - inner["ns"].fill_null(0))
        work = work.filter(is_op)
    levels = ["modules", "line", "op", "name"]
    total = (
        work.with_columns(pl.col(levels).cast(pl.String))
        .group_by(levels, maintain_order=True)
        .agg(pl.sum("duration_ns"))
    )
    stacks = [
        [*(modules.split(WITHIN) if modules else ()), *(one for one in rest if one)]
        for modules, *rest in total.select(levels).iter_rows()
    ]
    rank = f"rank {trace.rank} · " if several else ""
    return Samples(
        "sampled",
        f"{rank}{'device' if has_device else 'op'} time by module and line",
        "nanoseconds",
        0,
        int(total["duration_ns"].sum()),
        [[frames.setdefault(name, len(frames)) for name in stack] for stack in stacks],
        total["duration_ns"].to_list(),
    )


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
