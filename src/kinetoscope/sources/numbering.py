"""The rank of each trace of a run: no two are the same, and all are of one window of the recording."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

from kinetoscope.errors import InputError
from kinetoscope.trace.model import Trace

_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker|host)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def natural(text: str) -> list[tuple[int, str]]:
    """Sorts rank2 before rank10."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", text)]


def rank_in(name: str) -> int | None:
    """The rank in a file's name, as in rank3.json.gz."""
    numbers = _RANK.findall(name)
    return int(numbers[-1]) if numbers else None


def latest_window(recorded: Sequence[tuple[int, str]]) -> str | None:
    """The last window that most ranks have, where they recorded several each; None where they recorded one.

    Args:
        recorded: rank and window of each trace, in the order of time.
    """
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
    Several without one take the ranks in their files' names, if these are different.

    Raises:
        InputError: two have the same rank, so they are not of one run.
    """
    listed = {id(trace) for trace in recorded}
    taken: dict[int, Trace] = {}
    for trace in traces:
        if id(trace) in listed or "distributedInfo" in trace.metadata:
            if trace.rank in taken:
                raise InputError(
                    f"two traces are of rank {trace.rank}: they are not the ranks of one run",
                    where=f"{taken[trace.rank].source.path} and {trace.source.path}",
                    hint="name the traces of one run",
                )
            taken[trace.rank] = trace
    nameless = [trace for trace in traces if trace not in taken.values()]
    named = {rank_in(PurePath(trace.source.path).name): trace for trace in nameless}
    if len(nameless) > 1 and len(named) == len(nameless) and not named.keys() & {None, *taken}:
        ranks = {id(trace): rank for rank, trace in named.items() if rank is not None}
        return tuple(
            replace(trace, source=replace(trace.source, rank=ranks.get(id(trace), trace.rank)))
            if id(trace) in ranks
            else trace
            for trace in traces
        )
    known = {id(trace) for trace in taken.values()}
    free = (rank for rank in range(len(traces)) if rank not in taken)
    return tuple(
        trace if id(trace) in known else replace(trace, source=replace(trace.source, rank=next(free)))
        for trace in traces
    )
