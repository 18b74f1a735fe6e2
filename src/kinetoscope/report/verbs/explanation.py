"""Pages of ``kinetoscope explain``: a rule, a term, a kernel's name, or the list of all."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from kinetoscope.report.document import Explanation, KernelNamePage, Overview, RulePage, TermPage
from kinetoscope.report.pages.table import Name, Prose, columns
from kinetoscope.report.words import names


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Print one page."""
    for part in _page(explanation):
        console.print(part)


def _page(explanation: Explanation) -> Iterable[RenderableType]:
    if isinstance(explanation, RulePage):
        return _rule(explanation)
    if isinstance(explanation, TermPage):
        return _term(explanation)
    return _overview(explanation) if isinstance(explanation, Overview) else _kernel(explanation)


def _overview(overview: Overview) -> Iterable[RenderableType]:
    yield Text("Rules", style="bold")
    table = columns("left", "left*")
    for rule in overview.rules:
        table.add_row(Text(rule.slug, style="cyan"), Name(rule.summary))
    yield table
    yield Text()
    yield Text("Terms", style="bold")
    yield Prose(" · ".join(overview.terms), style="dim")
    yield Text()
    yield Prose(
        "Kernel names are taken apart: kinetoscope explain nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT",
        style="dim",
    )


def _rule(page: RulePage) -> Iterable[RenderableType]:
    yield Text.assemble((page.slug, "bold cyan"), f"  {page.summary}")
    for heading, text in page.sections.items():
        yield Text()
        yield Text(heading, style="bold")
        yield Padding(Prose(_flowing(text)), (0, 0, 0, 2))


def _term(page: TermPage) -> Iterable[RenderableType]:
    pattern = f"  ({page.term})" if page.term != page.word.strip() else ""
    yield Text.assemble((names.plain(page.word), "bold cyan"), (pattern, "dim"))
    yield Padding(Prose(page.meaning), (0, 0, 0, 2))


def _kernel(page: KernelNamePage) -> Iterable[RenderableType]:
    yield Text.assemble((names.shorten(page.name, 90), "bold cyan"), (f"  {page.family}", "dim"))
    table = columns("left", "left*")
    for part in page.parts:
        table.add_row(Text(names.shorten(part.text, 34), style="cyan"), Text(part.meaning))
    yield table


def _flowing(text: str) -> str:
    """A docstring's paragraph as one line, without code marks: the terminal breaks it where it is wide."""
    return " ".join(text.replace("``", "").split())
