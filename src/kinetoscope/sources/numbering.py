"""The rank of each trace of a run: no two are the same, and all are of one window of the recording."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from msgspec.structs import replace

from kinetoscope.errors import InputError
from kinetoscope.trace.model import Trace

# As torch.profiler.tensorboard_trace_handler names a file: by its process, and when it was written.
_WRITTEN = re.compile(r"(.+)\.(\d{10,19})\.pt\.trace\.json(?:\.gz|\.zst)?$")
# As SGLang names a rank's file of one stage: ``1700000000-TP-0-DP-1-DECODE.trace.json.gz``.
_STAGED = re.compile(r"(.*-TP-\d+(?:-[A-Z]{2}-\d+)*)-([A-Za-z]\w*)\.trace\.json(?:\.gz|\.zst)?$")
_COLLECTIVE = r"(?i)(?:^|[^a-z])(?:nccl|rccl|gloo|c10d)"
_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker|host)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def natural(text: str) -> list[tuple[int, str]]:
    """Sorts rank2 before rank10."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", text)]


def rank_in(name: str) -> int | None:
    """The rank in a file's name, as in rank3.json.gz."""
    numbers = _RANK.findall(name)
    return int(numbers[-1]) if numbers else None


def last_written(paths: Sequence[str]) -> list[str]:
    """The files of the last windows, where processes wrote several each under the names that torch's handler
    for TensorBoard gives; of processes that wrote different numbers of them, all of those of the last run."""
    written: dict[str, dict[int, str]] = {}
    for path in paths:
        if name := _WRITTEN.match(path):  # milliseconds in older releases, nanoseconds since
            written.setdefault(name[1], {})[int(name[2].ljust(19, "0"))] = path
    if max(map(len, written.values()), default=0) < 2:
        return list(paths)
    times = {worker: (min(own), max(own)) for worker, own in written.items()}
    first, last = max(times.values(), key=lambda span: span[1])
    together = [
        own
        for worker, own in written.items()
        if (times[worker][0] <= last and first <= times[worker][1]) or len(own) == 1 == len({first, last})
    ]
    whole = len({len(own) for own in together}) == 1
    kept = {path for own in together for time, path in own.items() if not whole or time == max(own)}
    known = {path for own in written.values() for path in own.values()}
    return [path for path in paths if path in kept or path not in known]


def of_other_times(count: int, folder: str) -> list[str]:
    """A sentence on so many traces that were left out."""
    if not count:
        return []
    those = "1 trace" if count == 1 else f"{count:,} traces"
    return [
        f"{those} of earlier times left out: no rank of this run, but windows before it, or other runs; "
        f"kinetoscope history {folder} compares them"
    ]


def last_in_time(traces: Sequence[Trace]) -> Sequence[Trace]:
    """The traces that may be ranks of one run: of several times the last, where neither they nor the names of
    their files say a rank and nothing in them communicates."""
    named = {rank_in(PurePath(trace.source.path).name) for trace in traces}
    if len(named - {None}) == len(traces) or any("distributedInfo" in trace.metadata for trace in traces):
        return traces
    spans = sorted(((_span(trace), trace) for trace in traces), key=lambda one: one[0])
    last: list[Trace] = []
    end = -math.inf
    for (began, ended), trace in spans:
        last = [*last, trace] if began <= end else [trace]
        end = max(end, ended)
    if len(last) == len(traces) or any(map(_communicates, traces)):
        return traces
    return [trace for trace in traces if trace in last]


def without_stages(paths: Iterable[str]) -> set[str]:
    """The names of traces without the stage of a server: two stages of a rank have one name."""
    return {staged[1] if (staged := _STAGED.match(path)) else path for path in paths}


def by_stage(traces: Sequence[Trace]) -> tuple[list[Trace], list[list[Trace]]]:
    """The traces without those of other stages than the last in time (a server's prefill and its decode,
    recorded one after the other), and these, a list a stage, of the same recording."""
    named = [(match, trace) for trace in traces if (match := _STAGED.match(trace.source.path))]
    if len({match[2] for match, _ in named}) < 2:
        return list(traces), []
    last, _ = max(named, key=lambda one: _span(one[1]))
    own = {match[1] for match, _ in named if match[2] == last[2]}
    recording = last[1].rpartition("-TP-")[0]
    others: dict[str, list[Trace]] = {}
    for match, trace in named:
        if match[2] != last[2] and match[1] in own and match[1].startswith(f"{recording}-TP-"):
            others.setdefault(match[2], []).append(trace)
    apart = {id(trace) for stage in others.values() for trace in stage}
    return [trace for trace in traces if id(trace) not in apart], list(others.values())


def _span(trace: Trace) -> tuple[float, float]:
    """The first and the last moment of a trace, in Unix time where it says when its clock began."""
    from kinetoscope.trace.schema import whole

    base = trace.metadata.get("baseTimeNanoseconds")
    offset = base if isinstance(base, int) else 0
    tables = [table for table in (trace.host_events, trace.device_events) if len(table)]
    if not tables:
        return -math.inf, math.inf
    began = min(whole(table["start_ns"].min()) for table in tables)
    ended = max(whole((table["start_ns"] + table["duration_ns"]).max()) for table in tables)
    return offset + began, offset + ended


def _communicates(trace: Trace) -> bool:
    import polars as pl

    return any(
        table["name"].unique().cast(pl.String).str.contains(_COLLECTIVE).any()
        for table in (trace.host_events, trace.device_events)
    )


def latest_window(recorded: Sequence[tuple[int, str]]) -> str | None:
    """The last window that most ranks have, where they recorded several each; None where they recorded one.
    Of each trace the rank and window are given, in the order of time."""
    ranks_of: dict[str, set[int]] = {}
    for rank, window in recorded:
        ranks_of.setdefault(window, set()).add(rank)
    most = max(map(len, ranks_of.values()), default=0)
    last = next((window for window in reversed(ranks_of) if len(ranks_of[window]) == most), None)
    if last is None or len(ranks_of) == 1 or not all(ranks <= ranks_of[last] for ranks in ranks_of.values()):
        return None  # what ranks began with may have another name on each
    return last


def distinct(traces: Sequence[Trace], recorded: Iterable[Trace] = ()) -> tuple[Trace, ...]:
    """The traces in their order, those without a rank numbered with what the others leave free.

    A trace has a rank by its ``distributedInfo``, or by being one of ``recorded`` (listed in a manifest).
    Several without one take the ranks in their files' names, if these are different. Raises InputError where
    two have the same rank, so they are not of one run.
    """
    listed = {id(trace) for trace in recorded}
    taken: dict[int, Trace] = {}
    for trace in traces:
        if id(trace) in listed or "distributedInfo" in trace.metadata:
            if trace.rank in taken:
                raise InputError(
                    f"two traces are of rank {trace.rank}: they are not the ranks of one run",
                    where=f"{taken[trace.rank].source.path} and {trace.source.path}",
                    hint="name one of them, or the traces of one run",
                )
            taken[trace.rank] = trace
    nameless = [trace for trace in traces if trace not in taken.values()]
    named = {rank_in(PurePath(trace.source.path).name): trace for trace in nameless}
    if len(nameless) > 1 and len(named) == len(nameless) and not named.keys() & {None, *taken}:
        ranks = {id(trace): rank for rank, trace in named.items() if rank is not None}
    else:
        free = (rank for rank in range(len(traces)) if rank not in taken)
        ranks = {id(trace): next(free) for trace in nameless}
    return tuple(
        replace(trace, source=replace(trace.source, rank=ranks[id(trace)])) if id(trace) in ranks else trace
        for trace in traces
    )
