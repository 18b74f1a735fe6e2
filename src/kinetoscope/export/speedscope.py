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
from kinetoscope.export.nesting import changes, named, nested
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


def _by_line(run: LoadedRun, trace: Trace, frames: dict[str, int], *, several: bool) -> Samples | None:
    """A rank's device work (or its ops) by the module, line and op it came from; None: no line was noted."""
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
