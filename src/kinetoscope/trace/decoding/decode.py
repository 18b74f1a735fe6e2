"""Bytes to events, and the times that a double does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import Any

import msgspec

from kinetoscope.trace.decoding.events import ABSENT, Event, ExactEvent
from kinetoscope.trace.decoding.usual import USUAL_EVENTS

DOUBLE_HOLDS_NS = float(1 << 43)  # below so many microseconds a double is within half a nanosecond
LARGEST_US = 9 * 10**15  # nanoseconds of more than these microseconds are no 64-bit integer


class Decoder:
    """Decodes lists of events: as the usual ones while all are, which takes half the time of decoding any."""

    def __init__(self, *, usual: bool = True) -> None:
        self._usual = usual
        self.exact = False

    def decode(self, data: bytes | memoryview) -> Sequence[Any]:
        """The events of one JSON list; from the first time on that a double does not hold, exact ones. Raises
        msgspec.DecodeError where it is not a list of events."""
        if not self.exact:
            events = self._doubles(data)
            if doubles_hold(events):
                return events
            self.exact = True
        return _EXACT_EVENTS.decode(data)

    def _doubles(self, data: bytes | memoryview) -> Sequence[Any]:
        if self._usual:
            try:
                return _USUAL_EVENTS.decode(data)
            except msgspec.ValidationError:
                self._usual = False
        return _EVENTS.decode(data)


def doubles_hold(events: Sequence[Any]) -> bool:
    """Whether every time survives being read as a double to the nanosecond."""
    times = list(map(_TS, events))
    try:
        if max(times, default=0) < DOUBLE_HOLDS_NS:
            return True
    except TypeError:  # one of them is no number
        pass
    return not any(
        type(time) is str or (type(time) is float and DOUBLE_HOLDS_NS <= time < LARGEST_US) for time in times
    )


def double_ns(microseconds: float) -> int:
    """Nanoseconds of microseconds that a double holds; ABSENT of none."""
    return _decimal_ns(Decimal(microseconds)) if microseconds == microseconds else ABSENT


def exact_ns(raw: msgspec.Raw) -> int:
    """Nanoseconds of microseconds as written; ABSENT of what is no number or absurd."""
    text = bytes(raw).strip(b'"').decode("ascii", "replace")
    whole, _, fraction = text.partition(".")
    is_plain = whole.isdecimal() and (not fraction or fraction.isdecimal())
    if is_plain and len(whole) <= 16 and len(fraction) <= 3:
        ns = int(whole) * 1000 + int((fraction + "000")[:3])
        return ns if ns <= LARGEST_US * 1000 else ABSENT
    try:
        return _decimal_ns(Decimal(text))
    except InvalidOperation:
        return ABSENT


def _decimal_ns(microseconds: Decimal) -> int:
    if not microseconds.is_finite() or abs(microseconds) > LARGEST_US:
        return ABSENT
    return round(microseconds * 1000)


_USUAL_EVENTS = msgspec.json.Decoder(USUAL_EVENTS)
_EVENTS = msgspec.json.Decoder(list[Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
_TS = attrgetter("ts")
