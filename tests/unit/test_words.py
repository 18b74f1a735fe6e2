"""The words of docs/reference/glossary.md are the project's: words that it used in a sense of its own do not
come back, a class name means one thing, and a docstring begins with what it is about."""

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
# Fields of the JSON contract keep their names; the files that declare, fill and show them name them.
FIELDS = ("blamed_us", "blamed_ns", "spared_bytes", "`alike`")
FIELDS_OF: dict[str, set[str]] = {
    "src/kinetoscope/document/ranks.py": {"alike", "meetings", "told"},
    "src/kinetoscope/document/collect/ranks.py": {"alike", "meetings", "told"},
    "src/kinetoscope/document/collect/compilation.py": {"stretches"},
    "src/kinetoscope/document/compilation.py": {"stretches"},
    "src/kinetoscope/compilation/": {"stretches"},
    "src/kinetoscope/analysis/collectives/logs.py": {"meetings", "told"},
    "src/kinetoscope/views/ranks.py": {"alike", "meetings", "told"},
    "web/src/document.ts": {"alike", "meetings", "stretches", "told"},
    "web/src/views/": {"meetings", "stretches"},
}
HEADLESS = ("What", "Of", "Those", "That", "Likewise")
MOST_TERMS = 60


def files() -> list[Path]:
    docs = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return sorted([*SOURCE.rglob("*.py"), *docs, *(ROOT / "web" / "src").rglob("*.ts")])


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def trees() -> dict[str, ast.Module]:
    return {named(path): ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}


def words(text: str) -> set[str]:
    """Of prose and of identifiers: ``_alike_rows`` and ``AlikeRows`` have the word alike."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


def old(path: Path) -> set[str]:
    """The old words in a file, outside of the names of JSON fields."""
    text = path.read_text("utf-8")
    for field in FIELDS:
        text = text.replace(field, "")
    fields = (kept for place, kept in FIELDS_OF.items() if named(path).startswith(place))
    return (words(text) & OLD.keys()).difference(*fields)


def test_old_words_do_not_come_back() -> None:
    used = {named(path): old(path) for path in files()}
    assert not {path: {word: OLD[word] for word in words} for path, words in used.items() if words}


def test_a_class_name_means_one_thing() -> None:
    names = Counter(
        node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert not {name for name, count in names.items() if count > 1}


def test_docstrings_begin_with_what_they_are_about() -> None:
    found = [
        f"{path}: {text.splitlines()[0]}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if (text := ast.get_docstring(node)) and text.split()[0] in HEADLESS
    ]
    assert not found


def test_the_glossary_has_a_line_for_each_term() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \|$",
        (ROOT / "docs" / "reference" / "glossary.md").read_text("utf-8"),
        re.MULTILINE,
    )
    terms = [term for term, _ in rows[1:]]
    assert 40 < len(terms) <= MOST_TERMS
    assert len(set(terms)) == len(terms)
    assert not [
        term for term, meaning in rows[1:] if len(meaning) < 15 or words(f"{term} {meaning}") & OLD.keys()
    ]
