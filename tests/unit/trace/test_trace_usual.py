"""Usual events are packed as any events are; searching piece by piece finds what one search does."""

from __future__ import annotations

import bisect
import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.trace import threads
from kinetoscope.trace.decoding.decode import Decoder
from kinetoscope.trace.decoding.events import TABLES, Event, ExactEvent, table_of
from kinetoscope.trace.decoding.packing import Batch, Packer
from kinetoscope.trace.decoding.usual import TABLE_OF

NUMBERS = st.integers(0, 1 << 40) | st.floats(0, 1e9) | st.sampled_from(["7", None, "0x1f"])
TEXTS = st.sampled_from(["", "aten::mm", "ÄÖ", "[[2, 3], []]"])
LISTS = st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=3)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "External id": NUMBERS,
        "external id": NUMBERS,
        "correlation": NUMBERS,
        "Sequence number": NUMBERS,
        "Fwd thread id": NUMBERS,
        "Input Dims": LISTS,
        "Input dims": LISTS,
        "Input type": st.lists(TEXTS, max_size=2),
        "Concrete Inputs": st.lists(TEXTS, max_size=2),
        "Call stack": TEXTS,
        "Python id": NUMBERS,
        "kernel_num_gb": NUMBERS,
        "device": NUMBERS,
        "stream": NUMBERS,
        "grid": LISTS,
        "block": LISTS,
        "bytes": NUMBERS,
        "graph id": NUMBERS,
        "Addr": TEXTS,
        "Bytes": NUMBERS,
        "Collective name": TEXTS,
        "In msg nelems": NUMBERS,
        "Ev Idx": NUMBERS,
    },
)
COMMON = {
    "name": TEXTS,
    "pid": st.sampled_from([0, 2265, "Spans"]),
    "tid": st.sampled_from([7, 2265, "stream 7"]),
    "ts": st.integers(0, 1 << 50) | st.floats(0, 1e12),
}


def _events_like(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    table = TABLE_OF[kind]
    phase = {"flows": st.sampled_from("sft"), "instants": st.just("i")}.get(table, st.just("X"))
    rest = {"id": NUMBERS} if table == "flows" else {"dur": NUMBERS, "args": ARGUMENTS}
    return st.fixed_dictionaries({"ph": phase, "cat": st.just(kind.cat), **COMMON, **rest})


EVENTS = st.one_of([_events_like(kind) for kind in TABLE_OF])


def _packed(events: Any) -> Batch:
    packer = Packer()
    packer.add(events)
    return packer.batch()


@settings(max_examples=100, deadline=None)
@given(events=st.lists(EVENTS, min_size=1, max_size=8))
def test_usual_events_are_packed_as_any_are(events: list[dict[str, Any]]) -> None:
    data = json.dumps(events).encode()
    assert _packed(Decoder().decode(data)) == _packed(Decoder(usual=False).decode(data))


@pytest.mark.parametrize("kind", TABLE_OF, ids=lambda kind: kind.cat)
def test_each_kind_of_event_goes_to_the_table_of_its_category(kind: Any) -> None:
    phase = {"ac2g": "s", "fwdbwd": "f", "cpu_instant_event": "i"}.get(kind.cat, "X")
    event = {"ph": phase, "cat": kind.cat, "name": "a", "pid": 1, "tid": 2, "ts": 3.5}
    (decoded,) = Decoder().decode(json.dumps([event]).encode())
    assert type(decoded) is kind
    assert (decoded.ph, decoded.cat, decoded.ts) == (phase, kind.cat, 3.5)
    assert TABLE_OF[kind] == table_of(phase, kind.cat)
    assert _packed([decoded]).table_of == bytes([TABLES.index(TABLE_OF[kind])])


@pytest.mark.parametrize(
    "change",
    [
        {"cat": "Operator"},
        {"ph": "b"},
        {"ts": "3.5"},
        {"ts": None},
        {"args": {"correlation": [1]}, "dur": "1"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_unusual_events_are_decoded_as_generic_ones(change: dict[str, Any]) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 3.5, "dur": 1, **change}
    (decoded,) = Decoder().decode(json.dumps([event]).encode())
    assert isinstance(decoded, Event | ExactEvent)
    assert decoded.cat == event["cat"]


@given(ordered=st.lists(st.integers(-9, 9)), values=st.lists(st.integers(-9, 9), max_size=20))
def test_places_are_those_of_a_bisection(ordered: list[int], values: list[int]) -> None:
    ordered.sort()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "PIECE", 3)
        found = threads.places(pl.Series(ordered, dtype=pl.Int64), pl.Series(values, dtype=pl.Int64))
    assert found.to_list() == [bisect.bisect_left(ordered, value) for value in values]
