"""The op table against the one that torch printed of the same run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from kinetoscope.analysis.events.ops import ops
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

RUNS = [
    "forum_eager",
    "forum_noreturn_first",
    "forum_noreturn_second",
    "forum_return_first",
    "forum_return_second",
    "llama_generate_eager",
    "llama_train_compile",
    "llama_train_eager",
    "llama_train_eager_stack",
    "mm_4096_warm_compile",
    "mm_4096_warm_compile_max-autotune",
    "mm_4096_warm_compile_reduce-overhead",
    "mm_4096_warm_eager",
    "mm_64_b8_warm_eager",
    "mm_64_cold_eager",
    "mm_64_warm_eager",
]
UNIT = {"s": 1e9, "ms": 1e6, "us": 1e3}


class Printed(NamedTuple):
    """A time as torch printed it: nanoseconds, and half of its last digit."""

    ns: float
    tolerance_ns: float

    def agrees(self, ns: float) -> bool:
        # torch sums float microseconds and we sum integers: allow its rounding a nanosecond as well.
        return abs(ns - self.ns) <= self.tolerance_ns + 1


def time_of(text: str) -> Printed:
    number, unit = re.fullmatch(r"(-?[\d.]+)(s|ms|us)", text).groups()  # type: ignore[union-attr]
    return Printed(float(number) * UNIT[unit], 0.0005 * UNIT[unit])


def parse(path: Path) -> tuple[list[dict[str, str]], dict[str, Printed]]:
    """The rows of a printed table, and the totals below it."""
    lines = path.read_text().splitlines()
    header = re.split(r"\s{2,}", lines[1].strip())
    rows = []
    for line in lines[3:]:
        if line.startswith("---"):
            break
        rows.append(dict(zip(header, re.split(r"\s{2,}", line.strip()), strict=True)))
    totals = {
        m[1]: time_of(m[2]) for m in re.finditer(r"^(Self \w+ time total): (\S+)$", path.read_text(), re.M)
    }
    return rows, totals


def wanted(row: dict[str, str]) -> dict[str, Printed]:
    columns = {
        "host_self_ns": "Self CPU",
        "host_total_ns": "CPU total",
        "device_self_ns": "Self CUDA",
        "device_total_ns": "CUDA total",
    }
    # A table of a run without device time has no device columns.
    return {key: time_of(row[column]) for key, column in columns.items() if column in row}


def counted_again(trace: Trace) -> dict[str, int]:
    """What torch adds, by row: for every overhead event, the device time of the op that it interrupted, once
    more.

    An overhead event has the op's id in torch's table, so the op's kernels are hung below it as well.
    """
    events = trace.host_events.with_columns(pl.col("name", "category").cast(pl.String)).to_dicts()
    device = trace.device_events.group_by("external_id").agg(pl.col("duration_ns").sum())
    time_of_op = dict(device.drop_nulls().iter_rows())
    again: dict[str, int] = {}
    for overhead in (e for e in events if e["category"] == "overhead"):
        start, end = overhead["start_ns"], overhead["start_ns"] + overhead["duration_ns"]
        around = [
            e
            for e in events
            if e["category"] not in ("overhead", "trace")
            and e["start_ns"] <= start
            and e["start_ns"] + e["duration_ns"] >= end
        ]
        ops_around = [e for e in around if e["category"] in ("cpu_op", "user_annotation")]
        if not ops_around:
            continue
        twice = time_of_op.get(max(ops_around, key=lambda e: e["start_ns"])["external_id"], 0)
        for event in [overhead, *around]:
            again[event["name"]] = again.get(event["name"], 0) + twice
    return again


def is_match(row: dict[str, str], ours: dict[str, Any], again: dict[str, int]) -> bool:
    name = row["Name"]
    same_name = ours["name"] == name or (name.endswith("...") and ours["name"].startswith(name[:-3]))
    if not same_name or int(row["# of Calls"]) != ours["calls"]:
        return False
    expected = {key: float(ours[key]) for key in wanted(row)}
    if ours["kind"] == "device annotation":
        # Kineto writes an annotation's range on the device 2 ns wider than it hands it to torch (and 1 ns
        # earlier).
        for key in ("device_self_ns", "device_total_ns"):
            expected[key] -= 2 * ours["calls"]
    elif "device_total_ns" in expected and ours["kind"] not in ("kernel", "memcpy", "memset"):
        expected["device_total_ns"] += again.get(ours["name"], 0)
        if ours["kind"] == "overhead":
            expected["device_self_ns"] += again.get(ours["name"], 0)
    return all(printed.agrees(expected[key]) for key, printed in wanted(row).items())


@pytest.mark.parametrize("name", RUNS)
def test_op_table_agrees_with_the_one_torch_printed(name: str, recorded: Callable[[str], Path]) -> None:
    rows, totals = parse(recorded(f"h200/{name}.table.txt"))
    trace = read(recorded(f"h200/{name}.json.gz"))
    ours = ops(LoadedRun((trace,)))
    again = counted_again(trace)
    differing = [row for row in rows if not any(is_match(row, mine, again) for mine in ours.to_dicts())]
    assert rows
    assert not differing
    assert totals["Self CPU time total"].agrees(ours["host_self_ns"].sum())
    if "Self CUDA time total" in totals:
        work = ours.filter(pl.col("kind").is_in(["kernel", "memcpy", "memset"]))
        assert totals["Self CUDA time total"].agrees(work["device_self_ns"].sum())
