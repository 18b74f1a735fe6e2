"""Pages on the words of a report: rules, terms, names of kernels.

``terms.txt`` has the terms: a name as it is recorded, or names of one meaning with commas between; ``*`` is
any text. The indented lines below are the meaning. To explain another name, add it to the section that it
belongs to.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib.resources import files

import msgspec

from kinetoscope.errors import UsageError
from kinetoscope.findings.documentation import documentation
from kinetoscope.findings.glossary import kernel_names


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    word: str
    summary: str = ""
    origin: str = ""  # of a term, the pattern that it fits; of a kernel's name, where such names come from
    text: str = ""
    sections: dict[str, str] = {}  # texts by their headings
    parts: list[tuple[str, str]] = []  # of a kernel's name, with what they mean


class Glossary(msgspec.Struct, frozen=True, kw_only=True):
    """All that can be explained: rules with their summaries, and terms."""

    rules: dict[str, str]
    terms: list[str]


def glossary() -> Glossary:
    return Glossary(
        rules={slug: rule.summary for slug, rule in documentation().items()},
        terms=sorted(all_terms(), key=str.casefold),
    )


def explanation(word: str) -> Explanation:
    """The page on a rule, a term or a kernel's name. Raises UsageError where the word is not known; the
    message names similar ones."""
    slug = word.strip().lower().replace("_", "-")
    if rule := documentation().get(slug):
        return Explanation(word=slug, summary=rule.summary, sections=rule.sections)
    if known := meaning(word.strip()):
        term, text = known
        return Explanation(word=word, origin="" if term == word.strip() else f"({term})", text=text)
    if decoded := kernel_names.decode(word):
        family, parts = decoded
        return Explanation(word=word, origin=family, parts=parts)
    near = [rule for rule in documentation() if slug in rule]
    near = near or difflib.get_close_matches(slug, documentation(), 3)
    near = [*near, *similar(word)]
    others = "`kinetoscope explain` lists the rules and terms"
    hint = f"did you mean: {', '.join(near[:6])}" if near else others
    raise UsageError(f"nothing is known of {word.strip()!r}", hint=hint)


@cache
def all_terms() -> dict[str, str]:
    """Every name and pattern, with its meaning."""
    terms: dict[str, str] = {}
    names: list[str] = []
    for line in (files("kinetoscope.findings.glossary") / "terms.txt").read_text("utf-8").splitlines():
        if line.startswith("    "):
            terms |= {name: f"{terms.get(name, '')} {line.strip()}".strip() for name in names}
        elif not line.startswith("==="):
            names = line.split(", ")
    return terms


def meaning(name: str) -> tuple[str, str] | None:
    """The term that explains a name (itself, or a pattern it fits) and its meaning, in any case."""
    terms = all_terms()
    if name in terms:
        return name, terms[name]
    folded = {term.casefold(): term for term in terms}
    if name.casefold() in folded:
        term = folded[name.casefold()]
        return term, terms[term]
    # The longest pattern is the most specific.
    for term in sorted((t for t in terms if "*" in t), key=len, reverse=True):
        before, _, after = term.partition("*")
        if len(name) > len(before) + len(after) - 1 and name.startswith(before) and name.endswith(after):
            return term, terms[term]
    return None


def similar(name: str) -> list[str]:
    """Terms that contain the name, or have a word of it, six at most; for "did you mean"."""
    needle = name.casefold()
    containing = [term for term in all_terms() if needle in term.casefold()]
    near = difflib.get_close_matches(name, all_terms(), 6, 0.6)
    return [*containing, *(term for term in near if term not in containing)][:6]
