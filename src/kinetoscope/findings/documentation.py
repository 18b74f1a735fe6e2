"""The documentation of the rules, read from their files: importing them would load every analysis.

The docstring of a rule has a first line and the five ``SECTIONS``, each a heading on a line of its own.
"""

from __future__ import annotations

import ast
import pkgutil
from functools import cache
from importlib.resources import files
from inspect import cleandoc
from typing import NamedTuple

from kinetoscope.findings import rules as folder

SECTIONS = ("What it finds", "Why it is slow", "How it decides", "What to do", "Source")


class Documentation(NamedTuple):
    """The first line of a rule's docstring, and the texts of its sections by their headings."""

    summary: str
    sections: dict[str, str]


@cache
def documentation() -> dict[str, Documentation]:
    """The documentation of every rule by its slug, in alphabetical order."""
    return {slug: _read(module) for slug, module in modules().items()}


def modules() -> dict[str, str]:
    """The name of every rule's module by its slug, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(folder.__path__))
    return {name.replace("_", "-"): name for name in names}


def _read(module: str) -> Documentation:
    text = (files(folder) / f"{module}.py").read_text("utf-8")
    docstring = ast.literal_eval(text[: text.index('"""', 3) + 3])
    summary, found, current = "", dict[str, list[str]](), ""
    for line in cleandoc(docstring).splitlines():
        if line.strip() in SECTIONS:
            current = line.strip()
            found[current] = []
        elif current:
            found[current].append(line)
        elif not summary:
            summary = line.strip()
    return Documentation(summary, {heading: "\n".join(lines).strip() for heading, lines in found.items()})
