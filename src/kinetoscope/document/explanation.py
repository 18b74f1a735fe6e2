"""What a rule, a term or a kernel's name means."""

from __future__ import annotations

import msgspec


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A page on one word.

    Args:
        origin: of a term, the pattern that it fits; of a kernel's name, where such names come from.
        sections: texts by their headings.
        parts: of a kernel's name, with what they mean.
    """

    word: str
    summary: str = ""
    origin: str = ""
    text: str = ""
    sections: dict[str, str] = {}
    parts: list[tuple[str, str]] = []


class Glossary(msgspec.Struct, frozen=True, kw_only=True):
    """All that can be explained: rules with their summaries, and terms."""

    rules: dict[str, str]
    terms: list[str]
