"""From two inputs to what is shown of them, in whichever form was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO, cast

from kinetoscope.comparison.difference import difference
from kinetoscope.comparison.gates import Gate
from kinetoscope.report.diff.collect import build
from kinetoscope.report.document.difference import Difference
from kinetoscope.report.pages.formats import chosen
from kinetoscope.report.pages.json import indented as indented
from kinetoscope.report.words import names
from kinetoscope.sources.paths import repetitions
from kinetoscope.sources.run import Run, load_warning

# suffix → module with `render(found) -> str`
FORMATS = {
    ".html": "kinetoscope.report.diff.page",
    ".json": "kinetoscope.report.diff.json",
    ".md": "kinetoscope.report.diff.markdown",
    ".txt": "kinetoscope.report.diff.text",
}


class Renderer(Protocol):
    def __call__(self, found: Difference) -> str: ...


def renderer(path: Path) -> Renderer:
    """The renderer for a file of that name.

    Raises:
        UsageError: no format has that suffix.
    """
    return cast(Renderer, chosen(path, FORMATS).render)


def compared(
    base: Run | str | Path,
    new: Run | str | Path,
    gates: Sequence[Gate] = (),
    *,
    page: bool = False,
    read: Callable[[str], Run] = load_warning,
) -> Difference:
    """Load with ``read`` what is not loaded, and compare.

    Raises:
        InputError: one of them cannot be used.
    """
    sides = [
        [one] if isinstance(one, Run) else [read(str(path)) for path in repetitions(Path(one))]
        for one in (base, new)
    ]
    inputs = ([_named(base)], [_named(new)])
    return build(difference(*sides), inputs, (len(sides[0]), len(sides[1])), gates, page=page)


def _named(one: Run | str | Path) -> str:
    if not isinstance(one, Run):
        return str(one)
    return str(one.folder or ", ".join(trace.source.path for trace in one.traces[:1]))


def print_difference(found: Difference, *, whole: bool) -> None:
    """On the terminal."""
    from kinetoscope.report.diff.terminal import print_difference as show
    from kinetoscope.report.pages.console import WIDEST, standard_output

    show(found, standard_output(widest=WIDEST), whole=whole)


def complain(found: Difference, stream: TextIO) -> None:
    """The gates that failed, each with who did it."""
    for gate in found.gates:
        if gate.failed:
            place = f" ({names.plain(gate.source)})" if gate.source else ""
            culprit = f": {names.plain(gate.culprit)}{place}" if gate.culprit else ""
            stream.write(f"kinetoscope: {gate.gate} failed: {names.plain(gate.words)}{culprit}\n")
