"""Pickles of plain data, read without running anything, and without holding all of it.

Python's own unpickler makes objects of whatever classes a pickle names, and keeps all that it has read: four
bytes of memory for each of the file's. This machine knows dictionaries, lists, tuples, strings and numbers,
and nothing else. Each dictionary is handed on once it is complete, and what comes back stands for it from
then on. Dictionaries with the same keys that follow one another, such as the entries of a history, are rows:
one regular expression finds them, and they are read by columns.
"""

from __future__ import annotations

import mmap as mapping
import re
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from mmap import PAGESIZE, mmap
from typing import Any, cast

from kinetoscope.errors import InputError

DICT, LIST, EMPTY, MARK, STOP, NONE, TRUE, FALSE = b"}])(.N\x88\x89"
SETITEM, SETITEMS, APPEND, APPENDS, TUPLE1, TUPLE2, TUPLE3, TUPLE = b"suae\x85\x86\x87t"
PUT, LONG_PUT, MEMOIZE, GET, LONG_GET = b"qr\x94hj"
INT1, INT2, INT4, LONG, FLOAT = b"KMJ\x8aG"
SHORT_TEXT, TEXT, PROTOCOL, FRAME = b"\x8cX\x80\x95"
NUMBERS = {
    INT1: struct.Struct("<B"),
    INT2: struct.Struct("<H"),
    INT4: struct.Struct("<i"),
    FLOAT: struct.Struct(">d"),
}
SKIPPED = {PROTOCOL: 1, FRAME: 8}
CONSTANTS = {NONE: None, TRUE: True, FALSE: False, EMPTY: ()}
TUPLES = {TUPLE1: 1, TUPLE2: 2, TUPLE3: 3}
REFERENCE = rb"j.{4}|h."
SCALAR = REFERENCE + rb"|K.|M..|J.{4}|N|\x8a(?:\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8})"
PAIR = REFERENCE + rb"|K.K.\x86\x94"
# Texts that are written out in every row, though they are alike: each is an object of its own.
WORDS = (
    REFERENCE
    + rb"|\x8c(?:"
    + b"|".join(rb"\x%02x.{%d}" % (length, length) for length in range(48))
    + rb")\x94"
)
SEQUENCE = REFERENCE + rb"|\]\x94(?:\((?:" + REFERENCE + rb")*e|(?:" + REFERENCE + rb")a)?"
VALUE = rb"K.K.\x86\x94|" + WORDS + b"|" + SCALAR + b"|" + SEQUENCE
FIELD = re.compile(rb"(%s)(%s)" % (REFERENCE, VALUE), re.S)
FLAT = re.compile(rb"}\x94\((?:(?:%s)(?:%s))+u" % (REFERENCE, VALUE), re.S)
REFERENCES = re.compile(REFERENCE, re.S)
MEMOIZED = frozenset((LIST, INT1, SHORT_TEXT))  # what values begin with that get a number of their own
# Rows that are tried at each dictionary: with and without a stack, allocations and failures.
SHAPES = 4
WINDOW = 1 << 18  # bytes of rows that are read at once; between frames of 64 KiB rows are read singly
RELEASED = 1 << 25  # bytes of a file that is mapped, after which those before are given back

Columns = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Shape:
    """What rows with the same keys look like, the places of those values that are pairs or lists, and what
    takes the values: by place, pairs and lists as they are, others as they are written."""

    pattern: re.Pattern[bytes]
    compound: tuple[int, ...]
    take: Callable[[Columns], None]


class Reader:
    """What becomes of what a pickle holds; the base takes everything for what it is.

    Attributes:
        sequences: keys of rows whose values are lists.
        wanted: keys of rows whose values are read; pairs and lists are in any case.
    """

    sequences: frozenset[str] = frozenset()
    wanted: frozenset[str] = frozenset()

    def complete(self, found: dict[Any, Any]) -> object:
        """What stands for a dictionary."""
        return found

    def listed(self, items: Sequence[object]) -> object:
        """What stands for a list in a row."""
        return items

    def rows(self, keys: tuple[str, ...], machine: Machine) -> Callable[[Columns], None] | None:
        """What takes the values of dictionaries with these keys, for which None stands; None: they are no
        rows."""
        return None


def load(data: bytes | mmap, where: str, reader: Reader) -> object:
    """The object that a pickle holds.

    Raises:
        InputError: it is damaged, or holds more than plain data.
    """
    machine = Machine(data, reader)
    try:
        return machine.run()
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, struct.error) as error:
        what = f"the pickle is damaged at byte {machine.at:,}: {type(error).__name__}"
        if isinstance(error, ForeignError):
            what = f"the pickle holds more than plain data, and is not opened: opcode {error}"
        raise InputError(
            what, where=where, mend="name what torch.cuda.memory._dump_snapshot wrote"
        ) from error


def _first(raw: bytes) -> bytes:
    """How values like one are written, which is looked for first."""
    if raw[0] == LONG:
        return rb"\x8a" + re.escape(raw[1:2]) + rb".{%d}" % raw[1]
    if raw[0] == SHORT_TEXT:
        return rb"\x8c" + re.escape(raw[1:2]) + rb".{%d}\x94" % raw[1]
    lengths = {GET: 1, LONG_GET: 4, INT1: 1, INT2: 2, INT4: 4}
    return (
        re.escape(raw[:1]) + b".{%d}" % lengths[raw[0]] if raw[0] in lengths and len(raw) < 6 else REFERENCE
    )


class Known(dict[bytes, Any]):
    """What values are, by how they are written."""

    def __init__(self, read: Callable[[bytes], Any], most: int = sys.maxsize) -> None:
        super().__init__()
        self.read, self.most = read, most

    def __missing__(self, raw: bytes) -> Any:
        value = self.read(raw)
        if len(self) < self.most:
            self[raw] = value
        return value


def integers(column: Sequence[bytes]) -> Iterable[int]:
    """The numbers of a column of rows; those of one width all together."""
    heads = {raw[:2] for raw in column}
    width = column[0][1]
    if len(heads) > 1 or column[0][0] != LONG or not 4 < width < 8:
        return [int.from_bytes(raw[2 if raw[0] == LONG else 1 :], "little", signed=True) for raw in column]
    found = array("q")
    found.frombytes(bytes(8 - width).join([raw[2:] for raw in column]) + bytes(8 - width))
    return found


class ForeignError(ValueError):
    """An opcode that plain data has no need of."""


class Machine:
    """Pickle's stack machine, for plain data.

    Attributes:
        at: the byte that is read.
        memo: what the pickle refers to again, by number.
    """

    def __init__(self, data: bytes | mmap, reader: Reader) -> None:
        self.data, self.reader, self.at = data, reader, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.memoized = 0
        self.shapes: list[Shape] = []
        self.lists = Known(self._compound)  # pairs, too
        self.released = 0
        self.has_words = False  # rows that write texts out
        self.latest: dict[Any, Any] | None = None  # of the dictionaries that were begun, …
        self.opened, self.number = 0, -1  # … where it begins, and its number in the memo

    def run(self) -> object:
        """Everything up to the end; raises what Python does where the pickle makes no sense."""
        while (code := self.data[self.at]) != STOP:
            if code == DICT:
                if self.shapes and self._rows():
                    continue
                self.latest, self.opened, self.number = {}, self.at, -1
                self.stack.append(self.latest)
                self.at += 1
            else:
                self._step(code)
        return self.stack[-1]

    def value(self, raw: bytes) -> Any:
        """What a value of a row is that is no list written out."""
        code = raw[0]
        if code in (GET, LONG_GET):
            return self._recalled(int.from_bytes(raw[1:], "little"))
        if code == INT1 and len(raw) > 2:
            return raw[1], raw[3]
        if code == LONG:
            return int.from_bytes(raw[2:], "little", signed=True)
        return None if code == NONE else int.from_bytes(raw[1:], "little", signed=code == INT4)

    def _recalled(self, number: int) -> Any:
        """What the memo has under a number; lists of rows stand by the reference to them."""
        if number in self.memo:
            return self.memo[number]
        reference = b"j" + number.to_bytes(4, "little")
        if reference in self.lists:
            return self.lists[reference]
        if self.has_words and number < self.memoized:
            return ""  # a text of a row, of which nothing is kept
        raise KeyError(number)

    def _rows(self) -> bool:
        """Read the rows that begin here."""
        data, at = self.data, self.at
        shape = next((shape for shape in self.shapes if shape.pattern.match(data, at)), None)
        if shape is None:
            return False
        rows: list[tuple[bytes, ...]] = []
        for found in shape.pattern.finditer(data, at, at + WINDOW):
            if found.start() != at:
                break
            rows.append(found.groups())
            at = found.end()
        if not rows:  # longer than the window: as any other dictionary
            return False
        columns = list[Sequence[Any]](zip(*rows, strict=True))
        self._number([columns[place] for place in shape.compound], len(rows))
        for place in shape.compound:
            columns[place] = [*map(self.lists.__getitem__, columns[place])]
        shape.take(columns)
        self.stack += [None] * len(rows)
        self.at = at
        self._release()
        return True

    def _number(self, compound: Columns, rows: int) -> None:
        """Number the values of rows that are written out, after their dictionary; alike columns at once."""
        number, lists = self.memoized, self.lists
        alike = [len({*column}) == 1 and column[0][0] != LIST for column in compound]
        numbers = [same and column[0][0] in MEMOIZED for same, column in zip(alike, compound, strict=True)]
        varied = [place for place, same in enumerate(alike) if not same]
        if not varied:
            self.memoized = number + rows * (1 + sum(numbers))
            return
        before = [sum(numbers[:place]) for place in varied]
        gaps = [1 + before[0], *(later - one for one, later in pairwise(before))]
        after = sum(numbers) - before[-1]
        for values in zip(*(compound[place] for place in varied), strict=True):
            for gap, raw in zip(gaps, values, strict=True):
                number += gap
                if raw[0] == LIST:
                    lists[b"j" + number.to_bytes(4, "little")] = lists[raw]
                number += raw[0] in MEMOIZED
            number += after
        self.memoized = number

    def _compound(self, raw: bytes) -> object:
        """What a pair is, a list, or a text."""
        if raw[0] == SHORT_TEXT:
            return raw[2:-1].decode("utf-8", "replace")
        if raw[0] != LIST:
            found = self.value(raw)
            return self.reader.listed(cast(list[object], found)) if type(found) is list else found
        references = REFERENCES.findall(raw, 2 + (raw[2:3] == b"("), len(raw) - 1)
        return self.reader.listed([self.value(one) for one in references])

    def _release(self) -> None:
        """Give back the memory of what is read of a mapped file."""
        forget: int | None = getattr(mapping, "MADV_DONTNEED", None)  # not everywhere
        if forget is not None and isinstance(self.data, mmap) and self.at - self.released > RELEASED:
            end = self.at // PAGESIZE * PAGESIZE
            self.data.madvise(forget, self.released, end - self.released)
            self.released = end

    def _learn(self, end: int, row: dict[Any, Any]) -> None:
        """Have the next dictionaries like one that is complete be read as rows."""
        raw, keys = bytes(self.data[self.opened : end]), tuple(map(str, row))
        if len(self.shapes) == SHAPES or not FLAT.fullmatch(raw):
            return
        fields = list(FIELD.finditer(raw, 3, len(raw) - 1))
        texts = {key for key, field in zip(keys, fields, strict=False) if field[2][0] == SHORT_TEXT}
        if len(fields) != len(keys) or texts & self.reader.wanted:
            return
        kinds = [self._kind(key, value, key in texts) for key, value in zip(keys, row.values(), strict=True)]
        read = [
            kind is not SCALAR or key in self.reader.wanted for key, kind in zip(keys, kinds, strict=True)
        ]
        take = self.reader.rows(tuple(compress(keys, read)), self)
        if take is None:
            return
        values = (
            re.escape(field[1]) + (b"(" if is_read else b"(?:") + _first(field[2]) + b"|" + kind + b")"
            for field, kind, is_read in zip(fields, kinds, read, strict=True)
        )
        compound = tuple(n for n, kind in enumerate(compress(kinds, read)) if kind is not SCALAR)
        pattern = re.compile(rb"}\x94\(" + b"".join(values) + b"u", re.S)
        self.shapes.append(Shape(pattern, compound, take))
        self.has_words |= WORDS in kinds

    def _kind(self, key: str, value: object, is_written: bool) -> bytes:
        """How the values of a column may be written; texts that are written out are of no interest."""
        if key in self.reader.sequences:
            return SEQUENCE
        return WORDS if is_written else PAIR if type(value) is tuple else SCALAR

    def _step(self, code: int) -> None:
        """One opcode; the frequent ones first."""
        data, stack, at = self.data, self.stack, self.at + 1
        if code == GET:
            stack.append(self._recalled(data[at]))
            at += 1
        elif code == LONG_GET:
            stack.append(self._recalled(int.from_bytes(data[at : at + 4], "little")))
            at += 4
        elif code == MEMOIZE:
            self._memoize(self.memoized)
            self.memoized += 1
        elif code in NUMBERS:
            number = NUMBERS[code]
            stack.append(number.unpack_from(data, at)[0])
            at += number.size
        elif code in CONSTANTS:
            stack.append(CONSTANTS[code])
        elif code == MARK:
            self.marks.append(len(stack))
        elif code == LIST:
            stack.append([])
        elif code == LONG:
            end = at + 1 + data[at]
            stack.append(int.from_bytes(self._taken(at + 1, end), "little", signed=True))
            at = end
        elif code in (SHORT_TEXT, TEXT):
            width = 1 if code == SHORT_TEXT else 4
            end = at + width + int.from_bytes(data[at : at + width], "little")
            stack.append(self._taken(at + width, end).decode("utf-8", "replace"))
            at = end
        elif code in SKIPPED:
            at += SKIPPED[code]
        else:
            at = self._gather(code, at)
        self.at = at

    def _gather(self, code: int, at: int) -> int:
        """What takes values off the stack, and what names them; returns where to go on."""
        stack = self.stack
        if code == SETITEMS:
            items = self._since_mark()
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
            self._complete(at)
        elif code == SETITEM:
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
            self._complete(at)
        elif code == APPENDS:
            items = self._since_mark()
            cast(list[Any], stack[-1]).extend(items)
        elif code == APPEND:
            item = stack.pop()
            cast(list[Any], stack[-1]).append(item)
        elif code in TUPLES or code == TUPLE:
            if code != TUPLE:
                self.marks.append(len(stack) - TUPLES[code])
            stack.append(tuple(self._since_mark()))
        elif code in (PUT, LONG_PUT):
            width = 1 if code == PUT else 4
            self._memoize(int.from_bytes(self.data[at : at + width], "little"))
            return at + width
        else:
            raise ForeignError(repr(bytes([code])))
        return at

    def _complete(self, end: int) -> None:
        found = self.stack[-1]
        if type(found) is not dict:
            raise TypeError
        stands = self.reader.complete(cast(dict[Any, Any], found))
        if stands is not found and found is self.latest:
            self.stack[-1] = self.memo[self.number] = stands
            if stands is None:
                self._learn(end, cast(dict[Any, Any], found))

    def _memoize(self, number: int) -> None:
        self.memo[number] = self.stack[-1]
        if self.stack[-1] is self.latest:
            self.number = number

    def _since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        if mark < 0:
            raise IndexError
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _taken(self, start: int, end: int) -> bytes:
        if end > len(self.data):
            raise IndexError
        return bytes(self.data[start:end])
