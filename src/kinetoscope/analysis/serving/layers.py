"""One layer of a model, by the sequence of kernels that a step repeats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from kinetoscope.analysis.kernels.names import short_names
from kinetoscope.analysis.origins.attribution import OUTSIDE, UNATTRIBUTED, belonging
from kinetoscope.analysis.serving.parts import KV_WRITES, costs, parted
from kinetoscope.analysis.serving.rows import LayerKernel, ServingLayer
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace

LEAST = 3  # layers
SHARE = 0.3  # of the step's device time: what repeats and takes less is no layer of the model
MOST_PERIODS = 64  # lengths of a layer that are tried
MOST_KERNELS = 20_000  # of one step


class Repeats(NamedTuple):
    """Where a sequence repeats itself: ``times`` a part of ``length``, from ``first`` on."""

    first: int
    length: int
    times: int


def repeats(names: Sequence[str]) -> Repeats | None:
    """The part of a sequence that follows itself so often that most of the sequence is that; of several that
    hold as much the shortest. None where nothing follows itself three times."""
    last: dict[str, int] = {}
    distances: Counter[int] = Counter()
    for place, name in enumerate(names):
        if name in last:
            distances[place - last[name]] += 1
        last[name] = place
    best: Repeats | None = None
    for length, _ in sorted(distances.most_common(MOST_PERIODS)):
        found = _longest(names, length)
        if found.times >= LEAST and (best is None or found.times * length > best.times * best.length):
            best = found
    return best


def _longest(names: Sequence[str], length: int) -> Repeats:
    first, most, run = 0, 0, 0
    for place in range(len(names) - length):
        run = run + 1 if names[place] == names[place + length] else 0
        if run > most:
            first, most = place - run + 1, run
    return Repeats(first, length, (most + length) // length if most else 0)


def layer(run: LoadedRun, trace: Trace, step: int) -> ServingLayer | None:
    """The layer that a step repeats on the stream that does most of its work; None where it repeats none."""
    work = parted(trace).filter(pl.col("step") == step).sort("start_ns", "id")
    if len(work) > MOST_KERNELS:
        return None
    streams = work.group_by("device", "stream").agg(pl.col("duration_ns").sum())
    most = streams.sort("duration_ns", "device", "stream").tail(1).select("device", "stream")
    table = work.join(most, on=["device", "stream"], how="semi", maintain_order="left")
    found = repeats(table["name"].cast(pl.String).to_list())
    if found is None:
        return None
    whole_ns, stream_ns = int(work["duration_ns"].sum()), int(table["duration_ns"].sum())
    head = table.head(found.first)
    inside = table.slice(found.first, found.times * found.length)
    inside_ns, head_ns = int(inside["duration_ns"].sum()), int(head["duration_ns"].sum())
    if inside_ns < SHARE * whole_ns:
        return None
    period = inside.head(found.length)  # each layer of it writes keys and values, and attends, once
    writes = len(period.filter(pl.col("part") == KV_WRITES))
    return ServingLayer(
        repeats=found.times,
        layers=max(1, writes or period.filter(pl.col("part") == "attention")["op"].n_unique()),
        us=inside_ns / found.times / 1000,
        head_us=head_ns / 1000,
        tail_us=(stream_ns - inside_ns - head_ns) / 1000,
        elsewhere_us=(whole_ns - stream_ns) / 1000,
        device_us=whole_ns / 1000,
        kernels=_kernels(run, trace, inside, found),
    )


def _kernels(run: LoadedRun, trace: Trace, inside: pl.DataFrame, found: Repeats) -> list[LayerKernel]:
    known = ["time_ns", "memory_ns", "compute_ns"]
    origin = belonging(run).filter(pl.col("rank") == trace.rank)
    place = pl.int_range(pl.len()) % found.length
    rows = (
        inside.select("id", "name", "duration_ns", "op_name", "op", "part")
        .with_columns(shapes=trace.argument("input_dims", inside["op"]), place=place)
        .join(origin.select("id", "module", "line"), on="id", how="left", maintain_order="left")
        .join(costs(trace).select("id", *known), on="id", how="left", maintain_order="left")
        .group_by("place", maintain_order=True)
        .agg(
            pl.col("name", "module", "op_name", "shapes", "line", "part").first(),
            pl.col("duration_ns").mean(),
            *(pl.col(name).sum() for name in known),
        )
    )
    names = rows["name"].cast(pl.String).to_list()
    return [
        LayerKernel(
            kernel=row["name"],
            short_name=short,
            module=re.sub(r"_\d+$", "", _said(row["module"])),
            op=row["op_name"],
            shapes=row["shapes"] or "",
            line=_said(row["line"]),
            part=row["part"],
            us=row["duration_ns"] / 1000,
            memory_share=_share(row["memory_ns"], row["time_ns"]),
            compute_share=_share(row["compute_ns"], row["time_ns"]),
        )
        for row, short in zip(rows.iter_rows(named=True), short_names(names), strict=True)
    ]


def _said(text: str | None) -> str:
    return "" if text is None or text in (*OUTSIDE.values(), UNATTRIBUTED) else text


def _share(least_ns: float, time_ns: float) -> float | None:
    return least_ns / time_ns if least_ns and time_ns else None
