"""Pages on words that are met in a report: rules, terms, names of kernels."""

from __future__ import annotations

import difflib

import msgspec

from kinetoscope.errors import UsageError
from kinetoscope.findings.glossary import kernel_names, terms
from kinetoscope.findings.registry import rules


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


def glossary() -> Glossary:
    return Glossary(
        rules={rule.slug: rule.summary for rule in rules().values()},
        terms=sorted(terms.all_terms(), key=str.casefold),
    )


def explanation(word: str) -> Explanation:
    """Of a rule, a term or a kernel's name.

    Raises:
        UsageError: nothing is known of that word; the message names what is like it.
    """
    slug = word.strip().lower().replace("_", "-")
    if rule := rules().get(slug):
        return Explanation(word=slug, summary=rule.summary, sections=rule.sections)
    if found := terms.meaning(word.strip()):
        term, meaning = found
        return Explanation(word=word, origin="" if term == word.strip() else f"({term})", text=meaning)
    if decoded := kernel_names.decode(word):
        return Explanation(word=word, origin=decoded.family, parts=list(decoded.fields))
    near = [known for known in rules() if slug in known] or difflib.get_close_matches(slug, rules(), 3)
    near = [*near, *terms.alike(word)]
    raise UsageError(
        f"nothing is known of {word.strip()!r}",
        hint="did you mean: " + ", ".join(near[:6])
        if near
        else "`kinetoscope explain` lists the rules and terms",
    )
