"""Pages of ``kinetoscope explain``: one word, or the list of all."""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope.findings.glossary.explanation import Explanation, Glossary
from kinetoscope.render import names
from kinetoscope.render.blocks import Block, Heading, Labelled, Line, Prose, Text, field, line, table

LONGEST = 90  # characters of a kernel's name


def glossary(found: Glossary) -> Iterable[Block]:
    yield Heading("Rules", level=1)
    yield table(
        found.rules.items(),
        field("", "text", lambda row: Text(row[0], "cyan", "finding", row[0])),
        field("", "words", lambda row: row[1]),
    )
    yield Heading("Terms")
    yield Prose(" · ".join(found.terms), "dim")
    yield Line()
    example = "kinetoscope explain nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT"
    yield Prose(f"Kernel names are taken apart: {example}", "dim")


def explanation(page: Explanation) -> Iterable[Block]:
    word = names.shorten(page.word, LONGEST) if page.parts else names.plain(page.word)
    origin = f"  {page.origin}" if page.origin else ""
    yield line(Text(word, "bold cyan"), f"  {page.summary}" if page.summary else "", Text(origin, "dim"))
    if page.text:
        yield _indented(page.text)
    for heading, text in page.sections.items():
        yield Heading(heading)
        # A docstring's paragraph as one line, without code marks: the terminal breaks it where it is wide.
        yield _indented(" ".join(text.replace("``", "").split()))
    if page.parts:
        yield table(
            page.parts,
            field("", "text", lambda row: Text(names.shorten(row[0], 34), "cyan")),
            field("", "words", lambda row: row[1]),
        )


def _indented(text: str) -> Labelled:
    return Labelled(((Text(""), (Prose(text),)),))
