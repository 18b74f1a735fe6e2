"""Every event of a run as packed columns."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import polars as pl

from kinetoscope import numbers
from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.idle.causes import CAUSES
from kinetoscope.analysis.idle.gaps import gaps
from kinetoscope.analysis.kernels.names import short_names
from kinetoscope.analysis.origins.attribution import attribution, belonging, lines_of_ops, lines_of_work
from kinetoscope.analysis.origins.lines import op_lines
from kinetoscope.comparison.timelines import DrawnWork
from kinetoscope.document.timeline import Lane, Launched, MarkedEvent, Name, PackedColumn, Timeline
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import with_arguments

MOST = 1_000_000  # events; a page of so many takes 5 MB and a second to open

STREAM, ANNOTATION, THREAD = LANES = ("stream", "annotation", "thread")
LAUNCHED = [
    "grid", "block", "registers", "shared_memory_bytes", "warps_per_sm", "occupancy_percent", "bytes",
    "collective",
]  # fmt: skip
TEXTS = {
    "shapes": "input_dims", "stack": "call_stack", "line": "line", "modules": "modules", "before": "before",
}  # fmt: skip
KEYS = {
    "op": "op_name", "module": "module", "annotation": "annotation", "step": "step_name", "graph": "graph",
}  # fmt: skip


def timeline(run: LoadedRun, marked: Iterable[int]) -> Timeline | None:
    """Lanes of streams first, then those of threads, the busiest first; None where there are no events. What
    is ``marked`` are events, by their positions in their files, that something points at."""
    whole = pl.concat([_events(run, number) for number in range(len(run.traces))])
    if whole.is_empty():
        return None
    events, left_out = excerpt(whole, run.traces[0].steps["start_ns"], MOST)
    events = _by_lane(events).with_columns(pl.col(pl.Categorical).cast(pl.String))
    events = events.with_columns(pl.col("category").fill_null(""))
    origin = int(whole.select(pl.min("start_ns")).item())
    on_device = _on_device(events)
    names, name = _coded(events, ["name", "kind", "category"])
    launched, configuration = _coded(on_device, LAUNCHED)
    recorded = {key: events[key] for key in TEXTS}
    texts, coded = _texts(recorded | {key: on_device[key] for key in KEYS})
    devices, idle = _idle(run, origin)
    return Timeline(
        origin_ns=origin,
        lanes=_lanes(run, events),
        names=[msgspec.convert(row, Name) for row in names.to_dicts()],
        texts=texts,
        launched=[msgspec.convert(row, Launched) for row in launched.to_dicts()],
        columns=[
            packed("start", events["start_ns"] - origin, deltas=True),
            packed("duration", events["duration_ns"].clip(0)),
            packed("name", name),
            *(packed(key, codes) for key, codes in coded.items()),
            packed("launch", _rows_of(events, "launch"), deltas=True),
            packed("forward", _rows_of(events, "forward"), deltas=True),
            packed("launched", configuration),
            *idle,
        ],
        idle_devices=devices,
        causes=CAUSES,
        marks=_marks(run, events, marked),
        left_out=left_out,
    )


def compared(sides: Sequence[Sequence[DrawnWork]]) -> Timeline | None:
    """One step of each side, whose lanes have its number as their rank; None where no side has any work."""
    pieces = pl.DataFrame(
        [(at, STREAM, *msgspec.structs.astuple(piece)) for at, side in enumerate(sides) for piece in side],
        orient="row",
        schema={"rank": pl.Int64, "kind": pl.Enum(LANES), "name": pl.String, "category": pl.String,
                "start": pl.Float64, "duration": pl.Float64, "lane": pl.Int64, "call": pl.String,
                "aligned": pl.Float64},
    )  # fmt: skip
    pieces = pieces.filter(pl.col("start") + pl.col("duration") > 0)  # what ran before the step is not of it
    if pieces.is_empty():
        return None
    pieces = pieces.with_columns(pl.col("start", "aligned").clip(0), aligned_duration="duration")
    ends = [(pl.col(start) + pl.col("duration")).max() for start in ("start", "aligned")]
    calls = (
        pieces.drop_nulls("call")
        .group_by("rank", "call", maintain_order=True)
        .agg(pl.col("start", "aligned").min(), duration=ends[0], aligned_duration=ends[1])
        .with_columns(
            kind=pl.lit(ANNOTATION, pl.Enum(LANES)),
            name=pl.format("graph {}", "call"),
            category=pl.lit(""),
            lane=pl.lit(0, pl.Int64),
            duration=pl.col("duration") - pl.col("start"),
            aligned_duration=pl.col("aligned_duration") - pl.col("aligned"),
        )
    )
    lane = ["rank", "kind", "lane"]
    events = pl.concat([pieces, calls.select(pieces.columns)]).sort(
        [*lane, "start", "duration"], descending=[False] * 4 + [True], maintain_order=True
    )
    kinds = events.with_columns(
        kind=pl.when(pl.col("kind") == STREAM).then(pl.lit("kernel")).otherwise(pl.lit("compiled graph"))
    )
    names, name = _coded(kinds, ["name", "kind", "category"])
    on_device = events.filter(pl.col("kind") == STREAM)
    texts, coded = _texts({"graph": on_device["call"]})
    none = pl.zeros(len(on_device), pl.Int64, eager=True)
    times = {"start": "start", "duration": "duration"}
    if events["aligned"].null_count() == 0:
        times |= {"aligned_start": "aligned", "aligned_duration": "aligned_duration"}
    lanes = events.with_row_index("row").group_by(lane, maintain_order=True)
    return Timeline(
        origin_ns=0,
        lanes=[
            Lane(label="", kind=kind, rank=rank, device=0, first=first, count=count)
            for rank, kind, _, first, count in lanes.agg(pl.first("row"), n=pl.len()).iter_rows()
        ],
        names=_names(names),
        texts=texts,
        launched=[Launched()],
        columns=[
            *(
                packed(key, (1000 * events[column]).round().cast(pl.Int64), deltas="start" in key)
                for key, column in times.items()
            ),
            packed("name", name),
            *(packed(key, codes) for key, codes in coded.items()),
            *(packed(key, none) for key in ("launch", "forward", "launched")),
            *(packed(f"idle_{key}", none[:0]) for key in ("device", "start", "duration", "cause")),
        ],
        idle_devices=[],
        causes=[],
        marks=[],
        left_out=None,
    )


def _names(distinct: pl.DataFrame) -> list[Name]:
    """Names of device work and of calls of graphs: the former, which alone have a category, are shortened."""
    short = short_names(distinct["name"])
    return [
        Name(**row, short=brief if row["category"] and brief != row["name"] else "")
        for row, brief in zip(distinct.to_dicts(), short, strict=True)
    ]


def _events(run: LoadedRun, number: int) -> pl.DataFrame:
    """Host events, device work and what else the profiler draws on devices: ``id`` is the row of its table.
    What a graph's capture recorded happened at another time, and is none of them. Texts stay categories: they
    are as many as the recording's events, of which a page may hold few."""
    trace = run.traces[number]
    place = [pl.lit(number, pl.UInt16).alias("trace"), "event", "lane", "start_ns", "duration_ns", "name"]
    lines = op_lines(run).get(trace.rank)
    silent = pl.lit(None, pl.String) if lines is None else lines.rows["before"]
    host = with_arguments(trace.host_events, trace.host_arguments, "input_dims", "call_stack").with_columns(
        _frames(lines_of_ops(trace, lines).select("line", "modules", before=silent))
    )
    host = host.filter(~matching(host, "category", "^captured_"))
    host = host.select(*place, _kind(THREAD), kind="category", id="id", **TEXTS)
    noted = _frames(lines_of_work(trace, lines).select("line", "modules"))
    device = with_arguments(belonging(run).filter(rank=trace.rank), trace.device_arguments).with_columns(
        *noted,
        attribution(trace)["forward_op"].alias("forward"),
        pl.coalesce("launch", "op").alias("launch"),
        pl.col("kind").cast(pl.String).cast(pl.Categorical),
    )
    device = device.select(
        *place, _kind(STREAM), "kind", "category", "launch", "forward", "device", *LAUNCHED,
        *noted.columns, **KEYS,
    )  # fmt: skip
    drawn = trace.device_annotations.select(*place, _kind(ANNOTATION), "device", kind="category")
    return pl.concat([device, drawn, host], how="diagonal")


def _frames(noted: pl.DataFrame) -> pl.DataFrame:
    """Lines written as torch writes Python's functions, ``train.py(12): step``, as categories."""
    as_frame = pl.col(pl.String, pl.Categorical).cast(pl.String).str.replace(r"^(.*):(\d+) ", "$1($2): ")
    return noted.with_columns(as_frame.cast(pl.Categorical))


def _kind(kind: str) -> pl.Expr:
    return pl.lit(kind, pl.Enum(LANES)).alias("kind_of_lane")


def _by_lane(events: pl.DataFrame) -> pl.DataFrame:
    """In the order of the columns, with its ``row``: streams, then threads, those with most events first."""
    lane = ["trace", "lane", "kind_of_lane"]
    busiest = (
        events.group_by(lane)
        .agg(events=pl.len())
        .with_columns(rest=pl.when(pl.col("kind_of_lane") == THREAD).then(-pl.col("events").cast(pl.Int64)))
        .sort("trace", "kind_of_lane", "rest", "lane")
        .with_row_index("place")
    )
    return (
        events.join(busiest.select(*lane, "place"), on=lane)
        .sort(["place", "start_ns", "duration_ns"], descending=[False, False, True], maintain_order=True)
        .with_row_index("row")
    )


def _lanes(run: LoadedRun, events: pl.DataFrame) -> list[Lane]:
    found = events.group_by("place", maintain_order=True).agg(
        pl.first("trace", "lane", "kind_of_lane", "device"), first=pl.first("row"), count=pl.len()
    )
    lanes = [trace.lanes.rows_by_key("id", named=True, unique=True) for trace in run.traces]
    return [
        Lane(
            label=_label(lanes[row["trace"]].get(row["lane"], {})),
            kind=row["kind_of_lane"],
            rank=run.traces[row["trace"]].rank,
            device=row["device"],
            first=row["first"],
            count=row["count"],
        )
        for row in found.to_dicts()
    ]


def _label(lane: dict[str, str | None]) -> str:
    return lane.get("thread_name") or f"thread {lane.get('tid') or '?'}"


def _coded(events: pl.DataFrame, columns: list[str]) -> tuple[pl.DataFrame, pl.Series]:
    """The distinct values of the columns, and of each event which of them it has."""
    distinct = events.select(columns).unique(maintain_order=True).with_row_index("code")
    codes = events.select(columns).join(distinct, on=columns, nulls_equal=True, maintain_order="left")["code"]
    return distinct.drop("code"), codes


def _texts(columns: Mapping[str, pl.Series]) -> tuple[list[str], dict[str, pl.Series]]:
    """All texts, the first of them empty, and the codes of the columns that have any."""
    recorded = {key: column for key, column in columns.items() if column.null_count() < len(column)}
    texts = pl.concat(
        [pl.Series([""]), *(column.drop_nulls().unique(maintain_order=True) for column in recorded.values())]
    )
    texts = texts.unique(maintain_order=True)
    codes = pl.int_range(len(texts), dtype=pl.UInt32, eager=True)
    return texts.to_list(), {
        key: column.fill_null("").replace_strict(texts, codes) for key, column in recorded.items()
    }


def _on_device(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(pl.col("kind_of_lane") == STREAM)


def _rows_of(events: pl.DataFrame, column: str) -> pl.Series:
    """For each piece of device work the row of its host event, plus 1; 0 where none is known or drawn."""
    host = events.filter(pl.col("kind_of_lane") == THREAD).select("trace", pl.col("id").alias(column), "row")
    work = _on_device(events).select("trace", column)
    joined = work.join(host, on=["trace", column], how="left", maintain_order="left")
    return (joined["row"].cast(pl.Int64) + 1).fill_null(0)


def _idle(run: LoadedRun, origin: int) -> tuple[list[tuple[int, int]], list[PackedColumn]]:
    found = gaps(run).sort("rank", "device", "start_ns")
    distinct, device = _coded(found, ["rank", "device"])
    return distinct.rows(), [
        packed("idle_device", device),
        packed("idle_start", (found["start_ns"] - origin).clip(0), deltas=True),
        packed("idle_duration", found["end_ns"] - found["start_ns"]),
        packed("idle_cause", found["cause"].to_physical()),
    ]


def _marks(run: LoadedRun, events: pl.DataFrame, marked: Iterable[int]) -> list[MarkedEvent]:
    found = events.filter(pl.col("event").is_in(sorted(set(marked)))).select("trace", "event", "row")
    return [
        MarkedEvent(rank=run.traces[trace].rank, event=event, row=row)
        for trace, event, row in found.iter_rows()
    ]


def excerpt(events: pl.DataFrame, step_starts: pl.Series, most: int) -> tuple[pl.DataFrame, str | None]:
    """``most`` events (columns ``start_ns``, ``duration_ns``), and in a sentence what is left out: half of
    them are all in one interval in the middle, of whole steps where it holds a step, the others the longest
    outside of it."""
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


WIDTH = 8  # bytes of a number before it is packed


def packed(name: str, values: pl.Series, *, deltas: bool = False) -> PackedColumn:
    """The numbers; ``deltas`` for columns that mostly rise. Raises OverflowError where one is negative."""
    stored = array("Q", (_differences(values) if deltas else values).to_list())
    planes = (max(stored, default=0).bit_length() + 7) // 8
    if sys.byteorder == "big":
        stored.byteswap()
    whole = stored.tobytes()
    data = b"".join(whole[plane::WIDTH] for plane in range(planes))
    return PackedColumn(name=name, length=len(values), planes=planes, deltas=deltas, data=data)


def _differences(values: pl.Series) -> pl.Series:
    """From the number before, from 0 for the first; d as 2d, -d as 2d - 1: small whatever their sign."""
    now = pl.col("values").cast(pl.Int64)
    d = now - now.shift(1, fill_value=0)
    return (
        values.alias("values").to_frame().select(pl.when(d < 0).then(-2 * d - 1).otherwise(2 * d))["literal"]
    )
