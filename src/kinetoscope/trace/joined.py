"""A trace of torch's profiler, joined with one of Nsight Systems of the same program: graph nodes and NVTX
ranges of the one come to the ops, modules and lines of the other.

Both record the same device work in the same order of launches: what follows the i-th of the one follows the
same of the other from some place on, which is where most names agree, but for what one of them lost. Times of
host threads are carried over through the launches of that work: what lay between two launches lies between
the same two again.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import polars as pl
from msgspec.structs import replace

from kinetoscope.trace import schema
from kinetoscope.trace.link import link
from kinetoscope.trace.model import JOINED, JoinedExport, Trace
from kinetoscope.trace.schema import whole
from kinetoscope.trace.tree import nested, sorted_by_lane

ENOUGH = 0.95  # of the device work of the shorter recording that agrees: else they are of different programs
_RAREST, _MOST_SHIFTS = 8, 512  # names that alignments are looked for by; alignments that are tried
_MOST_LOST = 1000  # pieces of work that one of both may lack: looking for them takes the square of it
_RANGES = ("user_annotation", "nvtx")


class Alignment(NamedTuple):
    """Rows of ``device_events`` that are the same work in two traces."""

    rows: pl.Series  # of the one trace; ``others`` of the other
    others: pl.Series
    compared: int  # pairs that should have been the same: the work of the shorter recording

    @property
    def share(self) -> float:
        return len(self.rows) / self.compared if self.compared else 0.0


def aligned(trace: Trace, export: Trace) -> Alignment:
    """The device work that both hold, by the names in the order of launches."""
    ours, theirs = _in_order(trace), _in_order(export)
    compared = min(len(ours), len(theirs))
    most_same, longest = (0, 0.0, 0), (0, 0)
    for shift in _shifts(ours["name"], theirs["name"]):
        mine, other = _overlap(ours, theirs, shift)
        same = mine["name"] == other["name"]
        apart = (mine["duration_ns"] - other["duration_ns"]).filter(same).abs().sum()
        most_same = max(most_same, (int(same.sum()), -float(apart), shift))
        runs = same.rle().struct.unnest().filter("value")["len"]
        longest = max(longest, (whole(runs.max()), shift))
    mine, other = _overlap(ours, theirs, most_same[2])
    same = mine["name"] == other["name"]
    found = [Alignment(mine["id"].filter(same), other["id"].filter(same), compared)]
    most = min(_MOST_LOST, int((1 - ENOUGH) * compared))
    for shift in dict.fromkeys((0, most_same[2], longest[1])):
        mine, other = ours.slice(max(0, -shift)), theirs.slice(max(0, shift))
        pairs = _in_common(mine["name"].to_list(), other["name"].to_list(), most)
        if pairs is not None:
            found.append(Alignment(mine["id"].gather(pairs[0]), other["id"].gather(pairs[1]), compared))
    return max(reversed(found), key=lambda one: len(one.rows))


def _in_common(ours: list[str], theirs: list[str], most: int) -> tuple[list[int], list[int]] | None:
    """The places of what both sequences have in the same order, to the end of one of them (Myers 1986); None
    where more than ``most`` would have to be left out."""
    # By how much more of ours than of theirs is left out; negative ones stand at the end.
    reached = array("q", [0]) * (2 * most + 3)
    rounds: list[array[int]] = []
    for lost in range(most + 1):
        rounds.append(reached[:])
        for k in range(-lost, lost + 1, 2):
            is_of_theirs = k == -lost or (k != lost and reached[k - 1] < reached[k + 1])
            at = reached[k + 1] if is_of_theirs else reached[k - 1] + 1
            while at < len(ours) and at - k < len(theirs) and ours[at] == theirs[at - k]:
                at += 1
            reached[k] = at
            if at >= len(ours) or at - k >= len(theirs):
                return _followed(rounds, k, at)
    return None


def _followed(rounds: list[array[int]], k: int, at: int) -> tuple[list[int], list[int]]:
    """The way back to the start, by what each round had reached."""
    rows, others = list[int](), list[int]()
    for lost in range(len(rounds) - 1, -1, -1):
        before = rounds[lost]
        is_of_theirs = k == -lost or (k != lost and before[k - 1] < before[k + 1])
        start = 0 if not lost else before[k + 1] if is_of_theirs else before[k - 1] + 1
        rows += range(at - 1, start - 1, -1)
        others += range(at - k - 1, start - k - 1, -1)
        k += 1 if is_of_theirs else -1
        at = start if is_of_theirs else start - 1
    return rows[::-1], others[::-1]


def with_export(trace: Trace, export: Trace, found: Alignment) -> Trace:
    """The trace with the graph nodes and ranges of the export, and an account of the join in its metadata."""
    events = export.device_events[found.others]
    nodes = pl.DataFrame({"id": found.rows, "node": events["graph_node"], "of": events["graph"]})
    device = trace.device_events.join(nodes, on="id", how="left", maintain_order="left")
    device = device.with_columns(
        graph_node=pl.coalesce("graph_node", "node"), graph=pl.coalesce("graph", "of")
    ).drop("node", "of")
    host, ranges = _with_ranges(trace, export, found)
    account = JoinedExport(
        Path(export.source.path).name,
        found.compared,
        len(found.rows),
        int(events["graph_node"].is_not_null().sum()),
        ranges,
        _apart_ns(trace, export, found),
    )
    return link(
        replace(
            trace,
            host_events=host,
            host_arguments=pl.concat([trace.host_arguments, export.host_arguments]),
            device_events=schema.conform(device, schema.HELD["device_events"]),
            metadata=MappingProxyType({**trace.metadata, JOINED: account}),
        )
    )


def _in_order(trace: Trace) -> pl.DataFrame:
    """(id, name, duration_ns) of the launched device work in the order of launches; of a graph, as it ran."""
    table = trace.device_events.select("id", "name", "launch", "start_ns", "duration_ns")
    table = table.filter(pl.col("launch").is_not_null())
    launched = trace.host_events["start_ns"].gather(table["launch"])
    return (
        table.with_columns(launched.alias("launched"), _plain(table["name"]))
        .sort("launched", "start_ns")
        .select("id", "name", "duration_ns")
    )


def _plain(names: pl.Series) -> pl.Series:
    """Names of kernels without what tools write differently: parameters, of templates and functions."""
    distinct = names.unique()
    texts = distinct.cast(pl.String).str.replace_all(r"<unnamed>|\(anonymous namespace\)", "")
    short = texts.str.replace(r"(?s)^void ", "").str.replace(r"(?s)[<(].*$", "").str.replace(r"^.*::", "")
    return names.replace_strict(distinct, short, return_dtype=pl.String).alias("name")


def _shifts(ours: pl.Series, theirs: pl.Series) -> list[int]:
    """How far one sequence may lie from the other: as the first and last places of the rarest names say."""
    counts = theirs.value_counts(name="n").join(ours.unique().to_frame(), on="name", how="semi")
    places = ours.to_frame().with_row_index("at").group_by("name")
    ends = pl.concat([places.agg(pl.col("at").min()), places.agg(pl.col("at").max())]).unique()
    rare = counts.sort("n", "name").head(_RAREST).join(ends, on="name")
    places = theirs.to_frame().with_row_index("there").join(rare, on="name")
    shifts = places.select(pl.col("there").cast(pl.Int64) - pl.col("at").cast(pl.Int64)).to_series()
    return shifts.value_counts(sort=True).head(_MOST_SHIFTS)[shifts.name].to_list()


def _overlap(ours: pl.DataFrame, theirs: pl.DataFrame, shift: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The parts of both that lie side by side when the second is moved forward by so many."""
    mine, other = max(0, -shift), max(0, shift)
    length = max(0, min(len(ours) - mine, len(theirs) - other))
    return ours.slice(mine, length), theirs.slice(other, length)


def _apart_ns(trace: Trace, export: Trace, found: Alignment) -> int:
    """How far device times are apart once the one clock is moved onto the other: the median. Two recordings
    of one run agree to the microsecond, two runs do not."""
    moved = trace.device_events["start_ns"].gather(found.rows) - export.device_events["start_ns"].gather(
        found.others
    )
    return whole((moved - whole(moved.median())).abs().median())


def _with_ranges(trace: Trace, export: Trace, found: Alignment) -> tuple[pl.DataFrame, int]:
    """``host_events`` with the export's ranges that the trace lacks, and how many these are."""
    host, known = trace.host_events, trace.host_events["name"].unique().cast(pl.String)
    there = export.host_events.filter(
        export.host_events["category"].cast(pl.String).is_in([*_RANGES])
    ).with_columns(pl.col("name").cast(pl.String))
    there = there.filter(~pl.col("name").is_in(known.implode()))
    launches = pl.DataFrame(
        {
            "here": trace.device_events["launch"].gather(found.rows),
            "there": export.device_events["launch"].gather(found.others),
        }
    ).unique("there")
    launches = launches.select(
        lane=host["lane"].gather(launches["here"]),
        of=export.host_events["lane"].gather(launches["there"]),
        here=host["start_ns"].gather(launches["here"]),
        there=export.host_events["start_ns"].gather(launches["there"]),
    )
    moved: list[pl.DataFrame] = []
    for (lane,), ranges in there.group_by("lane"):
        points = launches.filter(of=lane)
        if len(points):
            to = points["lane"].mode().sort()[0]
            moved.append(
                _moved(ranges, points.filter(lane=to)).with_columns(pl.lit(to, pl.UInt32).alias("lane"))
            )
    if not moved:
        return host, 0
    added = pl.concat(moved)
    place = whole(host["event"].max()) + 1
    added = added.with_columns(
        pl.int_range(place, place + len(added), dtype=pl.UInt32).alias("event"),
        pl.col("name").cast(schema.NAME),
        pl.col("arguments") + len(trace.host_arguments),
    )
    both = pl.concat([host, schema.conform(added.drop("correlation"), schema.HELD["host_events"])])
    tree = nested(sorted_by_lane(both))
    rest = both.drop(*(name for name in tree.columns if name != "row" and name in both.columns))[tree["row"]]
    joined = pl.concat([tree.drop("row"), rest], how="horizontal")
    return schema.conform(joined, schema.HELD["host_events"]), len(added)


def _moved(ranges: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
    """Ranges of one thread on the other trace's clock; ``points``: times of the same launches on both clocks,
    ``here`` and ``there``."""
    points = points.sort("there").filter(
        pl.col("here") > pl.col("here").cum_max().shift(1, fill_value=-(1 << 62))
    )
    points = points.unique("there", keep="first", maintain_order=True)
    start = _carried(ranges["start_ns"], points)
    end = _carried(ranges["start_ns"] + ranges["duration_ns"], points)
    return ranges.with_columns(start.alias("start_ns"), (end - start).clip(0).alias("duration_ns"))


def _carried(times: pl.Series, points: pl.DataFrame) -> pl.Series:
    """Times between two launches stay between these, in proportion; others are as far from the nearest."""
    there, here = points["there"], points["here"]
    row = (there.search_sorted(times, side="right").cast(pl.Int64) - 1).clip(0, len(points) - 1)
    following = (row + 1).clip(0, len(points) - 1)
    since = times - there.gather(row)
    gap = (there.gather(following) - there.gather(row)).to_list()
    length = (here.gather(following) - here.gather(row)).to_list()
    parts = [
        at + (passed * ours // theirs if theirs and passed > 0 else passed)
        for at, passed, ours, theirs in zip(here.gather(row), since, length, gap, strict=True)
    ]
    return pl.Series(parts, dtype=pl.Int64)
