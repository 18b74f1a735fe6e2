"""Where the list of events begins and ends in a file, and where it can be cut between two of them."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import msgspec

from kinetoscope.trace.decoding.events import UNREADABLE

_FIELD = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp|tts|tdur|sf)"\s*:'
BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*" + _FIELD + rb")")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[\s*')
_BARE_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?=\{|\]|$)")
_FIRST_EVENT = re.compile(rb"\{\s*" + _FIELD)
_END = re.compile(r"\s*(?:,\s*)?\]")
_NEXT = re.compile(r"\s*,\s*(?=\{)")
_PIECE, _TOKEN = 1 << 10, 32  # characters: an event is a few hundred, a number or escape at the end is less
_LONGEST_FOUND = 64 << 10  # bytes of an event that others are cut at
_LAST_BRACKET = re.compile(rb"\}\s*(?:,\s*)?\](?=\s*(?:,\s*\"|\}|$))")
_BRACKETS = 64  # that are looked at, each with all that follows it
_JSON = json.JSONDecoder(strict=False)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


class Opening(NamedTuple):
    start: int  # offset of the first event
    header: bytes  # the bytes before it, up to and without the list's bracket
    bare: bool = False  # the file is the list itself, without an object around it
    headless: bool = False  # the bytes before the events are no beginning of a trace


class Closing(NamedTuple):
    end: int  # offset after the last event
    trailer: bytes | None  # what follows the list's closing bracket; None if the bracket never comes


def opening(head: bytes) -> Opening | None:
    """Where events begin in the first bytes of a file, or None if they do not begin here."""
    if bare := _BARE_LIST.match(head):
        return Opening(bare.end(), b"", bare=True)
    if key := _EVENTS_KEY.search(head):
        return Opening(key.end(), head[: key.start()])
    return None


def opening_without_head(window: bytes) -> Opening | None:
    """Where events begin in a file whose own beginning is lost."""
    if found := cut(window):
        return Opening(found[1], b"", headless=True)
    first = _FIRST_EVENT.search(window)
    return Opening(first.start(), b"", headless=True) if first and is_event(window, first.start()) else None


def cut(window: bytes) -> tuple[int, int] | None:
    """The first place between two events: (end of one, start of the next)."""
    for match in BOUNDARY.finditer(window):
        if is_event(window, match.end()):
            return match.start() + 1, match.end()
    return None


def is_event(window: bytes, at: int) -> bool:
    """Whether an event, and not an object inside one, begins here."""
    parsed = _object(window[at : at + _LONGEST_FOUND].decode("latin-1"), 0)
    return parsed is not None and "ph" in parsed[0]


def end_of_object(data: bytes) -> int | None:
    """The offset after the object that the bytes begin with."""
    parsed = _object(data.decode("latin-1"), 0)
    return None if parsed is None else parsed[1]


def closing(tail: bytes) -> Closing:
    """Where the list ends in the last bytes of a file, which begin with an event."""
    if bracket := _LAST_BRACKET.search(tail):
        with suppress(*UNREADABLE):  # nothing that is a list up to there ends elsewhere
            _LIST.decode(b"[%b]" % tail[: bracket.start() + 1])
            return Closing(bracket.start() + 1, tail[bracket.end() :])
    text = tail.decode("latin-1")  # a character a byte: offsets are those of the file
    at = 0
    while at < len(text):
        parsed = _object(text, at)
        if parsed is not None:
            at = parsed[1]
            if follows := _NEXT.match(text, at):
                at = follows.end()
                continue
            if end := _END.match(text, at):
                return Closing(at, tail[end.end() :])
        following = BOUNDARY.search(tail, at)
        if following is None:
            break
        at = following.end()
    return _closing_after_damage(tail, at)


def _closing_after_damage(tail: bytes, at: int) -> Closing:
    """The last event cannot be read: the first bracket after it that the rest of an object follows."""
    for bracket in islice(_LAST_BRACKET.finditer(tail[at:]), _BRACKETS):
        rest = tail[at + bracket.end() :]
        try:
            json.loads(b'{"":0' + rest if rest.strip() else b"{}")
        except ValueError:
            continue
        return Closing(at + bracket.start() + 1, rest)
    return Closing(len(tail), None)


def _object(text: str, at: int) -> tuple[dict[str, object], int] | None:
    """The object that begins at an offset, and its end. It is looked for in pieces that grow, since what json
    raises when there is none counts the lines of all that it was given."""
    length = _PIECE
    while True:
        piece = text[at : at + length]
        try:
            value, end = _JSON.raw_decode(piece)
        except RecursionError:
            return None
        except json.JSONDecodeError as error:
            goes_on = error.msg.startswith("Unterminated") or error.pos >= len(piece) - _TOKEN
            if len(piece) < length or not goes_on:
                return None
            length *= 8
            continue
        return (value, at + end) if isinstance(value, dict) else None
