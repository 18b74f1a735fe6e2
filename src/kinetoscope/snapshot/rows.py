"""Rows of a pickle: dictionaries that are written in the same form, one after another, read by columns.

A pickler writes the same opcodes for dictionaries with the same keys. Laid end to end, those of one width
have every opcode, and every byte of a value, at the same distance: one slice with a stride takes a byte of
all of them, and hardly anything is done row by row.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, compress
from operator import not_
from typing import Any, NamedTuple, Protocol

FRAME_HEAD = 9  # the opcode, and the length of what follows
FRAME = 0x95
REFERENCE = rb"j.{4}|h."
REFERENCES = re.compile(REFERENCE, re.S)
OPENING = re.compile(rb"}\x94\((?:j.{4}|h.)", re.S)  # a dictionary, up to the name of its first key
LONGS = b"|".join(rb"\x8a\x%02x.{%d}" % (width, width) for width in range(1, 9))
# Texts that are written out in every row, though they are equal: each is an object of its own.
TEXTS = b"|".join(rb"\x8c\x%02x.{%d}\x94" % (length, length) for length in range(48))
FIELD = re.compile(
    rb"(?P<key>" + REFERENCE + rb")(?:"
    rb"(?P<reference>" + REFERENCE + rb")|(?P<pair>K.K.\x86\x94)|(?P<number>K.|M..|J.{4}|" + LONGS + rb")"
    rb"|(?P<text>" + TEXTS + rb")|(?P<nothing>N)"
    rb"|(?P<list>\]\x94(?:\((?:" + REFERENCE + rb")*e|(?:" + REFERENCE + rb")a)?))",
    re.S,
)
ENDS = (b"u", b"ue(")  # a list is written a thousand values at a time: it ends, and goes on
SIGN = bytes(128) + b"\xff" * 128  # what stands before the first byte of a number, by that byte
LEAST, MOST = 1 << 12, 1 << 22  # bytes of rows that are read at once: more as long as there are no others
LAYOUTS = 32  # of one width; of more, rows are read singly
LISTS = 100_000  # that are kept as they are written: stacks repeat


class RowLayout(NamedTuple):
    """How some rows of one width are written, after their ``OPENING``.

    Attributes:
        fields: key, kind (a group of ``FIELD``), and where in the row the bytes of the value are.
        fixed: the other places, with the byte that is there in each row.
        memoized: numbers that a row takes in the memo.
    """

    fields: tuple[tuple[str, str, int, int], ...]
    fixed: tuple[tuple[int, int], ...]
    memoized: int


class UniformRows(NamedTuple):
    """Rows of one layout, end to end."""

    layout: RowLayout
    places: Sequence[int]
    block: bytes
    width: int

    def number(self, start: int, end: int, is_signed: bool) -> array[int]:
        """The numbers that lie in these bytes of each row, the lowest byte first."""
        found = bytearray(8 * len(self.places))
        for byte in range(end - start):
            found[byte::8] = self.block[start + byte :: self.width]
        sign = self.block[end - 1 :: self.width].translate(SIGN) if is_signed else b""
        if any(sign):
            for byte in range(end - start, 8):
                found[byte::8] = sign
        numbers = array("q")
        numbers.frombytes(found)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers

    def values(self, start: int, end: int) -> list[bytes]:
        return [self.block[at : at + end - start] for at in range(start, len(self.block), self.width)]


class RowReader(Protocol):
    """The consumer of rows.

    Attributes:
        wanted: keys whose values are read.
        sequences: those of them whose values are lists.
    """

    wanted: frozenset[str]
    sequences: frozenset[str]

    def is_row(self, keys: Sequence[str]) -> bool:
        """Whether None stands for a dictionary with these keys, once ``take`` has its values."""
        ...

    def coded(self, key: str, value: Any) -> int:
        """The number that stands for a value that is none."""
        ...

    def take(self, columns: Mapping[str, array[int]], places: Sequence[int]) -> None:
        """The values of rows by key, 0 where one has none; ``places``: where each stood among them."""
        ...


class FrameRun(NamedTuple):
    """Bytes of a pickle without the heads of its frames, and where each piece was: its beginning in ``data``
    and in the pickle, and the end of its frame."""

    data: bytes
    begins: list[int]
    pieces: list[tuple[int, int]]

    def place(self, offset: int) -> tuple[int, int]:
        """Where an offset lies in the pickle, and where its frame ends."""
        number = bisect_right(self.begins, offset) - 1
        at, end = self.pieces[number]
        return at + offset - self.begins[number], end


def frame_run(data: Any, at: int, frame_end: int, most: int) -> FrameRun:
    """``most`` bytes of a pickle; ``frame_end`` is where its frame ends, 0: there are none."""
    parts: list[bytes] = []
    found = FrameRun(b"", [], [])
    begin, last = 0, min(len(data), at + most)
    while at < last:
        is_framed = at < frame_end
        part = data[at : min(last, frame_end) if is_framed else last]
        parts.append(part)
        found.begins.append(begin)
        found.pieces.append((at, frame_end))
        at, begin = at + len(part), begin + len(part)
        if not is_framed or at >= last or data[at] != FRAME:
            break
        frame_end = at + FRAME_HEAD + int.from_bytes(data[at + 1 : at + FRAME_HEAD], "little")
        at += FRAME_HEAD
    return found._replace(data=b"".join(parts))


class Rows:
    """Reads the rows that begin with the same bytes.

    Args:
        opening: what each begins with (``OPENING``).
        recalled: what the memo has under a number.
    """

    def __init__(self, opening: bytes, reader: RowReader, recalled: Callable[[int], Any]) -> None:
        self.opening, self.reader, self.recalled = opening, reader, recalled
        self.window, self.misfit = LEAST, -1
        self.listed: array[int] = array(
            "i"
        )  # what stands for the rows' lists and pairs, by their numbers in the memo
        self.lists: dict[bytes, int] = {}
        self.codes: dict[str, dict[Any, int]] = defaultdict(dict)

    def read(self, data: Any, at: int, frame_end: int, memoized: int) -> tuple[int, int, int, int] | None:
        """The rows from a place on.

        Returns:
            How many they are, where the next opcode and the end of its frame are, and how many numbers of the
            memo were given; None: there is no row.
        """
        if at == self.misfit or data[at : at + len(self.opening)] != self.opening:
            return None
        found = frame_run(data, at, frame_end, self.window)
        *parts, rest = found.data.split(self.opening)[1:]
        tables, fit = self._uniform(parts)
        end = len(found.data) - len(rest) - len(self.opening)
        self.window = min(MOST, 2 * self.window)
        if fit < len(parts):
            tables, _ = self._uniform(parts[:fit])
            end = sum(map(len, parts[:fit])) + fit * len(self.opening)
            self.window = max(LEAST, min(self.window, 2 * end))
            self.misfit, _ = found.place(end)
        if not fit:
            return None
        memoized = self._take(tables, fit, memoized)
        return fit, *found.place(end), memoized

    def recall(self, number: int) -> int | None:
        """The value that stands for a list of a row, by its number in the memo."""
        found = self.listed[number] if number < len(self.listed) else -1
        return None if found < 0 else found

    def _uniform(self, parts: Sequence[bytes]) -> tuple[list[UniformRows], int]:
        """Rows by layout, and how many there are before the first that has none."""
        by_width: dict[int, list[int]] = defaultdict(list)
        for place, part in enumerate(parts):
            by_width[len(part)].append(place)
        tables: list[UniformRows] = []
        fit = len(parts)
        for width, places in by_width.items():
            for found in self._of_width(parts, places, width):
                if isinstance(found, int):
                    fit = min(fit, found)
                else:
                    tables.append(found)
        return tables, fit

    def _of_width(self, parts: Sequence[bytes], places: list[int], width: int) -> Iterator[UniformRows | int]:
        """Rows of one width by layout; last, where one has none, its place."""
        for _ in range(LAYOUTS):
            layout = self._layout(parts[places[0]])
            if layout is None:
                break
            block = b"".join([parts[place] for place in places])
            columns = ((block[at::width], byte) for at, byte in layout.fixed)
            differ = [(column, byte) for column, byte in columns if column.count(byte) != len(places)]
            if not differ:
                yield UniformRows(layout, places, block, width)
                return
            expected = tuple(byte for _, byte in differ)
            is_same = [found == expected for found in zip(*(column for column, _ in differ), strict=True)]
            same = [*compress(places, is_same)]
            yield UniformRows(layout, same, b"".join([parts[place] for place in same]), width)
            places = [*compress(places, map(not_, is_same))]
        yield places[0]

    def _layout(self, part: bytes) -> RowLayout | None:
        """How a row is written; None: as none of the reader's."""
        first = len(self.opening) - 3
        row, at = self.opening[3:] + part, 0
        fields: list[tuple[str, str, int, int]] = []
        values: set[int] = set()
        numbered = 1
        while (found := FIELD.match(row, at)) is not None:
            at, kind = found.end(), str(found.lastgroup)
            key = self._name(int.from_bytes(found["key"][1:], "little"))
            start, end = found.start(kind) - first, found.end(kind) - first
            if key is None or (kind == "text" and key in self.reader.wanted):
                return None
            numbered += kind in ("pair", "text", "list")
            places = _places(kind, start, end, row[first + start])
            values.update(places)
            fields.append((key, kind, places[0] if places else start, end))
        if row[at:] not in ENDS or not self.reader.is_row([key for key, *_ in fields]):
            return None
        fixed = tuple((place, byte) for place, byte in enumerate(part) if place not in values)
        return RowLayout(tuple(fields), fixed, numbered)

    def _name(self, number: int) -> str | None:
        """A key by its number; None: it is none, or is written out in a row before, which is not read yet."""
        try:
            key = self.recalled(number)
        except KeyError:
            return None
        return key if isinstance(key, str) else None

    def _take(self, tables: Sequence[UniformRows], rows: int, memoized: int) -> int:
        """Hand the rows on; returns how many numbers of the memo are given by then."""
        numbers = [0] * rows
        for one in tables:
            for place in one.places:
                numbers[place] = one.layout.memoized
        numbers = [*accumulate(numbers, initial=memoized)]
        self.listed.extend(array("i", [-1]) * (numbers[-1] - len(self.listed)))
        columns = [self._lists(one, numbers) for one in tables]  # others refer to them
        found: dict[str, array[int]] = defaultdict(lambda: array("q"))
        rows = 0
        for one, known in zip(tables, columns, strict=True):
            for key, kind, start, end in one.layout.fields:
                if key in self.reader.wanted:
                    column = found[key]
                    column.extend(array("q", [0]) * (rows - len(column)))
                    column.extend(known[key] if key in known else self._column(one, key, kind, start, end))
            rows += len(one.places)
        for column in found.values():
            column.extend(array("q", [0]) * (rows - len(column)))
        self.reader.take(found, [*chain.from_iterable(one.places for one in tables)])
        return numbers[-1]

    def _lists(self, one: UniformRows, numbers: Sequence[int]) -> dict[str, array[int]]:
        """The values that stand for lists and pairs that are written out, kept by their number: a value's
        comes after those of its dictionary and of the values before it."""
        found: dict[str, array[int]] = {}
        number = 0
        for key, kind, start, end in one.layout.fields:
            number += kind in ("pair", "text", "list")
            if kind == "list" or (kind == "pair" and key in self.reader.wanted):
                known = (
                    array("q", map(self._listed, one.values(start - 1, end)))
                    if kind == "list"
                    else self._column(one, key, kind, start, end)
                )
                for place, stands in zip(one.places, known, strict=True):
                    self.listed[numbers[place] + number] = stands
                found[key] = known
        return found

    def _listed(self, raw: bytes) -> int:
        if (stands := self.lists.get(raw)) is None:
            inside = REFERENCES.findall(raw, 2 + (raw[2:3] == b"("), len(raw) - 1)
            items = [self.recalled(int.from_bytes(one[1:], "little")) for one in inside]
            stands = self.reader.coded("", items)
            if len(self.lists) < LISTS:
                self.lists[raw] = stands
        return stands

    def _column(self, one: UniformRows, key: str, kind: str, start: int, end: int) -> array[int]:
        if kind == "number":
            return one.number(start, end, is_signed=one.block[start - 1] not in b"KM")
        if kind == "nothing":
            return array("q", [self.reader.coded(key, None)]) * len(one.places)
        codes = self.codes[key]
        if kind == "pair":
            pairs = [*zip(one.block[start :: one.width], one.block[start + 2 :: one.width], strict=True)]
            codes |= {pair: self.reader.coded(key, pair) for pair in {*pairs} - {*codes}}
            return array("q", map(codes.__getitem__, pairs))
        numbers = one.number(start, end, is_signed=False)
        if key in self.reader.sequences:
            return self._stands(key, numbers)
        codes |= {number: self._stands_for(key, number) for number in {*numbers} - {*codes}}
        return array("q", map(codes.__getitem__, numbers))

    def _stands(self, key: str, numbers: Sequence[int]) -> array[int]:
        """The values that stand for lists, by their numbers in the memo; some may not be of rows."""
        if max(numbers) < len(self.listed):
            found = array("q", map(self.listed.__getitem__, numbers))
            if min(found) >= 0:
                return found
        return array("q", [self._stands_for(key, number) for number in numbers])

    def _stands_for(self, key: str, number: int) -> int:
        stands = self.recall(number)
        return self.reader.coded(key, self.recalled(number)) if stands is None else stands


def _places(kind: str, start: int, end: int, opcode: int) -> Sequence[int]:
    """Where in a row the bytes of a value are, but for opcodes and lengths."""
    if kind == "nothing":
        return ()
    if kind == "pair":
        return start + 1, start + 3
    if kind == "text":
        return range(start + 2, end - 1)
    return range(start + (2 if opcode == 0x8A else 1), end)
