"""Parts of a file that decode by themselves, and the process that decodes them.

This imports little, on purpose: a report waits until such a process has started.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from kinetoscope.trace.decoding.decode import Decoder, doubles_hold
from kinetoscope.trace.decoding.events import Event, ExactEvent
from kinetoscope.trace.decoding.frame import BOUNDARY
from kinetoscope.trace.decoding.packing import Batch, Packer
from kinetoscope.trace.decoding.salvage import UNREADABLE, Lost, salvage

SLICE = 512 << 10  # bytes decoded at a time
_LONGEST_BOUNDARY = 1 << 12  # bytes; those of a real file are a few dozen
MARGIN = 1 << 14  # where in a slice the cut is looked for first


class FileSpan(NamedTuple):
    """Bytes ``start`` to ``end`` of a file, beginning and ending between events."""

    path: str
    start: int
    end: int


Span = FileSpan | bytes


def decode_span(span: Span) -> Batch:
    """Pack every event of the span; what cannot be read is counted in the batch's damages."""
    decoder, packer = Decoder(), Packer()
    rest = b""
    for data, last in _slices(span):
        data, rest = rest + data, b""
        try:
            packer.add(decoder.decode(b"[" + data + b"]"))
        except UNREADABLE:
            salvaged = salvage(data, ExactEvent if decoder.exact else Event, last=last)
            if not decoder.exact and not doubles_hold(
                [event for event in salvaged.events if not isinstance(event, Lost)]
            ):
                decoder.exact = True
                salvaged = salvage(data, ExactEvent, last=last)
            packer.add_salvaged(salvaged.events, salvaged.damages)
            rest = salvaged.rest
            if rest:
                rest += b","
    return packer.batch()


def _slices(span: Span) -> Iterator[tuple[bytes, bool]]:
    """Slices cut between events, and whether each is the last."""
    data = bytearray()
    searched = 0  # no boundary lies wholly before
    for block, last in _blocks(span):
        data += block
        if last:
            if data:
                yield bytes(data), True
            return
        match = BOUNDARY.search(data, max(searched, len(data) - MARGIN)) or BOUNDARY.search(data, searched)
        if match is None:
            searched = max(0, len(data) - _LONGEST_BOUNDARY)
            continue
        cut, following = match.start() + 1, match.end()
        yield bytes(data[:cut]), False
        del data[:following]
        searched = 0


def _blocks(span: Span) -> Iterator[tuple[bytes, bool]]:
    if isinstance(span, bytes):
        view = memoryview(span)
        for at in range(0, len(span) or 1, SLICE):
            yield bytes(view[at : at + SLICE]), at + SLICE >= len(span)
        return
    left = span.end - span.start
    with open(span.path, "rb") as file:
        file.seek(span.start)
        while left >= 0:
            block = file.read(min(SLICE, left))
            left -= len(block)
            yield block, not left or not block
            if not left or not block:
                return


def serve() -> None:
    """Run as a decoding process: answer spans with batches until the input ends."""
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            span = receive(questions)
        except EOFError:
            return
        send(answers, tuple(decode_span(span if isinstance(span, bytes) else FileSpan(*span))))


def send(pipe: IO[bytes], message: Any) -> None:
    """A message with its length; bytes go as they are (sign +), anything else pickled (sign -)."""
    data = message if isinstance(message, bytes) else pickle.dumps(message, 5)
    pipe.write((len(data) if data is message else -len(data)).to_bytes(8, "little", signed=True))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next message.

    Raises:
        EOFError: there is none.
    """
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    size = int.from_bytes(head, "little", signed=True)
    data = pipe.read(abs(size))
    return data if size >= 0 else pickle.loads(data)
