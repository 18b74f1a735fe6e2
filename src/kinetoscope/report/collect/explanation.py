"""What a word that is met in a report means."""

from __future__ import annotations

from kinetoscope.errors import UsageError
from kinetoscope.findings.glossary import terms
from kinetoscope.findings.glossary.kernel_names import decode
from kinetoscope.findings.registry import rules
from kinetoscope.report.document import (
    Explanation,
    KernelNamePage,
    NamePart,
    Overview,
    RulePage,
    RuleSummary,
    TermPage,
)
from kinetoscope.report.words import names


def explanation(word: str | None) -> Explanation:
    """Of a rule, a term or a kernel's name; without a word, of what there is to explain.

    Raises:
        UsageError: nothing is known of that word; the message names what is like it.
    """
    if word is None:
        return Overview(
            rules=[RuleSummary(slug=rule.slug, summary=rule.summary) for rule in rules().values()],
            terms=sorted(terms.all_terms(), key=str.casefold),
        )
    slug = word.strip().lower().replace("_", "-")
    if rule := rules().get(slug):
        return RulePage(slug=rule.slug, summary=rule.summary, sections=rule.sections)
    if found := terms.meaning(word.strip()):
        term, meaning = found
        return TermPage(word=word, term=term, meaning=meaning)
    if decoded := decode(word):
        parts = [NamePart(text=field.text, meaning=field.meaning) for field in decoded.fields]
        return KernelNamePage(name=word, family=decoded.family, parts=parts)
    near = [known for known in rules() if slug in known] + terms.alike(word)
    raise UsageError(
        f"nothing is known of {names.plain(word)!r}",
        mend="did you mean: " + ", ".join(near[:6])
        if near
        else "`kinetoscope explain` lists the rules and terms",
    )
