"""Whatever the bytes: a trace or a KinetoscopeError; and what is said of the tree holds for any intervals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kinetoscope.errors import KinetoscopeError
from kinetoscope.trace import container, cutter, schema
from kinetoscope.trace.decoding import spans
from kinetoscope.trace.read import read
from kinetoscope.trace.tree import nested, sorted_by_lane

SEED = gzip.decompress(
    (Path(__file__).resolve().parents[2] / "fixtures" / "h200" / "mm_64_warm_eager.json.gz").read_bytes()
)
BOUNDED = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(
        ["X", "s", "f", "M", "i", "kernel", "cpu_op", "cuda_runtime", "ac2g", "[memory]", "0x1f"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "bp"])
ARGUMENTS = st.dictionaries(
    st.sampled_from(
        [
            "correlation",
            "External id",
            "device",
            "stream",
            "grid",
            "Bytes",
            "Addr",
            "Call stack",
            "name",
            "Collective name",
            "registers per thread",
            "blocks per SM",
        ]
    ),
    VALUES,
    max_size=5,
)
EVENTS = st.dictionaries(FIELDS, VALUES, max_size=8) | st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "s", "f", "i", "M", "C"]),
        "cat": st.sampled_from(
            ["cpu_op", "kernel", "cuda_runtime", "ac2g", "gpu_memcpy", "user_annotation", "mtia_ccp_events"]
        ),
        "name": SCALARS,
        "ts": st.one_of(st.integers(0, 10**16), st.floats(0, 1e16), VALUES),
        "dur": st.one_of(st.integers(0, 10**6), st.floats(0, 1e6), VALUES),
        "pid": SCALARS,
        "tid": SCALARS,
        "args": ARGUMENTS,
    }
)


@pytest.fixture(autouse=True)
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container.FileSupply, "span", 8192)
    monkeypatch.setattr(cutter, "TAIL", 2048)
    monkeypatch.setattr(spans, "SLICE", 3000)
    monkeypatch.setattr(spans, "MARGIN", 1000)


def check(path: Path) -> None:
    try:
        trace = read(path)
    except KinetoscopeError:
        return
    for name, declared in schema.TABLES.items():
        assert trace.table(name).columns == list(declared)
    assert (trace.device_events["duration_ns"] >= 0).all()
    assert (trace.host_events["self_ns"] >= 0).all()
    assert trace.host_events["id"].to_list() == list(range(len(trace.host_events)))


@BOUNDED
@given(data=st.data())
def test_bytes_of_a_trace_changed_anywhere(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(SEED)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        length = data.draw(st.integers(0, 300))
        content[at : at + length] = data.draw(
            st.one_of(
                st.binary(max_size=20), st.sampled_from([b"{", b"}", b"]", b"[", b'"', b",", b"\\", b"null"])
            )
        )
    path = tmp_path / "t.json"
    path.write_bytes(bytes(content))
    check(path)


@BOUNDED
@given(events=st.lists(EVENTS | VALUES, max_size=12), bare=st.booleans(), keys=ARGUMENTS)
def test_any_events_are_read_or_refused(
    events: list[Any], bare: bool, keys: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events if bare else {**keys, "traceEvents": events}))
    check(path)


@BOUNDED
@given(content=st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    check(path)


def brute_force(rows: list[dict[str, int]]) -> list[tuple[int | None, int, int]]:
    """Parent, depth and self time by looking at every pair and every nanosecond."""
    parents: list[int | None] = []
    for i, row in enumerate(rows):
        enclosing = [
            j
            for j in range(i)
            if rows[j]["lane"] == row["lane"]
            and rows[j]["start_ns"] + rows[j]["duration_ns"] >= row["start_ns"] + row["duration_ns"]
        ]
        parents.append(max(enclosing, default=None))
    result: list[tuple[int | None, int, int]] = []
    for i, row in enumerate(rows):
        depth, up = 0, parents[i]
        while up is not None:
            depth, up = depth + 1, parents[up]
        covered = {
            time
            for j, child in enumerate(rows)
            if parents[j] == i
            for time in range(child["start_ns"], child["start_ns"] + child["duration_ns"])
        }
        result.append((parents[i], depth, row["duration_ns"] - len(covered)))
    return result


@settings(max_examples=40, deadline=None)
@given(
    intervals=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 25)), max_size=25),
    offset=st.sampled_from([0, -7, 1_694_128_201_426_556_000]),
)
@example(intervals=[(0, 7, 25), (0, 32, 0), (0, 32, 1)], offset=0)
def test_the_tree_is_what_brute_force_finds(intervals: list[tuple[int, int, int]], offset: int) -> None:
    host = pl.DataFrame(
        {
            "event": range(len(intervals)),
            "lane": [lane for lane, _, _ in intervals],
            "start_ns": [offset + start for _, start, _ in intervals],
            "duration_ns": [duration for _, _, duration in intervals],
        },
        schema={"event": pl.UInt32, "lane": pl.UInt32, "start_ns": pl.Int64, "duration_ns": pl.Int64},
    )
    tree = nested(sorted_by_lane(host))
    order = list(tree.select("lane", "start_ns", -pl.col("duration_ns"), "event").iter_rows())
    assert order == sorted(order)
    found = list(tree.select("parent", "depth", "self_ns").iter_rows())
    assert found == brute_force(tree.select("lane", "start_ns", "duration_ns").to_dicts())


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 1000), max_size=12), lane=st.integers(0, 3))
def test_events_that_nest_need_no_walk(cuts: list[int], lane: int) -> None:
    ends = sorted(set(cuts))
    rows = [
        (lane, start, end - start)
        for depth in range(3)
        for start, end in zip(ends[depth:], ends[depth + 1 :], strict=False)
    ]
    host = pl.DataFrame(
        {
            "event": range(len(rows)),
            "lane": [r[0] for r in rows],
            "start_ns": [r[1] for r in rows],
            "duration_ns": [r[2] for r in rows],
        },
        schema={"event": pl.UInt32, "lane": pl.UInt32, "start_ns": pl.Int64, "duration_ns": pl.Int64},
    )
    tree = nested(sorted_by_lane(host))
    assert list(tree.select("parent", "depth", "self_ns").iter_rows()) == brute_force(
        tree.select("lane", "start_ns", "duration_ns").to_dicts()
    )
