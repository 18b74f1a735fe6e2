"""Every collective with each rank's arrival and waiting, its bandwidth, and what pairs of ranks sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from job_sets import HSDP
from job_simulator import Fault as SlowThing
from job_simulator import recorded as simulated
from kinetoscope.analysis.collectives.instances import by_rank, volumes
from kinetoscope.analysis.query import query
from kinetoscope.analysis.ranks.comparison import RankComparison, compare
from kinetoscope.analysis.ranks.parts import part, placed
from kinetoscope.cli import main
from kinetoscope.document.collect.ranks import compared
from kinetoscope.fleet.store import encode
from kinetoscope.sources.run import load
from kinetoscope.trace.read import read
from rank_sets import Fault, Job, recorded

LATE = Job("late", 4, 2, steps=2, fault=Fault(3, "host"), ahead=((0.0, 0.0), (5000.0, 0.0)))


def written(folder: Path, traces: Sequence[tuple[int, dict[str, object]]]) -> list[Path]:
    paths = [folder / f"rank{rank}.json" for rank, _ in traces]
    for path, (_, trace) in zip(paths, traces, strict=True):
        path.write_text(json.dumps(trace))
    return paths


def of(paths: Sequence[Path], ranks_of_a_host: int = 8) -> RankComparison:
    parts = [part(read(path)) for path in paths]
    return compare([placed(one, f"node{one.facts.rank // ranks_of_a_host}") for one in parts])


def test_each_ranks_arrival_and_waiting_are_on_one_clock(tmp_path: Path) -> None:
    run = load(*written(tmp_path, list(recorded(LATE))))
    table = query(run, "SELECT * FROM collectives")
    whole = table.filter(pl.col("complete"), pl.col("kind") == "all-reduce")
    assert len(whole) > 20
    for (_,), own in whole.group_by("instance"):
        assert own["rank"].n_unique() == own["size"][0] == len(own)
        assert own["left_ns"].max() - own["left_ns"].min() <= 100_000
        last = own.sort("arrived_ns")["rank"][-1]
        assert own["last_rank"][0] in (None, last)
        assert own.filter(rank=last)["waiting_ns"][0] <= own["waiting_ns"].min() + 100_000
    assert (whole["waiting_ns"] + whole["transfer_ns"] == whole["end_ns"] - whole["start_ns"]).all()


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_the_same_table_is_exported_from_traces_and_from_parts(tmp_path: Path, to: str) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "parts").mkdir()
    paths = written(tmp_path / "traces", list(recorded(LATE)))
    for path in paths:
        (tmp_path / "parts" / f"{path.stem}.part").write_bytes(encode(part(read(path))))
    outputs = []
    for source in ("traces", "parts"):
        folder = tmp_path / f"{source} as {to}"
        assert main(["export", str(tmp_path / source), "--to", to, "-o", str(folder)]) == 0
        outputs.append((folder / f"collectives.{to}").read_bytes())
    assert outputs[0] == outputs[1]
    reader = pl.read_csv if to == "csv" else pl.read_parquet
    assert {"arrived_ns", "waiting_ns", "bus_gbps"} <= set(reader(outputs[0]).columns)


def test_a_group_with_a_slow_link_is_seen_against_its_siblings(tmp_path: Path) -> None:
    job = replace(HSDP, steps=2, layers=2, fault=SlowThing("link", (4, 5, 6, 7), 4.0))
    found = of(written(tmp_path, list(simulated(job))), ranks_of_a_host=4)
    rows = [row for row in compared(found, every=True).collectives if row.kind == "all-gather"]
    assert rows
    for row in rows:
        assert (row.hosts, row.groups, row.slowest_ranks) == (1, 2, "4-7")
        assert 3.5 < row.usual_bus_gbps / row.slowest_bus_gbps < 4.5
    hosts = {rank: f"node{rank // 4}" for rank in range(8)}
    table = by_rank(found.table, hosts, dict.fromkeys(hosts, "NVIDIA H200"))
    across = table.filter(pl.col("hosts") == 2)
    assert across["share_of_link"].null_count() == len(across) > 0
    slow = table.filter(pl.col("kind") == "all-gather", pl.col("rank") >= 4)
    assert (slow["bus_gbps"] < slow["usual_bus_gbps"]).mean() > 0.9


SPLITS = [[10, 30, 60], [0, 50, 50], [], [20, 20, 60]]


def test_all_to_alls_by_pair_of_ranks() -> None:
    """What a rank keeps is none; unequal numbers of splits and incomplete collectives are left out."""
    rows = [(0, rank, sent, True) for rank, sent in enumerate([[0, 10, 20], [30, 0, 40], [5, 6, 0]])]
    rows += [(1, 0, [0, 7], False), (2, 0, [1, 2, 3, 4], True), (3, 1, None, True)]
    schema = {"instance": pl.UInt32, "rank": pl.Int32, "sent": pl.List(pl.Int64), "complete": pl.Boolean}
    found = volumes(pl.DataFrame(rows, schema, orient="row"))
    assert found.rows()[:2] == [(1, 2, 40, 1), (1, 0, 30, 1)]
    assert found["bytes"].sum() == 111


@pytest.mark.parametrize(
    ("split", "size", "sent"),
    [("[1, 3]", 2, [100, 300]), ("[]", 2, [200, 200]), ("[0, 0]", 2, [0, 0]), (None, 4, [100] * 4)],
)
def test_bytes_to_each_rank_by_recorded_splits(
    trace_of, split: str | None, size: int, sent: list[int]
) -> None:
    from kinetoscope.analysis.collectives.recorded import collectives

    said = {"Collective name": "all_to_allv", "dtype": "Float", "In msg nelems": 100, "Out msg nelems": 80,
            "Group size": size, "In split size": split}  # fmt: skip
    known = {key: value for key, value in said.items() if value is not None}
    event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "pid": 0, "tid": 7, "ts": 1,
             "dur": 9, "args": {"device": 0, "stream": 7, **known}}  # fmt: skip
    assert collectives(trace_of(event))["sent"].to_list() == [sent]
