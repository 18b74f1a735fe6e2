"""NCCL flight-recorder dumps (``TORCH_NCCL_DUMP_ON_TIMEOUT``,
``torch._C._distributed_c10d._dump_nccl_trace``), read without running anything: a pickle of plain data, or
JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kinetoscope.analysis.collectives.logs import Issued
from kinetoscope.errors import InputError
from kinetoscope.recording import plain_file
from kinetoscope.snapshot.unpickle import load

_RANK = re.compile(r"(\d+)(?:\.\w+)?$")
LARGEST = 1 << 30  # bytes
# What bytes that are no dump make the two readers raise: a pickle's opcodes may do anything to its stack.
UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError, RecursionError,
    MemoryError, msgspec.MsgspecError,
)  # fmt: skip


class _Entry(msgspec.Struct, frozen=True):
    collective_seq_id: int
    profiling_name: str
    state: str
    is_p2p: bool = False
    process_group: tuple[str, ...] = ()
    pg_id: int | str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()


class _ProcessGroup(msgspec.Struct, frozen=True):
    name: str = ""
    ranks: str | tuple[int, ...] = ""


class _Dump(msgspec.Struct, frozen=True):
    entries: tuple[_Entry, ...]
    pg_config: dict[str, _ProcessGroup] = {}
    rank: int | None = None


def read(path: Path) -> tuple[int, list[Issued]]:
    """The rank that a dump is of (its file's name ends in it), and what it had issued. Raises InputError
    where it is no dump."""
    try:
        data = plain_file.content(path, LARGEST)
        content: object = msgspec.json.decode(data) if data[:1] in (b"{", b"[") else load(data, str(path))
        dump = msgspec.convert(content, _Dump, strict=False)
    except InputError as error:
        raise InputError(f"it is no flight-recorder dump: {error.what}", where=str(path)) from error
    except UNREADABLE as error:
        raise InputError(f"it is no flight-recorder dump: {error}", where=str(path)) from error
    number = _RANK.search(path.name)
    rank = dump.rank if dump.rank is not None else int(number[1]) if number else 0
    return rank, [_issued(one, dump.pg_config) for one in dump.entries if not one.is_p2p]


def _issued(entry: _Entry, groups: Mapping[str, _ProcessGroup]) -> Issued:
    name = entry.process_group[0] if entry.process_group else str(entry.pg_id)
    listed = next((group.ranks for group in groups.values() if group.name == name), "")
    members = tuple(map(int, re.findall(r"\d+", listed))) if isinstance(listed, str) else listed
    sizes = " ".join(str(list(size)) for size in entry.input_sizes)
    return Issued(
        " ".join(entry.process_group) or name,
        members,
        entry.collective_seq_id,
        entry.profiling_name.removeprefix("nccl:"),
        sizes,
        entry.state,
    )
