"""Which rank each trace of a run is: no two are the same one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kinetoscope.errors import InputError
from kinetoscope.trace.model import Trace


def distinct(traces: Sequence[Trace], recorded: Iterable[Trace] = ()) -> tuple[Trace, ...]:
    """The traces in their order, those that do not say their rank numbered with what the others leave free.

    A trace says its rank by its ``distributedInfo``, or by being one of ``recorded`` (listed in a manifest).

    Raises:
        InputError: two say that they are the same rank, so they are not of one run.
    """
    listed = {id(trace) for trace in recorded}
    taken: dict[int, Trace] = {}
    for trace in traces:
        if id(trace) in listed or "distributedInfo" in trace.metadata:
            if trace.rank in taken:
                raise InputError(
                    f"two traces are of rank {trace.rank}: they are not the ranks of one run",
                    where=f"{taken[trace.rank].source.path} and {trace.source.path}",
                    mend="name the traces of one run",
                )
            taken[trace.rank] = trace
    known = {id(trace) for trace in taken.values()}
    free = (rank for rank in range(len(traces)) if rank not in taken)
    return tuple(
        trace if id(trace) in known else replace(trace, source=replace(trace.source, rank=next(free)))
        for trace in traces
    )
