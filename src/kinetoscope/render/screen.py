"""What fits on a terminal's first screen: every section at its least, then more rows while there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from rich.console import Console, Group, RenderableType
from rich.segment import Segment

Section = Callable[[int], Iterable[RenderableType]]  # at most so many rows; none of 0


def fitting(
    sections: Mapping[str, Section],
    least: Mapping[str, int],
    less: Sequence[tuple[str, int]],
    more: Sequence[tuple[str, int]],
    console: Console,
    lines: int,
) -> list[RenderableType]:
    """The sections in their order, in at most so many lines where the least of them allows that.

    Args:
        least: the rows that a section has where there is room; of one that is not named none.
        less: sections and the rows to leave them where even that is too much, one after the other.
        more: sections and the rows to give them, what matters most first; each is taken where it fits.
    """

    @cache
    def drawn(name: str, rows: int) -> tuple[RenderableType, int]:
        section = Group(*(sections[name](rows) if rows else ()))
        return section, _height(section, console)

    def fits(rows: Mapping[str, int]) -> bool:
        return sum(drawn(*item)[1] for item in rows.items()) <= lines

    rows = {name: least.get(name, 0) for name in sections}
    for name, wanted in less:
        if name in sections and not fits(rows):
            rows[name] = wanted
    for name, wanted in more:
        tried = rows | {name: wanted}
        if name in sections and fits(tried):
            rows = tried
    return [drawn(*item)[0] for item in rows.items()]


def _height(section: RenderableType, console: Console) -> int:
    """Lines on the screen; what is never folded by us the terminal folds."""
    lines = Segment.split_lines(console.render(section))
    lengths = (len("".join(segment.text for segment in line).rstrip()) for line in lines)
    return sum(max(1, -(-length // console.width)) for length in lengths)
