"""Real traces, damaged in every way seen in the wild: what can be read is read, what was lost is counted."""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from broad import broad
from kinetoscope.analysis.health.verdict import health
from kinetoscope.errors import KinetoscopeError
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace import container, cutter
from kinetoscope.trace.decoding import spans
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "h200"
TRACES = (
    "mm_64_warm_eager",
    "mm_4096_warm_compile_reduce-overhead",
    "forum_return_second",
)
Events = list[dict[str, Any]]


class Mutation(NamedTuple):
    """A damage, its code (``a|b``: either; None: nothing to count), and the events it may cost."""

    damage: Callable[[bytes], bytes]
    code: str | None
    lost: int = 0
    suffix: str = ".json"


def on_events(change: Callable[[Events], Events]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        document = json.loads(data)
        document["traceEvents"] = change(document["traceEvents"])
        return json.dumps(document, indent=1).encode()

    return damage


def timed(events: Events) -> list[int]:
    return [i for i, e in enumerate(events) if e["ph"] == "X" and e["cat"] in ("cpu_op", "kernel")]


def setting(key: str, *values: Any) -> Callable[[bytes], bytes]:
    """The first timed events get these values."""

    def change(events: Events) -> Events:
        for index, value in zip(timed(events), values, strict=False):
            events[index][key] = value
        return events

    return on_events(change)


def without(key: str) -> Callable[[bytes], bytes]:
    def change(events: Events) -> Events:
        for index in timed(events)[:2]:
            del events[index][key]
        return events

    return on_events(change)


def in_first_name(inserted: bytes) -> Callable[[bytes], bytes]:
    return lambda data: re.sub(
        rb'("cat": "cpu_op", "name": ")', lambda match: match[1] + inserted, data, count=1
    )


def in_number(written: bytes) -> Callable[[bytes], bytes]:
    return lambda data: re.sub(
        rb'("ph": "X", "cat": "kernel".*?"queued": )\d+', lambda m: m[1] + written, data, count=1, flags=re.S
    )


def before_last_event(inserted: bytes) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        at = data.rindex(b"},", 0, data.rindex(b"]")) + 2
        return data[:at] + inserted + data[at:]

    return damage


MUTATIONS = {
    "untouched": Mutation(lambda data: data, None),
    "truncated inside an event": Mutation(lambda data: data[: int(len(data) * 0.8)], "truncated", 10_000),
    "truncated after an event": Mutation(
        lambda data: data[: data.rindex(b"},", 0, len(data) // 2) + 1], "truncated", 10_000
    ),
    "no closing bracket": Mutation(lambda data: data[: data.rindex(b"]")].rstrip(), "truncated"),
    "truncated gzip": Mutation(
        lambda data: gzip.compress(data)[: int(len(gzip.compress(data)) * 0.8)],
        "truncated",
        10_000,
        ".json.gz",
    ),
    "corrupt gzip": Mutation(
        lambda data: (packed := bytearray(gzip.compress(data)))[: len(packed) // 2] + b"\xff" * 64,
        "truncated",
        10_000,
        ".json.gz",
    ),
    "gzip with junk after it": Mutation(
        lambda data: gzip.compress(data) + b"\0" * 512, None, suffix=".json.gz"
    ),
    "gzip in two members": Mutation(
        lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:]), None, suffix=".json.gz"
    ),
    "control characters": Mutation(in_first_name(b"\x01\x1f"), "control-character"),
    "a line break in a name": Mutation(in_first_name(b"one\ntwo"), "control-character"),
    "lone backslash": Mutation(in_first_name(rb"C:\Users\x"), "lone-backslash"),
    "invalid utf-8": Mutation(in_first_name(b"\xff\xfe\xc3"), "invalid-utf8"),
    "quotes in a name": Mutation(in_first_name(b'say "hello", '), "unescaped-quote"),
    "NaN": Mutation(in_number(b"NaN"), "not-a-number"),
    "Infinity": Mutation(in_number(b"-Infinity"), "not-a-number"),
    "N/A": Mutation(in_number(b"N/A"), "not-a-number"),
    "trailing junk": Mutation(lambda data: data + b"\n\0\0junk } ] {", "trailing-junk"),
    "a second document": Mutation(lambda data: data + b"\n" + data, "several-traces"),
    "three bare lists": Mutation(
        lambda data: 3 * (json.dumps(json.loads(data)["traceEvents"]).encode() + b"\n"),
        "several-traces|bad-event",
    ),
    "a comma too many": Mutation(lambda data: data.replace(b"}\n  },", b"},\n  },", 1), "stray-comma"),
    "a comma after the last event": Mutation(before_last_event(b""), None),
    "bytes of a hole in the disk": Mutation(before_last_event(b"\0" * 4096), None, 1),
    "junk between events": Mutation(before_last_event(b"@@@@,"), "bad-event", 1),
    "null among the events": Mutation(before_last_event(b"null,"), "bad-event", 1),
    "missing head": Mutation(lambda data: data[data.index(b'"ph"') + 50 :], "missing-head", 1),
    "missing times": Mutation(without("ts"), "missing-time", 2),
    "missing durations": Mutation(without("dur"), "missing-duration"),
    "missing names": Mutation(without("name"), None),
    "missing threads": Mutation(without("tid"), None),
    "missing arguments": Mutation(without("args"), None),
    "times of zero": Mutation(setting("ts", 0, 0.0, "0"), "impossible-time", 3),
    "times that are no numbers": Mutation(setting("ts", "N/A", None, [1], {}), "missing-time", 4),
    "times past counting": Mutation(setting("ts", 1e300, 10**400, -1e300), "missing-time", 3),
    "negative durations": Mutation(setting("dur", -1, -1e9), "impossible-duration"),
    "durations of 10^15": Mutation(setting("dur", 1e15, 10**15, 1e18), "impossible-duration"),
    "durations of zero": Mutation(setting("dur", 0, 0.0), None),
    "arguments that are no object": Mutation(setting("args", [1, 2], "text", 7, None), "bad-field"),
    "names that are no text": Mutation(setting("name", 7, None, ["a"], {"b": 1}), "bad-field"),
    "processes that are no number": Mutation(setting("pid", "python", None, [1], 1.5), "bad-field"),
    "duplicated keys": Mutation(lambda data: data.replace(b'"ph": "X",', b'"ph": "Y", "ph": "X",'), None),
    "a huge event": Mutation(
        before_last_event(b'{"ph": "X", "name": "' + b"x" * 1_200_000 + b'", "ts": 1, "args": {}},'),
        "impossible-time",
        1,
    ),
    "deep nesting": Mutation(
        before_last_event(b'{"ph": "X", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"},"), "bad-event", 1
    ),
    "byte order mark": Mutation(lambda data: b"\xef\xbb\xbf" + data.lstrip(), None),
    "a bare list": Mutation(lambda data: json.dumps(json.loads(data)["traceEvents"]).encode(), None),
    "a bare list without end": Mutation(
        lambda data: json.dumps(json.loads(data)["traceEvents"])[:-1].encode(), "truncated"
    ),
    "no white space": Mutation(
        lambda data: json.dumps(json.loads(data), separators=(",", ":")).encode(), None
    ),
    "keys in another order": Mutation(
        lambda data: json.dumps(json.loads(data), sort_keys=True).encode(), None
    ),
    "unreadable metadata": Mutation(
        lambda data: data.replace(b'"schemaVersion": 1', b'"schemaVersion": oops', 1), "unreadable-metadata"
    ),
}


@functools.cache
def original(name: str) -> bytes:
    return gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes())


@functools.cache
def undamaged(name: str) -> Trace:
    return read(FIXTURES / f"{name}.json.gz")


@functools.cache
def damaged(kind: str, name: str) -> bytes:
    return MUTATIONS[kind].damage(original(name))


@pytest.fixture(params=["at once", "in many pieces"])
def cut_small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in many pieces":
        monkeypatch.setattr(container.FileSupply, "span", 4096)
        monkeypatch.setattr(container.StreamSupply, "span", 4096)
        monkeypatch.setattr(cutter, "TAIL", 2048)
        monkeypatch.setattr(spans, "SLICE", 1500)
        monkeypatch.setattr(spans, "MARGIN", 700)


def rows(trace: Trace) -> int:
    return len(trace.host_events) + len(trace.device_events)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("name", broad(TRACES, TRACES[:1]))
@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_damaged_trace_is_read_as_far_as_it_goes(kind: str, name: str, tmp_path: Path) -> None:
    mutation = MUTATIONS[kind]
    whole = undamaged(name)
    path = tmp_path / f"trace{mutation.suffix}"
    path.write_bytes(damaged(kind, name))
    trace = read(path)
    found = {damage.code: damage.count for damage in trace.source.damages}
    if mutation.code is None:
        assert rows(trace) >= rows(whole) - mutation.lost
    else:
        assert any(found.get(code, 0) > 0 for code in mutation.code.split("|")), found
        assert rows(trace) >= max(1, rows(whole) - mutation.lost)
    if mutation.code is None and not mutation.lost:
        assert found == {}
        assert trace.source.complete
    if mutation.lost:
        assert not trace.source.complete


@pytest.mark.parametrize("name", TRACES)
def test_a_second_document_is_read_too_and_said(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(original(name) + original(name))
    whole, both = undamaged(name), read(path)
    assert rows(both) == 2 * rows(whole)
    assert [damage.code for damage in both.source.damages] == ["several-traces"]
    assert not both.source.complete
    assert health(LoadedRun((both,))).verdict != "good"


@pytest.mark.parametrize("name", TRACES)
def test_only_what_is_damaged_differs(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(in_first_name(b"\x01")(original(name)))
    whole, repaired = undamaged(name), read(path)
    # As text: how a category is numbered depends on what this process has read before.
    assert_frame_equal(repaired.device_events, whole.device_events, categorical_as_str=True)
    assert_frame_equal(
        repaired.host_events.drop("name"), whole.host_events.drop("name"), categorical_as_str=True
    )
    names = (trace.host_events["name"].cast(pl.String) for trace in (repaired, whole))
    assert sum(one != other for one, other in zip(*names, strict=True)) == 1


@pytest.mark.parametrize("kept", broad(range(0, 2600, 29), range(0, 2600, 29 * 3)))
def test_every_beginning_of_a_trace_is_read_or_refused(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(original("mm_64_warm_eager")[:kept])
    try:
        trace = read(path)
    except KinetoscopeError:
        return
    assert not trace.source.complete
