"""Names out of traces are text from strangers: made safe to print, and short enough to read."""

from __future__ import annotations

import os
import re

HASH = 8  # characters that tell graphs apart, as ``--graph`` takes them
# Controls (among them ESC, which starts terminal sequences), lone surrogates, and the invisible or
# direction-turning characters with which a name can pose as another.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
# As in analysis/events/torch_names.py, but anywhere in a sentence.
CALL = re.compile(r"## Call CompiledFxGraph (\S+) ##")
_BREAKS = re.compile("[\t\n\u2028\u2029\\s]+")
_LINES = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")


def plain(text: str) -> str:
    """``text`` on one line, without characters that a terminal or browser would obey instead of show; calls
    of compiled graphs by their graph, not their whole hash."""
    return whole(CALL.sub(lambda call: f"graph {call[1][:HASH]}", text))


def safe(text: str) -> str:
    """The same with its spaces as they are, for words of our own in which names stand."""
    words = CALL.sub(lambda call: f"graph {call[1][:HASH]}", text)
    return _UNPRINTABLE.sub("", _LINES.sub(" ", words))


def whole(text: str) -> str:
    """``plain`` with names as the trace has them, as a command takes them."""
    return _UNPRINTABLE.sub("", _BREAKS.sub(" ", text))


def printable(text: str) -> str:
    """``text`` with its lines and indentation, without characters that a terminal would obey: for code."""
    return _UNPRINTABLE.sub("", text)


def escaped(json: str) -> str:
    """The same JSON document, without characters that a terminal would obey."""
    return _UNPRINTABLE.sub(lambda character: f"\\u{ord(character[0]):04x}", json)


def from_here(source: str) -> str:
    """``file.py:12`` as seen from the current folder, where the file is in it."""
    return source.removeprefix(os.getcwd() + os.sep)


def shorten(text: str, width: int) -> str:
    """``plain(text)`` in at most ``width`` characters; the middle goes, since generated kernels and templates
    differ at the ends of their names."""
    text = plain(text)
    if len(text) <= width:
        return text
    tail = max((width - 1) // 2, 0)
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def ended_early(text: str, width: int) -> str:
    """``plain(text)`` in at most ``width`` characters, for sentences: they end between two words."""
    text = plain(text)
    kept = text[: width - 1].rpartition(" ")[0]
    return f"{kept} …" if kept and len(text) > width else shorten(text, width)
