"""The words of docs/glossary.md are the project's: words that it used in a sense of its own do not come back,
a class name means one thing, and a docstring begins with what it is about."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from command import ROOT

SOURCE = ROOT / "src" / "kinetoscope"
# Each with the word of the glossary, or of plain English, that says it.
OLD = {
    "alike": "same, similar, equal", "beside": "next to, in addition to", "blame": "cause",
    "blamed": "caused", "chilled": "cold", "evened": "balanced", "lap": "step time",
    "laps": "step times", "meeting": "collective", "meetings": "collectives", "mend": "hint",
    "mended": "fixed", "mends": "fixes", "nobody": "none", "punctual": "in time", "scene": "rank view",
    "scenes": "rank views", "somebody": "another person", "spared": "saved", "strand": "thread",
    "strands": "threads", "stretch": "interval, segment", "stretches": "intervals, segments",
    "told": "known, shown", "untold": "unknown", "wander": "drift", "wandering": "drifting",
    "wanders": "drifts",
}  # fmt: skip
# What still has an old word, by file or folder, and why.
KEPT: dict[str, set[str]] = {
    "docs/ranks.md": {"alike"},  # the JSON field `ranks.alike`
    "docs/findings.md": {"alike"},
}
# The same for rooms that were not gone over yet.
LATER: dict[str, set[str]] = {}
DOUBLED: set[str] = {
    "Run",  # api.Run is sources' Run with the answers of the verbs as methods
}
HEADLESS = ("What", "Of", "Those", "That", "Likewise")
HEADLESS_LATER: set[str] = set()
MOST_TERMS = 60


def files() -> list[Path]:
    docs = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return sorted([*SOURCE.rglob("*.py"), *docs, *(ROOT / "web" / "src").rglob("*.ts")])


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def trees() -> dict[str, ast.Module]:
    return {named(path): ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}


def words(text: str) -> set[str]:
    """Of prose and of identifiers: ``_alike_rows`` and ``AlikeRows`` have the word alike."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


def excepted(path: str, exceptions: dict[str, set[str]]) -> set[str]:
    return set().union(*(kept for place, kept in exceptions.items() if path.startswith(place)))


def test_old_words_do_not_come_back() -> None:
    found = {
        named(path): words(path.read_text("utf-8")) & OLD.keys()
        - excepted(named(path), KEPT) - excepted(named(path), LATER)
        for path in files()
    }  # fmt: skip
    assert not {path: {old: OLD[old] for old in used} for path, used in found.items() if used}


def test_a_class_name_means_one_thing() -> None:
    names = Counter(
        node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert not {name for name, count in names.items() if count > 1} - DOUBLED


def test_docstrings_begin_with_what_they_are_about() -> None:
    found = [
        f"{path}: {text.splitlines()[0]}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if (text := ast.get_docstring(node)) and text.split()[0] in HEADLESS
    ]
    assert not [line for line in found if not any(line.startswith(place) for place in HEADLESS_LATER)]


def test_the_glossary_has_a_line_for_each_term() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \|$", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE
    )
    terms = [term for term, _ in rows[1:]]
    assert 40 < len(terms) <= MOST_TERMS
    assert len(set(terms)) == len(terms)
    assert not [
        term for term, meaning in rows[1:] if len(meaning) < 15 or words(f"{term} {meaning}") & OLD.keys()
    ]
