"""Events out of bytes that are not quite JSON. Only slices that do not decode come here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from kinetoscope.trace.decoding.events import UNREADABLE, Event
from kinetoscope.trace.decoding.frame import BOUNDARY

_GROUP = 32  # events decoded together: one bad one costs only its group the second look
_JOIN = 8  # pieces of one event that contains what looks like a boundary
_HOLE = b"\0" * 16
_PATIENCE = 1000  # events in a row that could not be repaired: what follows is most probably no trace
_LONGEST = 1 << 20  # bytes of one event that is still put together
_REPAIRABLE = 64 << 10  # bytes of one that is still worth repairing: six looks at each

_CONTROL = bytes(32 if code < 32 or code == 127 else code for code in range(256))
_NOT_A_NUMBER = re.compile(
    rb"([:\[,]\s*)[+-]?(?:nan|inf(?:inity)?|n/a|undefined|none)(?=\s*[,}\]])", re.IGNORECASE
)
_LONE_BACKSLASH = re.compile(rb'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
_STRAY_COMMA = re.compile(rb",(?=\s*[}\]])")
_NAME = re.compile(rb'("name"\s*:\s*")(.{0,8192}?)("\s*,\s*"(?:pid|ph|cat|ts|tid|args|id|s)"\s*:)', re.DOTALL)
_BARE_QUOTE = re.compile(rb'(?<!\\)"')

Repair = Callable[[bytes], bytes]
REPAIRS: dict[str, Repair] = {
    "invalid-utf8": lambda data: data.decode("utf-8", "replace").encode(),
    "control-character": lambda data: data.translate(_CONTROL),
    "not-a-number": lambda data: _NOT_A_NUMBER.sub(rb"\1null", data),
    "lone-backslash": lambda data: _LONE_BACKSLASH.sub(lambda m: m[1] or b"\\\\", data),
    "stray-comma": lambda data: _STRAY_COMMA.sub(b"", data),
    "unescaped-quote": lambda data: _NAME.sub(lambda m: m[1] + _BARE_QUOTE.sub(b'\\\\"', m[2]) + m[3], data),
}


class Lost(NamedTuple):
    """A run of so many bytes in which no event could be read."""

    bytes: int


class Salvaged(NamedTuple):
    """The events that a slice gave, and what was lost of it."""

    events: list[Event | Lost]  # and what was lost between them, in the order of the file
    damages: Counter[str]  # code → events concerned
    rest: bytes  # at the end, which may be the beginning of an event that goes on after the slice


def salvage(data: bytes, kind: type[Event], *, last: bool) -> Salvaged:
    """The events of a slice that did not decode as a whole; ``last`` if nothing follows it."""
    several: Any = list[kind]
    one, many = msgspec.json.Decoder(kind), msgspec.json.Decoder(several)
    starts = [0, *(match.end() for match in BOUNDARY.finditer(data))]
    ends = [*(match.start() + 1 for match in BOUNDARY.finditer(data)), len(data)]
    events: list[Event | Lost] = []
    damages: Counter[str] = Counter()
    at = in_vain = 0
    while at < len(starts):
        stop = min(at + _GROUP, len(starts))
        try:
            events += many.decode(b"[" + data[starts[at] : ends[stop - 1]] + b"]")
            at = stop
            continue
        except UNREADABLE:
            pass
        while at < stop:
            event, used = _one(data, starts, ends, at, one, damages if in_vain < _PATIENCE else None)
            in_vain = in_vain + 1 if event is None else 0
            if event is None and not last and at + _JOIN >= len(starts) and _is_open(data[starts[at] :]):
                return Salvaged(events, damages, data[starts[at] :])
            if event is None:
                piece = data[starts[at] : ends[at + used - 1]]
                code = "several-traces" if b'"traceEvents"' in piece else "bad-event"
                damages[code] += 1
            events.append(event or Lost(ends[at + used - 1] - starts[at]))
            at += used
    return Salvaged(events, damages, b"")


def _one(
    data: bytes,
    starts: list[int],
    ends: list[int],
    at: int,
    decoder: msgspec.json.Decoder[Event],
    damages: Counter[str] | None,
) -> tuple[Event | None, int]:
    """One event and how many pieces it took; it is taken as it is where ``damages`` is None."""
    piece = data[starts[at] : ends[at]]
    try:
        return decoder.decode(piece), 1
    except UNREADABLE:
        pass
    if damages is None:
        return None, 1
    if len(piece) <= _REPAIRABLE and (event := _repaired(piece, decoder, damages)) is not None:
        return event, 1
    for more in range(1, min(_JOIN, len(starts) - at)):
        if ends[at + more] - starts[at] > _LONGEST:
            break
        try:
            return decoder.decode(data[starts[at] : ends[at + more]]), more + 1
        except UNREADABLE:
            continue
    return None, 1


def _repaired(piece: bytes, decoder: msgspec.json.Decoder[Event], damages: Counter[str]) -> Event | None:
    if _HOLE in piece:  # what stood there is gone, and is no part of a name
        return None
    applied: list[str] = []
    event: Event | None = None
    for code, repair in REPAIRS.items():
        repaired = repair(piece)
        if repaired == piece:
            continue
        piece = repaired
        applied.append(code)
        try:
            event = decoder.decode(piece)
            break
        except UNREADABLE:
            continue
    if event is None and (event := _with_fields_dropped(piece, decoder)) is not None:
        applied.append("bad-field")
    if event is not None:
        damages.update(applied)
    return event


def _with_fields_dropped(piece: bytes, decoder: msgspec.json.Decoder[Event]) -> Event | None:
    try:
        fields: Any = msgspec.json.decode(piece)
    except UNREADABLE:
        return None
    if not isinstance(fields, dict) or "ph" not in fields:
        return None
    if not isinstance(fields.get("args", {}), dict):
        del fields["args"]
    for name in ("ph", "cat", "name", "pid", "tid", "id"):
        if isinstance(fields.get(name), (dict, list)):
            fields[name] = msgspec.json.encode(fields[name]).decode()
    try:
        return decoder.decode(msgspec.json.encode(fields))
    except UNREADABLE:
        return None


def _is_open(piece: bytes) -> bool:
    """Whether the piece could be the beginning of an event: it opens more braces than it closes."""
    return len(piece) <= _LONGEST and piece.count(b"{") > piece.count(b"}")
