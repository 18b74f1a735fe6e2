"""Perfetto's own format, read back by a decoder of its wire format alone."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.export import perfetto, pftrace
from kinetoscope.export.pftrace import varint
from kinetoscope.sources.run import LoadedRun
from traces import call, host, kernel, step, trace


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and payloads of one message: https://protobuf.dev/programming-guides/encoding/"""
    at = 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = read()
        if tag & 7 == 0:
            yield tag >> 3, read()
        elif tag & 7 == 1:
            at += 8
            yield tag >> 3, int.from_bytes(data[at - 8 : at], "little")
        else:
            assert tag & 7 == 2
            length = read()
            at += length
            yield tag >> 3, data[at - length : at]


def message(data: int | bytes) -> dict[int, list[int | bytes]]:
    assert isinstance(data, bytes)
    found: dict[int, list[int | bytes]] = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**64 - 1))
def test_varints_read_back(number: int) -> None:
    ((_, value),) = fields(b"\x08" + varint(number))
    assert value == number


def test_what_is_below_zero_is_written_as_the_format_has_it() -> None:
    run = LoadedRun((trace(host("aten::mm", -5, 10), kernel("one", 4, 8, **{"registers per thread": -3})),))
    packets = [message(packet) for number, packet in fields(pftrace.render(run)) if number == 1]
    events = [message(packet[11][0]) for packet in packets if 11 in packet]
    values = [message(one) for event in events for one in event[4]]
    assert [one[4][0] for one in values if one[1] == [4]] == [2**64 - 3]  # of an int64
    assert [packet[8][0] for packet in packets if 11 in packet] == [0, 5_000, 4_000, 12_000]


def test_every_event_nests_on_its_track_and_launches_point_at_their_work() -> None:
    run = LoadedRun((
        trace(
            host("aten::mm", 0, 10), host("crossing", 5, 10), call("cudaLaunchKernel", 1.001, 2.003, 7),
            kernel("one", 4.035, 8.001, 7, grid=[3, 1, 1]), kernel("two", 6.007, 9.013), 
            kernel("three", 8, 1), kernel("after", 15.02, 1), kernel("instant", 16.02, 0),
        ),
    ))  # fmt: skip
    packets = [message(packet) for number, packet in fields(pftrace.render(run)) if number == 1]
    (interned,) = [message(packet[12][0]) for packet in packets if 12 in packet]
    names = {
        message(row)[1][0]: bytes(message(row)[2][0]).decode()
        for row in interned[2]
        if isinstance(row, bytes)
    }
    tracks = {message(p[60][0])[1][0]: message(p[60][0]) for p in packets if 60 in p}
    stacks: dict[object, list[tuple[str, int]]] = defaultdict(list)
    slices: Counter[tuple[str, int, int]] = Counter()
    flows: dict[object, list[str]] = defaultdict(list)
    for packet in packets:
        if 11 not in packet:
            continue
        (at,), event = packet[8], message(packet[11][0])
        assert isinstance(at, int)
        stack = stacks[event[11][0]]
        if event[9] == [1]:
            stack.append((names[event[10][0]], at))
            for flow in event[47] + event[48]:
                flows[flow].append(stack[-1][0])
        else:
            name, start = stack.pop()
            slices[name, start, at - start] += 1
    assert not any(stacks.values())
    (one,) = run.traces
    tables = (one.host_events, one.device_events)
    assert slices == Counter(
        row for t in tables for row in t.select("name", "start_ns", "duration_ns").iter_rows()
    )
    assert sorted(map(sorted, flows.values())) == [["cudaLaunchKernel", "one"]]
    parents = {bytes(tracks[row[5][0]][2][0]).decode() for row in tracks.values() if 5 in row}
    assert parents == {"process 1", "GPU 0"}


COUNTER = 4  # perfetto.protos.TrackEvent.Type


def held(at: float, size: int, allocated: int) -> dict[str, object]:
    """What the profiler says of an allocation, or of a release."""
    args = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": size, "Total Allocated": allocated}
    event = {
        "ph": "i",
        "s": "t",
        "name": "[memory]",
        "cat": "cpu_instant_event",
        "pid": 1,
        "tid": 1,
        "ts": at,
    }
    return event | {"args": args | {"Total Reserved": 400}}


def test_perfetto_s_own_format_has_the_counters_of_its_json() -> None:
    run = LoadedRun((trace(step(1, 0, 10), held(1, 100, 100), held(2, -40, 60)),))
    shown = json.loads(perfetto.render(run))["traceEvents"]
    packets = [message(packet) for number, packet in fields(pftrace.render(run)) if number == 1]
    tracks = {message(p[60][0])[1][0]: message(p[60][0]) for p in packets if 60 in p}
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for event, at in ((message(p[11][0]), p[8][0]) for p in packets if 11 in p):
        if event[9] == [COUNTER]:
            track = tracks[event[11][0]]
            assert message(track[8][0]) == {3: [3]}  # bytes
            assert tracks[track[5][0]][2] == [b"GPU 0 memory"]
            found[int(at)][bytes(track[2][0]).decode()] = int(event[30][0])
    start_ns = min(int(p[8][0]) for p in packets if 8 in p)
    expected = {round(1000 * one["ts"]) + start_ns: one["args"] for one in shown if one["ph"] == "C"}
    assert found == expected
    assert [*found.values()] == [{"allocated": 100, "reserved": 400}, {"allocated": 60, "reserved": 400}]
