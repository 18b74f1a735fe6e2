"""Logs of NCCL's Inspector plugin, one JSON object a line and collective, in files HOST-pidPID.log.

As ``ext-profiler/inspector/README.md`` of NVIDIA/nccl has it ("Output Example", format v4.0; RCCL's is the
same). Sends and receives, event traces and lines that broke off are passed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import polars as pl

from kinetoscope.analysis.collectives.logs import INSPECTED
from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file

LONGEST_LINE = 1 << 20  # bytes; a collective's is a few hundred, with its events some thousand
MOST_LINES = 1 << 18  # of one file: what is further on is more of the same

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Header(msgspec.Struct, frozen=True):
    id: str
    rank: _Count
    n_ranks: _Count
    comm_name: str = "unknown"  # as the plugin writes where the program gave none


class _Performance(msgspec.Struct, frozen=True):
    coll: str
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: Annotated[float, msgspec.Meta(ge=0)]
    coll_algobw_gbs: float
    coll_busbw_gbs: float


class _Line(msgspec.Struct, frozen=True):
    header: _Header
    coll_perf: _Performance | None = None


def read(path: Path) -> pl.DataFrame:
    """The collectives of one process, of ``INSPECTED``. Raises InputError where it cannot be read, or no line
    of it is of the Inspector."""
    decoder = msgspec.json.Decoder(_Line)
    rows: list[tuple[object, ...]] = []
    is_log = False
    try:
        with plain_file.opened(path) as file:
            for _ in range(MOST_LINES):
                text = file.readline(LONGEST_LINE)
                if not text:
                    break
                try:
                    line = decoder.decode(text)
                except (msgspec.MsgspecError, RecursionError, ValueError):
                    continue
                is_log = True
                if line.coll_perf is not None:
                    rows.append(_row(line.header, line.coll_perf))
    except OSError as error:
        raise InputError(f"it cannot be read: {error}", where=str(path)) from error
    if not is_log:
        raise InputError("no line of it is of the NCCL Inspector", where=str(path))
    return pl.DataFrame(rows, INSPECTED, orient="row")


def _row(header: _Header, one: _Performance) -> tuple[object, ...]:
    group = header.id if header.comm_name == "unknown" else header.comm_name
    return (
        header.id, group, header.n_ranks, header.rank, one.coll, one.coll_sn, one.coll_msg_size_bytes,
        one.coll_exec_time_us * 1000, one.coll_algobw_gbs, one.coll_busbw_gbs,
    )  # fmt: skip
