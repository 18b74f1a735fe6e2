"""Blocks as GitHub-flavoured Markdown: for issues, pull requests and chats."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kinetoscope.render import blocks, names
from kinetoscope.render.blocks import NUMERIC, Block, Cell, Column, Inline, Table, Text

LONGEST, NAME = 200, 80  # characters of a cell
_CODE = frozenset({"kernel", "op", "line", "command", "graph"})

# What Markdown or inline HTML would read as more than text; an underscore inside a word is only text.
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BLOCK = re.compile(r"^(?:([-+#=])|(\d+)([.)])(?=\s|$))")
# GitHub looks for these after Markdown is done, so no backslash stops them: a name must not call a person.
# Nor may it lead anywhere: addresses become links too, and so do other repositories' issues (owner/name#1).
_REFERENCE = re.compile(r"@(?=\w)|#(?=\d)|:(?=//)|(?i:www(?=\.)|GH-(?=\d)|(?:mailto|xmpp):)")


def render(shown: Iterable[Block]) -> str:
    lines: list[str] = []
    for block in shown:
        own = list(_block(block))
        lines += own[1:] if own[:1] == [""] and lines[-1:] == [""] else own
    return "\n".join(lines).strip("\n") + "\n"


def escape(text: str) -> str:
    """``text`` so that Markdown shows it as it is."""
    text = _SPECIAL.sub(r"\\\g<0>", names.plain(text))
    text = "".join(_HTML.get(character, character) for character in text)
    text = _REFERENCE.sub(r"\g<0>&#8203;", text)
    return _BLOCK.sub(lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\{found[3]}", text)


def code(text: str) -> str:
    """``text`` as a code span that is safe inside a table cell."""
    content = names.plain(text).replace("|", "¦")
    fence = "`" * (max((len(run) for run in re.findall("`+", content)), default=0) + 1)
    pad = " " if "`" in content else ""
    return f"{fence}{pad}{content or ' '}{pad}{fence}"


def _block(block: Block) -> Iterable[str]:
    match block:
        case blocks.Heading():
            yield from (
                "",
                f"{'#' * block.level} {escape(': '.join(filter(None, (block.title, block.basis))))}",
                "",
            )
        case blocks.Prose() | blocks.Line():
            if paragraph := _paragraph(block):
                yield from (paragraph, "")
        case blocks.Items():
            yield from (*_items(block), "")
        case blocks.Status():
            yield from (f"{'✅' if block.is_good else '⚠️'} {escape(block.text)}", "")
        case blocks.Table():
            yield from _table(block)
        case blocks.Labelled():
            for label, body in block.items:
                first, *others = (line for part in body for line in _body(part))
                mark = f"**{escape(label.text.strip())}** " if label.text.strip() else ""
                yield f"- {mark}{first}"
                yield from (f"  {other}" for other in others)
            yield ""
        case blocks.Commands():
            yield "```sh"
            yield from (f"{names.plain(line)}  # {shows}" for line, shows in block.items)
            yield from ("```", "")
        case blocks.Code():
            yield from _code(block)
        case blocks.Only():
            if block.medium == "page":
                yield from _block(block.block)


def _paragraph(block: blocks.Prose | blocks.Line) -> str:
    if isinstance(block, blocks.Line):
        return _inline(block.parts)
    text = escape(block.text)
    return f"**{text}**" if "bold" in block.style else text


def _body(block: blocks.Prose | blocks.Line | blocks.Items) -> Iterable[str]:
    """The lines of a list's entry; a paragraph ends in two spaces, which break the line."""
    if isinstance(block, blocks.Items):
        yield from _items(block)
    else:
        yield f"{_paragraph(block)}  "


def _items(block: blocks.Items) -> Iterable[str]:
    return (f"- {escape(item)}" for item in block.items)


def _inline(parts: Iterable[Inline]) -> str:
    written: list[str] = []
    for part in parts:
        own = Text(part) if isinstance(part, str) else part
        text = code(own.text) if own.kind in _CODE else escape(own.text)
        gap = " " if own.text[:1] == " " and own.kind not in _CODE else ""
        end = " " if own.text[-1:] == " " and own.text.strip() else ""
        words = text.strip()
        written.append(f"{gap}**{words}**{end}" if "bold" in own.style and words else f"{gap}{words}{end}")
    return "".join(written).strip()


def _table(table: Table) -> Iterable[str]:
    visible = [
        index
        for index, column in enumerate(table.columns)
        if column.only != "screen" and column.kind != "bar"
    ]
    columns = [table.columns[index] for index in visible]
    if not columns:
        return
    yield _row(escape(column.title) for column in columns)
    yield _row("---:" if column.kind in NUMERIC else "---" for column in columns)
    for row in table.rows:
        yield _row(_cell(row[index], table.columns[index]) for index in visible)
    yield ""
    if table.more:
        yield from (blocks.left_out(table.more, table.noun), "")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Cell, column: Column) -> str:
    words = blocks.written(value, column)
    if isinstance(words, tuple):
        return _inline(part for part in words if isinstance(part, str | Text))
    text = words.text if isinstance(words, Text) else str(words)
    if not text:
        return ""
    is_code = isinstance(words, Text) and words.kind in _CODE
    return code(names.shorten(text, NAME)) if is_code else escape(names.shorten(text, LONGEST))


def _code(block: blocks.Code) -> Iterable[str]:
    lines = [names.printable(line).replace("```", "'''") for line in block.text.splitlines()]
    if block.title:
        yield from (f"<details><summary>{escape(block.title)}</summary>", "")
    yield from (f"```{block.language}", *lines, "```", "")
    if block.more:
        yield from (blocks.left_out(block.more, "line"), "")
    if block.title:
        yield from ("</details>", "")
