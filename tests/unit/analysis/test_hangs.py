"""Flight-recorder dumps: who is missing in which collective."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.analysis.collectives.logs import Hang, Issued, hangs
from kinetoscope.errors import InputError
from kinetoscope.fleet.dumps import read


def entry(
    number: int, state: str = "completed", name: str = "nccl:all_reduce", size: int = 8
) -> dict[str, Any]:
    """As torch 2.7 dumps it (version 2.10)."""
    return {
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number, "profiling_name": name, "time_created_ns": 1_700_000_000_000_000_000,
        "duration_ms": 0.1, "input_sizes": ((8,),), "input_dtypes": ["Float"], "output_sizes": ((8,),),
        "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": state == "completed", "timeout_ms": 600000,
        "is_p2p": False, "frames": [{"name": "main", "filename": "train.py", "line": 3}],
    }  # fmt: skip


def dump(*entries: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": len(entries)}}, "entries": list(entries),
    }  # fmt: skip


def test_the_rank_that_did_not_come_is_missing(tmp_path: Path) -> None:
    """Of four ranks one has no dump, and one never issued the third collective; a ring lost what is old."""
    dumps = {
        0: dump(entry(1), entry(2), entry(3, "started")),
        1: dump(entry(2), entry(3, "scheduled")),
        2: dump(entry(1), entry(2)),
    }
    read_back = {}
    for rank, content in dumps.items():
        path = tmp_path / f"nccl_trace_rank_{rank}"
        path.write_bytes(json.dumps(content).encode() if rank == 1 else pickle.dumps(content))
        number, issued = read(path)
        read_back[number] = issued
    (found,) = hangs(read_back)
    assert found[:5] == ("0 default_pg", 3, "all_reduce", "[8]", (2,))
    assert (found.waiting, found.silent, found.mismatched) == ((0, 1), (3,), {})


def test_ranks_that_issued_another_collective_are_named() -> None:
    def issued(number: int, name: str) -> Any:
        return Issued("g", (0, 1, 2), number, name, "[8]", "started")

    found = hangs({0: [issued(5, "all_reduce")], 1: [issued(5, "all_reduce")], 2: [issued(5, "all_gather")]})
    assert found == [Hang("g", 5, "all_reduce", "[8]", (), (0, 1, 2), (), {"all_gather [8]": (2,)})]


def test_a_collective_that_every_rank_completed_is_no_hang() -> None:
    one = Issued("g", (0, 1), 1, "all_reduce", "[8]", "completed")
    assert hangs({0: [one], 1: [one]}) == []


class Calls:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_calls_something_is_refused(tmp_path: Path) -> None:
    path, made = tmp_path / "nccl_trace_rank_0", tmp_path / "made"
    path.write_bytes(pickle.dumps({"entries": [Calls(made)]}))
    with pytest.raises(InputError, match="more than plain data"):
        read(path)
    assert not made.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"entries": 3}', b"\x80\x04.", b"not a pickle", b"[1]"])
def test_what_is_no_dump_is_said_to_be_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read(path)
