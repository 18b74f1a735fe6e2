"""Which renderer writes which kind of file: a new one is its module and a line here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from kinetoscope.document import Report
from kinetoscope.errors import UsageError

# suffix → module with `render(report, inputs) -> str`; imported when asked for, since each brings a library.
FORMATS = {
    ".html": "kinetoscope.render.html",
    ".json": "kinetoscope.render.json",
    ".md": "kinetoscope.render.markdown",
    ".txt": "kinetoscope.render.text",
    ".sarif": "kinetoscope.render.sarif",
}


class Renderer(Protocol):
    def __call__(self, report: Report, inputs: Sequence[str]) -> str: ...


def renderer(path: Path) -> Renderer:
    """The renderer of reports for a file of that name.

    Raises:
        UsageError: no format has that suffix.
    """
    return cast(Renderer, chosen(path, FORMATS).render)


def chosen(path: Path, formats: Mapping[str, str]) -> ModuleType:
    """The module that writes a file of that name.

    Raises:
        UsageError: no format has that suffix.
    """
    module = formats.get(path.suffix.lower())
    if module is None:
        raise UsageError(
            f"cannot tell a format from {path.suffix or 'a name without a suffix'}",
            where=f"-o {path}",
            mend=f"end the name in {', '.join(formats)}",
        )
    return importlib.import_module(module)
