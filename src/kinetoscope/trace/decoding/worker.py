"""What a decoding process runs, and how it and the process that started it talk.

What this imports is little, on purpose: a report waits for its start.
"""

from __future__ import annotations

import pickle
import sys
from typing import IO, Any

from kinetoscope.trace.decoding.spans import FileSpan, decode_span


def serve() -> None:
    """What a decoding process does: answer spans with batches until its input ends."""
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
