"""Logs of NCCL's Inspector, made as its README gives them (NVIDIA/nccl, ext-profiler/inspector, v4.0)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.cli import main
from kinetoscope.errors import InputError
from kinetoscope.fleet.inspector import read


def line(rank: int, number: int, time_us: int, kind: str = "AllReduce", ranks: int = 2) -> dict[str, Any]:
    algorithm = 1_000_000 / time_us / 1e3
    return {
        "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": 1748030377748202, "hostname": "example-hostname", "pid": 1639453,
        },
        "coll_perf": {
            "coll": kind, "coll_sn": number, "coll_msg_size_bytes": 1_000_000, "coll_exec_time_us": time_us,
            "coll_algobw_gbs": algorithm, "coll_busbw_gbs": algorithm,
        },
    }  # fmt: skip


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_who_came_last_and_what_the_transfer_took(tmp_path: Path) -> None:
    """Rank 1 is in two of three the shorter; the fourth is in one log alone, a broadcast tells nobody."""
    written(
        tmp_path / "a-pid1.log", line(0, 1, 100), line(0, 2, 150), line(0, 3, 40), line(0, 4, 9),
        line(0, 5, 70, "Broadcast"),
    )  # fmt: skip
    written(
        tmp_path / "a-pid2.log", line(1, 1, 50), line(1, 2, 50), line(1, 3, 60), line(1, 5, 80, "Broadcast")
    )
    out = tmp_path / "ranks.json"
    assert main(["report", str(tmp_path), "-o", str(out)]) == 0
    reduced, sent = json.loads(out.read_text())["ranks"]["inspected"]
    assert (reduced["kind"], reduced["meetings"], reduced["incomplete"]) == ("all-reduce", 4, 1)
    assert (reduced["transfer_us"], reduced["waiting_us"]) == (50, 50 + 100 + 20)
    assert (reduced["last_rank"], reduced["last_times"], reduced["told"]) == (1, 2, 3)
    assert reduced["bus_gbps"] == pytest.approx(20)
    assert (sent["kind"], sent["transfer_us"], sent["last_rank"]) == ("broadcast", None, None)


def test_the_terminal_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path / "a-pid1.log", line(0, 1, 50, ranks=1))
    assert main(["report", str(log)]) == 0
    assert "Collectives, inspected" in capsys.readouterr().out


def test_what_is_broken_is_passed_over_and_what_is_no_log_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "a-pid1.log"
    good = json.dumps(line(0, 1, 50)).encode()
    huge = good.replace(b"1000000", b"1" + b"0" * 40)
    negative = good.replace(b'"coll_exec_time_us": 50', b'"coll_exec_time_us": -50')
    log.write_bytes(b"\n".join([b"[" * 100_000, huge, negative, b"\xff\x00", good, good[:-20]]))
    assert read(log)["time_ns"].to_list() == [50_000]
    log.write_bytes(b"\xff" * 100)
    with pytest.raises(InputError, match="Inspector"):
        read(log)
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none-pid1.log")
