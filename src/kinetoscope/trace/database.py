"""SQLite databases of other tools, read so that nothing in them runs and nothing near them is written.

A database is opened read-only and immutable, and only stored columns of plain tables are read, whatever
views, triggers, indices, generated columns or virtual tables it holds. A table can hold no more rows and
texts than the file has room for, so that reading it ends, whatever the file claims. A packed one is unpacked
to a temporary file.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinetoscope.errors import InputError, NotATraceError
from kinetoscope.trace.container import unpacked
from kinetoscope.trace.recognise import SQLITE

_LEAST_ROW = 4  # bytes that a row takes in the file: those that say where and how long it is
_LONGEST_TEXT, _LONGEST_BLOB = 64 << 10, 1 << 10
# Instructions of SQLite's machine between two looks at the budget, and the budget: a row takes some hundred.
_LOOK, _LEAST_BUDGET, _BUDGET_OF_A_BYTE = 1 << 20, 1 << 28, 64
# What it cannot read SQLite names in the file's own bytes, which need not be UTF-8.
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
_SETTINGS = ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "mmap_size = 0")
_VERSIONED = re.compile(r"(.+)_V(\d{1,4})")  # a table of a later layout: NVTX_EVENTS_V2
_UNVERSIONED = 1 << 16  # as a version: behind all of them
_LOGS = ("-wal", "-journal")
_PLAIN = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND sql LIKE 'CREATE TABLE%'"

_OTHERS = "SELECT name FROM sqlite_master WHERE type = 'view' OR (type = 'table' AND rootpage = 0)"


class Database:
    """An open database: its plain tables, each with the names of its stored columns, and their rows. A table
    that is there with a version behind its name alone (``_V2``) is found without it, the latest of them.

    ``damages`` counts what could not be read, by the codes of ``kinetoscope.trace.damage``.
    """

    def __init__(self, path: Path) -> None:
        """Raises InputError where it cannot be opened, or there is no room to unpack it, TooLargeError where
        it unpacks to more than a file of its size may, and NotATraceError where it says of itself that it is
        an SQLite database, and is none that can be read."""
        self.path = path
        self.damages: Counter[str] = Counter()
        logs = (path.with_name(path.name + suffix) for suffix in _LOGS)
        if unapplied := sum(log.is_file() and log.stat().st_size > 0 for log in logs):
            self.damages["unapplied-log"] = unapplied
        self._unpacked = tempfile.TemporaryDirectory(prefix="kinetoscope-")
        try:
            stored = self._plain(path)
        except BaseException:
            self._unpacked.cleanup()
            raise
        self.size = stored.stat().st_size
        try:
            self._database = sqlite3.connect(f"{stored.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        except sqlite3.Error as error:
            raise InputError(f"cannot open the database: {error}", where=str(path)) from error
        self._database.text_factory = _text
        self._budget = _LEAST_BUDGET + _BUDGET_OF_A_BYTE * self.size
        self._database.set_progress_handler(self._spent, _LOOK)
        try:
            for setting in _SETTINGS:
                self._database.execute(f"PRAGMA {setting}")
            self._stored = dict(sorted(map(_versioned, self._plain_tables()), key=lambda one: one[1]))
            self.tables = {name: self._columns(found[1]) for name, found in self._stored.items()}
        except _UNREADABLE as error:
            self.close()
            raise NotATraceError(
                f"the file is an SQLite database that is damaged: {error}",
                where=str(path),
                hint="was it copied whole? Copy it again, or export it again",
            ) from error

    def _spent(self) -> bool:
        """Whether to end the query: pages that lead to each other hold more rows than can be counted."""
        self._budget -= _LOOK
        return self._budget < 0

    def _plain(self, path: Path) -> Path:
        """The file itself, or what it unpacks to."""
        with path.open("rb") as file:
            blocks = unpacked(path, file.read(len(SQLITE)))
        if blocks is None:
            return path
        plain = Path(self._unpacked.name) / "export.sqlite"
        try:
            with plain.open("wb") as file:
                file.writelines(blocks)
        except OSError as error:
            why = f"cannot unpack the database: {error.strerror or error}"
            raise InputError(why, where=str(path), hint="unpack it elsewhere, and name that file") from error
        return plain

    def close(self) -> None:
        self._database.close()
        self._unpacked.cleanup()

    def _plain_tables(self) -> list[str]:
        """Neither views nor virtual tables."""
        try:
            return [name for (name,) in self._database.execute(_PLAIN)]
        except _UNREADABLE:
            # Its first page says that there is more of it: the file was cut. With this setting SQLite reads
            # what there is (and writes nothing: the file is opened read-only).
            self._database.execute("PRAGMA writable_schema = ON")
            names = [name for (name,) in self._database.execute(_PLAIN)]
            self.damages["cut-database"] = 1
            return names

    def views(self) -> frozenset[str]:
        """The names of its views and virtual tables, which are not read."""
        return frozenset(name for (name,) in self._database.execute(_OTHERS))

    def _columns(self, table: str) -> frozenset[str]:
        """The names of a table's columns but for generated ones."""
        return frozenset(
            str(row[1]) for row in self._database.execute(f"PRAGMA table_info({_quoted(table)})")
        )

    def rows(
        self, table: str, integers: str, texts: str = "", blobs: str = "", names: str = ""
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a table, as far as they can be read; none of a table that is not there. ``integers``:
        names of columns of integers, with spaces between; so are ``texts`` of columns of texts, which come
        behind, ``blobs`` of columns of bytes, and last ``names`` of columns of either integers or texts. A
        value is None where the file lacks the column or holds something else."""
        stored = self.tables.get(table)
        if stored is None:
            return
        columns = [
            *(_typed(name, stored, "integer", _quoted(name)) for name in integers.split()),
            *(
                _typed(name, stored, kind, f"substr({_quoted(name)}, 1, {longest})")
                for kind, listed, longest in (("text", texts, _LONGEST_TEXT), ("blob", blobs, _LONGEST_BLOB))
                for name in listed.split()
            ),
            *(_integer_or_text(name, stored) for name in names.split()),
        ]
        first_text = len(integers.split())
        room, room_for_texts = self.size // _LEAST_ROW, self.size
        query = f"SELECT {', '.join(columns)} FROM {_quoted(self._stored[table][1])} NOT INDEXED"
        try:
            for row in self._database.execute(query):
                room -= 1
                if first_text < len(columns):
                    long = (value for value in row[first_text:] if isinstance(value, str | bytes))
                    room_for_texts -= sum(map(len, long))
                if room < 0 or room_for_texts < 0:
                    break
                yield row
            else:
                return
        except (*_UNREADABLE, OverflowError):
            pass
        self.damages["unreadable-table"] += 1


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _typed(name: str, stored: frozenset[str], kind: str, value: str) -> str:
    return f"CASE typeof({_quoted(name)}) WHEN '{kind}' THEN {value} END" if name in stored else "NULL"


def _integer_or_text(name: str, stored: frozenset[str]) -> str:
    if name not in stored:
        return "NULL"
    column = _quoted(name)
    text = f"substr({column}, 1, {_LONGEST_TEXT})"
    return f"CASE typeof({column}) WHEN 'integer' THEN {column} WHEN 'text' THEN {text} END"


def _versioned(name: str) -> tuple[str, tuple[int, str]]:
    """A table's name without its version, and what is read of several that are left: the last of these."""
    match = _VERSIONED.fullmatch(name)
    return (match[1], (int(match[2]), name)) if match is not None else (name, (_UNVERSIONED, name))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
