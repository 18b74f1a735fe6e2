"""What we say, on stderr: the program's stdout is its own."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """A message, where stderr takes any: one that is closed or full changes nothing of the program's end."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"kinetoscope: {text}", file=sys.stderr, flush=True)
