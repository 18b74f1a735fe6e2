"""Names that one meets in a trace, and what they mean: ``terms.txt``, read.

A name stands there as it is recorded, or names of one meaning with commas between; ``*`` is any text. The
indented lines below are the meaning. To explain another name, add it to the section that it belongs to.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


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
    """The term that explains a name (itself, or a pattern it fits) and its meaning; case matters last."""
    terms = all_terms()
    if name in terms:
        return name, terms[name]
    folded = {term.casefold(): term for term in terms}
    if name.casefold() in folded:
        term = folded[name.casefold()]
        return term, terms[term]
    # The longest pattern is the most particular.
    for term in sorted((t for t in terms if "*" in t), key=len, reverse=True):
        before, _, after = term.partition("*")
        if len(name) > len(before) + len(after) - 1 and name.startswith(before) and name.endswith(after):
            return term, terms[term]
    return None


def alike(name: str, most: int = 6) -> list[str]:
    """Terms that contain the name, or have a word of it; for "did you mean"."""
    import difflib

    needle = name.casefold()
    containing = [term for term in all_terms() if needle in term.casefold()]
    near = difflib.get_close_matches(name, all_terms(), most, 0.6)
    return [*containing, *(term for term in near if term not in containing)][:most]
