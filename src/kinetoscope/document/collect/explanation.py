"""What a word that is met in a report means."""

from __future__ import annotations

import difflib

from kinetoscope.document import Explanation, Glossary
from kinetoscope.errors import UsageError
from kinetoscope.findings.glossary import kernel_names, terms
from kinetoscope.findings.registry import rules
from kinetoscope.render import names


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
        f"nothing is known of {names.plain(word)!r}",
        mend="did you mean: " + ", ".join(near[:6])
        if near
        else "`kinetoscope explain` lists the rules and terms",
    )
