"""A trace file cut into spans of events that decode by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from kinetoscope.trace.container import Supply
from kinetoscope.trace.decoding.events import UNREADABLE
from kinetoscope.trace.decoding.frame import (
    Opening,
    closing,
    cut,
    end_of_object,
    opening,
    opening_without_head,
)
from kinetoscope.trace.decoding.salvage import REPAIRS
from kinetoscope.trace.decoding.spans import Span

TAIL = 256 << 10  # bytes at the end in which the end of the list is looked for
_HEAD = 1 << 20
_LONGEST_HEAD = 64 << 20
_WINDOW = 64 << 10
_LONGEST_EVENT = 64 << 20


class Cutter:
    """Cuts a supply into spans of about so many bytes; ``metadata`` and ``damages`` say what is around."""

    def __init__(self, supply: Supply, span: int) -> None:
        self._supply, self._span = supply, span
        self.damages: Counter[str] = Counter()
        self.trailer: bytes | None = None
        self.opening = self._open()

    def spans(self) -> Iterator[Span]:
        if self.opening is None:
            return
        supply, at = self._supply, self.opening.start
        while supply.reaches(at + self._span + TAIL):
            found = self._cut(at + self._span)
            if found is not None:
                yield supply.take(at, found[0])
                at = found[1]
            elif supply.reaches(at + self._span + _LONGEST_EVENT):
                yield supply.take(at, at + _LONGEST_EVENT)  # who decodes it finds that it cannot be read
                at += _LONGEST_EVENT
            else:
                break
        end = supply.end()
        tail = found[1] if end - at > TAIL and (found := self._cut(end - TAIL)) is not None else at
        while True:
            close = closing(supply.window(tail, end - tail))
            self.trailer = close.trailer
            if close.end:
                yield supply.take(at, tail + close.end)
            if close.trailer is None or (following := opening(close.trailer)) is None:
                return
            self.damages["several-traces"] += 1  # one document after the other in one file
            at = tail = end - len(close.trailer) + following.start

    def metadata(self) -> dict[str, object]:
        """The keys of the file other than its events; call after the last span."""
        if self.opening is None or self.opening.headless:
            self.damages["missing-head"] += 1
        if self.trailer is None:
            self.damages["truncated"] += 1
        if self.opening is None or self.opening.bare:
            if self.trailer is not None and self.trailer.strip():
                self.damages["trailing-junk"] += len(self.trailer.strip())
            return {}
        return {**self._before(self.opening.header), **self._after()}

    def _open(self) -> Opening | None:
        length = _HEAD
        while True:
            head = self._supply.window(0, length)
            found = opening(head)
            if found is not None:
                return found
            if len(head) < length or length >= _LONGEST_HEAD:
                return opening_without_head(head)
            length *= 4

    def _cut(self, at: int) -> tuple[int, int] | None:
        length = _WINDOW
        while length <= _LONGEST_EVENT:
            window = self._supply.window(at, length)
            if found := cut(window):
                return at + found[0], at + found[1]
            if len(window) < length:
                return None
            length *= 8
        return None

    def _before(self, header: bytes) -> dict[str, object]:
        text = header.removeprefix(b"\xef\xbb\xbf").strip().rstrip(b",")
        document = _decoded(text + b"}") if text else {}
        if document is None:
            self.damages["unreadable-metadata"] += len(header)
        return document or {}

    def _after(self) -> dict[str, object]:
        trailer = (self.trailer or b"").strip()
        if self.trailer is None or trailer == b"}":
            return {}
        document = b"{" + trailer.lstrip(b", \t\r\n")
        if (whole := _decoded(document)) is not None:
            return whole
        if end := end_of_object(document):  # junk after the object's own end
            self.damages["trailing-junk"] += len(document) - end
            return _decoded(document[:end]) or {}
        self.damages["trailing-junk" if trailer else "truncated"] += max(1, len(trailer))
        return {}


def _decoded(data: bytes) -> dict[str, object] | None:
    for repair in (bytes, *REPAIRS.values()):
        data = repair(data)
        try:
            document = msgspec.json.decode(data)
        except UNREADABLE:
            continue
        return document if isinstance(document, dict) else None
    return None
