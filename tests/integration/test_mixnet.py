"""mixnet_l's compiled modules against what running each with ``-p`` printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from kinetoscope.analysis.compiled.regions import graph_categories
from kinetoscope.analysis.origins.sums import kernels
from kinetoscope.sources.run import LoadedRun, load

# What the printed profile calls a category, and what we do.
TRITON = {
    "triton_pointwise": "pointwise",
    "triton_reduction": "reduction",
    "triton_persistent_reduction": "persistent reduction",
}
RUNS = 100
NAME_WIDTH = 120  # the profile cuts names there


class Row(NamedTuple):
    name: str
    time_ms: float
    launches: int


class Printed(NamedTuple):
    rows: dict[str, list[Row]]
    total_ms: dict[str, float]


def parse(path: Path) -> Printed:
    rows: dict[str, list[Row]] = {}
    totals: dict[str, float] = {}
    category = ""
    for line in path.read_text().splitlines():
        if heading := re.match(r"  == (\S+) category kernels", line):
            category = heading[1]
            rows[category] = []
        elif total := re.match(r"Total\s+([\d.]+)\s", line):
            totals[category] = float(total[1])
        elif category and (row := re.match(r"(\S.*?)\s{2,}([\d.e-]+)\s+(\d+)\s+[\d.]+%$", line)):
            rows[category].append(Row(row[1].strip(), float(row[2]), int(row[3])))
    return Printed(rows, totals)


@pytest.fixture(scope="module")
def backward(shared_data: Path) -> tuple[LoadedRun, Printed]:
    """The trace that ``python mixnet_l_backward.py -p`` wrote, a hundred runs, and what it printed of
    them."""
    return (
        load(shared_data / "h200" / "mixnet_l_backward_module.json.gz"),
        parse(shared_data / "inductor" / "mixnet_l_backward.profile.txt"),
    )


def test_tritons_categories_agree_with_the_printed_profile(backward: tuple[LoadedRun, Printed]) -> None:
    profile, printed = backward
    ours = {row["category"]: row for row in kernels(profile, "category").iter_rows(named=True)}
    for theirs, mine in TRITON.items():
        per_run_ms = ours[mine]["device_time_ns"] / RUNS / 1e6
        assert per_run_ms == pytest.approx(printed.total_ms[theirs], rel=1e-5)
        assert ours[mine]["launches"] == RUNS * sum(row.launches for row in printed.rows[theirs])


def test_every_printed_kernel_has_our_time_and_launches(backward: tuple[LoadedRun, Printed]) -> None:
    profile, printed = backward
    # The profile cuts names, and kernels that differ only further on stand there as equal rows: compare them
    # sorted.
    ours: dict[str, list[tuple[float, int]]] = {}
    for name, time_ns, launches in (
        kernels(profile).select(pl.col("kernel").cast(pl.String), "device_time_ns", "launches").iter_rows()
    ):
        ours.setdefault(name[:NAME_WIDTH].strip(), []).append((time_ns / RUNS / 1e6, launches // RUNS))
    theirs: dict[str, list[tuple[float, int]]] = {}
    for rows in printed.rows.values():
        for row in rows:
            theirs.setdefault(row.name, []).append((row.time_ms, row.launches))
    assert set(ours) == set(theirs)
    for name, mine in ours.items():
        for (time_ms, launches), (printed_ms, printed_launches) in zip(
            sorted(mine), sorted(theirs[name]), strict=True
        ):
            assert time_ms == pytest.approx(printed_ms, rel=1e-5)
            assert launches == printed_launches


def test_what_the_profile_calls_unknown_is_broken_down(backward: tuple[LoadedRun, Printed]) -> None:
    profile, printed = backward
    ours = {
        row["category"]: row["device_time_ns"] / RUNS / 1e6
        for row in kernels(profile, "category").iter_rows(named=True)
        if row["category"] not in TRITON.values()
    }
    assert set(ours) == {"convolution", "copy", "memset", "matmul"}
    assert sum(ours.values()) == pytest.approx(printed.total_ms["unknown"], rel=1e-5)


def test_the_graphs_of_a_training_run_cost_what_their_modules_cost_alone(shared_data: Path) -> None:
    """Two steps of the whole model, forward and backward distinguished: another run, so near and not
    equal."""
    profile = load(shared_data / "h200" / "mixnet_l_train_bs128_compile.json.gz")
    categories = graph_categories(profile)
    for direction in ("forward", "backward"):
        printed = parse(shared_data / "inductor" / f"mixnet_l_{direction}.profile.txt")
        rows = categories.filter(pl.col("graph").cast(pl.String).str.contains(f"0/0 {direction} "))
        ours = {row["category"]: row for row in rows.iter_rows(named=True)}
        for theirs, mine in TRITON.items():
            assert ours[mine]["device_time_ns"] / 2 / 1e6 == pytest.approx(printed.total_ms[theirs], rel=0.05)
            assert ours[mine]["launches"] == 2 * sum(row.launches for row in printed.rows[theirs])
