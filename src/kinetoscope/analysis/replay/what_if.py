"""Questions to a replay, as changes: kernels, ops and categories that take a part of their time."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from types import MappingProxyType

import polars as pl
from msgspec import Struct

from kinetoscope.analysis.events.enclosing import caller, nearest
from kinetoscope.analysis.kernels.chains import elementwise_chains
from kinetoscope.analysis.kernels.names import short_names
from kinetoscope.analysis.kernels.work import categories, work
from kinetoscope.analysis.replay.change import (
    Changes,
    ReplayChange,
    combined,
    merge_launches,
    no_wait,
    shorten,
    without_host,
)
from kinetoscope.analysis.replay.host import logical_threads, waits
from kinetoscope.errors import InputError
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.schema import whole

NONE: Mapping[str, float] = MappingProxyType({})


class RequestedChange(Struct, frozen=True):
    """One requested change, by rank, and how many events it concerns."""

    text: str
    changes: Changes
    events: int


class Scale(Struct, frozen=True):
    """Names that take ``factor`` (0 to 1) of their time; ``of``: kernel, op or category."""

    of: str
    glob: str
    factor: float


Request = Callable[[LoadedRun], RequestedChange]


def asked(
    *,
    kernel: Mapping[str, float] = NONE,
    op: Mapping[str, float] = NONE,
    category: Mapping[str, float] = NONE,
    host_factor: float | None = None,
    no_sync: bool = False,
    fuse: bool = False,
) -> list[Request]:
    """The changes that the options of `kinetoscope whatif` request: of kernels, ops and categories names or
    patterns, and the part of its time (0 to 1) that each takes."""
    named = (("kernel", kernel), ("op", op), ("category", category))
    found: list[Request] = [
        partial(scaled, scale=Scale(of, glob, factor))
        for of, given in named
        for glob, factor in given.items()
    ]
    if host_factor is not None:
        found.append(partial(host, factor=host_factor))
    return [*found, *([without_waits] if no_sync else []), *([fused] if fuse else [])]


def scaled(run: LoadedRun, scale: Scale) -> RequestedChange:
    """Kernels by name (as recorded or in short), ops by name with all device work in them, or a category.
    Raises InputError where nothing has such a name; the message says what comes close."""
    found = {trace.rank: BY[scale.of](trace, scale.glob, 1 - scale.factor) for trace in run.traces}
    events = sum(count for _, count in found.values())
    if not events:
        known = {name for trace in run.traces for name in _known(trace, scale.of)}
        raise InputError(
            f"no {scale.of} fits {scale.glob!r}", where=f"--{scale.of}", hint=_near(scale, sorted(known))
        )
    text = f"--{scale.of} {scale.glob}={scale.factor:g}"
    return RequestedChange(text, {rank: change for rank, (change, _) in found.items()}, events)


def without_waits(run: LoadedRun) -> RequestedChange:
    calls = {trace.rank: waits(trace)["call"].unique() for trace in run.traces}
    changes = {rank: no_wait(own) for rank, own in calls.items()}
    return RequestedChange("--no-sync", changes, sum(map(len, calls.values())))


def host(run: LoadedRun, factor: float) -> RequestedChange:
    """All host time of the threads that launch takes ``factor`` of itself."""
    changes = {trace.rank: _all_host(trace, 1 - factor) for trace in run.traces}
    return RequestedChange(
        f"--host {factor:g}", changes, sum(len(change.host) for change in changes.values())
    )


def fused(run: LoadedRun) -> RequestedChange:
    """Chains of eager elementwise kernels become one kernel each."""
    found = [(trace, _chains(trace)) for trace in run.traces]
    changes = {trace.rank: merge_launches(trace, chains) for trace, chains in found}
    return RequestedChange("--fuse", changes, sum(len(chains) for _, chains in found))


def together(asked: Iterable[RequestedChange]) -> Changes:
    """All requested changes joined, nothing twice."""
    return reduce(combined, (one.changes for one in asked), dict[int, ReplayChange]())


def _kernels(trace: Trace, glob: str, share: float) -> tuple[ReplayChange, int]:
    names = trace.device_events["name"]
    texts = names.unique()
    full = texts.cast(pl.String).to_list()
    both = zip(full, short_names(full), strict=True)
    fits = [any(fnmatch.fnmatchcase(name, glob) for name in pair) for pair in both]
    rows = trace.device_events.filter(names.is_in(texts.filter(pl.Series(fits, dtype=pl.Boolean)).implode()))
    return shorten(rows["id"], rows["duration_ns"] * share), len(rows)


def _ops(trace: Trace, glob: str, share: float) -> tuple[ReplayChange, int]:
    host = trace.host_events
    texts = host.filter(host["category"].cast(pl.String) != "trace")["name"].unique()
    fits = pl.Series([fnmatch.fnmatchcase(text, glob) for text in texts.cast(pl.String)], dtype=pl.Boolean)
    wanted = host["name"].is_in(texts.filter(fits).implode())
    inside = nearest(host, wanted).gather(caller(trace.device_events))
    device = trace.device_events.filter(inside.is_not_null())
    outer = host.filter(wanted)
    return (shorten(device["id"], device["duration_ns"] * share) | without_host(outer, share), len(outer))


def _category(trace: Trace, glob: str, share: float) -> tuple[ReplayChange, int]:
    named = categories(trace).cast(pl.String)
    fits = {name: fnmatch.fnmatchcase(name, glob) for name in named.unique().drop_nulls()}
    rows = trace.device_events.filter(named.replace_strict(fits, default=False, return_dtype=pl.Boolean))
    return shorten(rows["id"], rows["duration_ns"] * share), len(rows)


def _texts(names: pl.Series) -> list[str]:
    return names.cast(pl.String).unique().drop_nulls().to_list()


def _known(trace: Trace, of: str) -> list[str]:
    if of == "category":
        return _texts(categories(trace))
    return _texts((trace.device_events if of == "kernel" else trace.host_events)["name"])


BY = {"kernel": _kernels, "op": _ops, "category": _category}


def _near(scale: Scale, known: Sequence[str]) -> str:
    word = scale.glob.strip("*?")
    if any(word and word in name for name in known):
        return f"did you mean '*{word}*'?"
    near = difflib.get_close_matches(word, known, 3, 0.4)
    if near:
        return f"did you mean {' or '.join(near)}?"
    listed = f"kinetoscope kernels INPUT --by {scale.of}"
    return f"there is {', '.join(known)}" if scale.of == "category" else f"`{listed}` lists them"


def _all_host(trace: Trace, share: float) -> ReplayChange:
    """Every instant of the threads, what lies between events too."""
    ends = trace.host_events["start_ns"] + trace.host_events["duration_ns"]
    lanes = logical_threads(trace).select(
        "lane", start_ns=pl.lit(0, pl.Int64), duration_ns=pl.lit(whole(ends.max()))
    )
    return without_host(lanes, share)


def _chains(trace: Trace) -> pl.DataFrame:
    table = work(trace)
    table = table.with_columns(op_name=trace.host_events["name"].gather(table["op"]))
    return elementwise_chains(table, table).select("id", "chain", "saved_ns")
