"""Pages of ``kinetoscope explain``: one word, or the list of all."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from kinetoscope.document import Explanation, Glossary
from kinetoscope.render import names
from kinetoscope.render.table import Name, Prose
from kinetoscope.views.listing import grid

LONGEST = 90  # characters of a kernel's name
INDENT = (0, 0, 0, 2)


def print_glossary(glossary: Glossary, console: Console) -> None:
    slugs = [Text(slug, style="cyan") for slug in glossary.rules]
    table = grid(("", "left", slugs), ("", "left*", map(Name, glossary.rules.values())))
    console.print(Text("Rules", style="bold"), table, Text())
    console.print(Text("Terms", style="bold"), Prose(" · ".join(glossary.terms), "dim"), Text())
    example = "kinetoscope explain nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT"
    console.print(Prose(f"Kernel names are taken apart: {example}", "dim"))


def print_explanation(page: Explanation, console: Console) -> None:
    word = names.shorten(page.word, LONGEST) if page.parts else names.plain(page.word)
    origin = f"  {page.origin}" if page.origin else ""
    summary = f"  {page.summary}" if page.summary else ""
    console.print(Text.assemble((word, "bold cyan"), summary, (origin, "dim")))
    if page.text:
        console.print(Padding(Prose(page.text), INDENT))
    for heading, text in page.sections.items():
        console.print(Text(f"\n{heading}", style="bold"))
        # A docstring's paragraph as one line, without code marks: the terminal breaks it where it is wide.
        console.print(Padding(Prose(" ".join(text.replace("``", "").split())), INDENT))
    if page.parts:
        parts = [Text(names.shorten(part, 34), style="cyan") for part, _ in page.parts]
        console.print(grid(("", "left", parts), ("", "left*", [meaning for _, meaning in page.parts])))
