"""What a rule, a term or a kernel's name means."""

from __future__ import annotations

import msgspec


class RuleSummary(msgspec.Struct, frozen=True, kw_only=True):
    slug: str
    summary: str


class RulePage(RuleSummary, frozen=True, kw_only=True):
    """``sections`` are texts by their headings."""

    sections: dict[str, str]


class TermPage(msgspec.Struct, frozen=True, kw_only=True):
    """``term`` is what explains ``word``: itself, or a pattern that it fits."""

    word: str
    term: str
    meaning: str


class NamePart(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    meaning: str


class KernelNamePage(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's name taken apart; ``family`` is where such names come from."""

    name: str
    family: str
    parts: list[NamePart]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All that can be explained."""

    rules: list[RuleSummary]
    terms: list[str]


Explanation = Overview | RulePage | TermPage | KernelNamePage
