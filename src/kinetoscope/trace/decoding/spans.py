"""Parts of a file that decode by themselves, and the process that decodes them.

This imports little, on purpose: a report waits until such a process has started.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from kinetoscope.trace.decoding.decode import Decoder, doubles_hold
from kinetoscope.trace.decoding.events import UNREADABLE, Event, ExactEvent
from kinetoscope.trace.decoding.frame import BOUNDARY
from kinetoscope.trace.decoding.packing import Batch, Packer
from kinetoscope.trace.decoding.salvage import Lost, salvage

SLICE = 512 << 10  # bytes decoded at a time
_LONGEST_BOUNDARY = 1 << 12  # bytes; those of a real file are a few dozen
MARGIN = 1 << 14  # where in a slice the cut is looked for first
_END = ord("]")


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
    for events, last in _slices(span):
        data = b"[%b%b" % (rest, events[1:]) if rest else events
        rest = b""
        try:
            packer.add(decoder.decode(data))
        except UNREADABLE:
            damaged = bytes(data[1:-1])
            salvaged = salvage(damaged, ExactEvent if decoder.exact else Event, last=last)
            if not decoder.exact and not doubles_hold(
                [event for event in salvaged.events if not isinstance(event, Lost)]
            ):
                decoder.exact = True
                salvaged = salvage(damaged, ExactEvent, last=last)
            packer.add_salvaged(salvaged.events, salvaged.damages)
            rest = salvaged.rest
            if rest:
                rest += b","
    return packer.batch()


def _slices(span: Span) -> Iterator[tuple[memoryview, bool]]:
    """Lists of whole events as JSON, and whether each is the last; each is overwritten by the next. Bytes are
    read to where they are decoded: copies of them would cost a sixth of the decoding."""
    with _opened(span) as (file, left):
        buffer, used = bytearray(b"["), 1
        searched = used  # no boundary lies wholly before
        while True:
            if len(buffer) < used + SLICE + 1:  # at first, and for an event that is longer than a slice
                buffer = buffer[:used].ljust(used + SLICE + 1)
            size = file.readinto(memoryview(buffer)[used : used + min(SLICE, left)])
            used, left = used + size, left - size
            if not left or not size:
                if used > 1:
                    buffer[used] = _END
                    yield memoryview(buffer)[: used + 1], True
                return
            match = BOUNDARY.search(buffer, max(searched, used - MARGIN), used)
            match = match or BOUNDARY.search(buffer, searched, used)
            if match is None:
                searched = max(1, used - _LONGEST_BOUNDARY)
                continue
            cut, following = match.start() + 1, match.end()
            buffer[cut] = _END  # what separates the two events is at least a comma
            yield memoryview(buffer)[: cut + 1], False
            kept = buffer[following:used]
            searched, used = 1, 1 + len(kept)
            buffer[1:used] = kept


@contextmanager
def _opened(span: Span) -> Generator[tuple[io.FileIO | io.BytesIO, int], None, None]:
    """The span as a file at its beginning, and the bytes to be read."""
    if isinstance(span, bytes):
        yield io.BytesIO(span), len(span)
        return
    with open(span.path, "rb", 0) as file:
        file.seek(span.start)
        yield file, span.end - span.start


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
    """The next message. Raises EOFError where there is none."""
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    size = int.from_bytes(head, "little", signed=True)
    data = pipe.read(abs(size))
    return data if size >= 0 else pickle.loads(data)
