"""Pages of ``kinetoscope explain``: a rule, a term, a kernel's name, or the list of all."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from kinetoscope.errors import UsageError
from kinetoscope.findings.glossary.kernel_names import Decoded, decode
from kinetoscope.findings.glossary.terms import alike, all_terms, meaning
from kinetoscope.findings.registry import Rule, rules
from kinetoscope.report.pages.table import Name, Prose, columns
from kinetoscope.report.words import names


def print_explanation(word: str | None, console: Console) -> None:
    """Explain a rule, a term or a kernel name; without a word, list what can be explained.

    Raises:
        UsageError: nothing is known of that word; the message names what is like it.
    """
    for part in _overview() if word is None else _page(word):
        console.print(part)


def _page(word: str) -> Iterable[RenderableType]:
    slug = word.strip().lower().replace("_", "-")
    if rule := rules().get(slug):
        return _rule(rule)
    if found := meaning(word.strip()):
        return _term(word, *found)
    if decoded := decode(word):
        return _kernel(word, decoded)
    near = [slug_ for slug_ in rules() if slug in slug_] + alike(word)
    raise UsageError(
        f"nothing is known of {names.plain(word)!r}",
        mend="did you mean: " + ", ".join(near[:6])
        if near
        else "`kinetoscope explain` lists the rules and terms",
    )


def _overview() -> Iterable[RenderableType]:
    yield Text("Rules", style="bold")
    table = columns("left", "left*")
    for rule in rules().values():
        table.add_row(Text(rule.slug, style="cyan"), Name(rule.summary))
    yield table
    yield Text()
    yield Text("Terms", style="bold")
    yield Prose(" · ".join(sorted(all_terms(), key=str.casefold)), style="dim")
    yield Text()
    yield Prose(
        "Kernel names are taken apart: kinetoscope explain nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT",
        style="dim",
    )


def _rule(rule: Rule) -> Iterable[RenderableType]:
    yield Text.assemble((rule.slug, "bold cyan"), f"  {rule.summary}")
    for heading, text in rule.sections.items():
        yield Text()
        yield Text(heading, style="bold")
        yield Padding(Prose(_flowing(text)), (0, 0, 0, 2))


def _term(word: str, term: str, text: str) -> Iterable[RenderableType]:
    yield Text.assemble(
        (names.plain(word), "bold cyan"), (f"  ({term})" if term != word.strip() else "", "dim")
    )
    yield Padding(Prose(text), (0, 0, 0, 2))


def _kernel(word: str, decoded: Decoded) -> Iterable[RenderableType]:
    yield Text.assemble((names.shorten(word, 90), "bold cyan"), (f"  {decoded.family}", "dim"))
    table = columns("left", "left*")
    for field in decoded.fields:
        table.add_row(Text(names.shorten(field.text, 34), style="cyan"), Text(field.meaning))
    yield table


def _flowing(text: str) -> str:
    """A docstring's paragraph as one line, its code marks taken off: the terminal breaks it where it is wide."""
    return " ".join(text.replace("``", "").split())
