"""Pickles of plain data, read without running anything, and without holding all of it.

Python's own unpickler makes objects of whatever classes a pickle names, and keeps all that it has read: four
bytes of memory for each of the file's. This machine knows dictionaries, lists, tuples, strings and numbers,
and nothing else. Each dictionary is handed on once it is complete, and what comes back stands for it from
then on. Dictionaries with the same keys that follow one another, such as the entries of a history, are rows
(``rows``).
"""

from __future__ import annotations

import mmap as mapping
import struct
from array import array
from collections.abc import Mapping, Sequence
from mmap import PAGESIZE, mmap
from typing import Any, cast

from kinetoscope.errors import InputError
from kinetoscope.snapshot.rows import FRAME, FRAME_HEAD, OPENING, Rows

DICT, LIST, EMPTY, MARK, STOP, NONE, TRUE, FALSE = b"}])(.N\x88\x89"
SETITEM, SETITEMS, APPEND, APPENDS, TUPLE1, TUPLE2, TUPLE3, TUPLE = b"suae\x85\x86\x87t"
PUT, LONG_PUT, MEMOIZE, GET, LONG_GET = b"qr\x94hj"
INT1, INT2, INT4, LONG, FLOAT = b"KMJ\x8aG"
SHORT_TEXT, TEXT, PROTOCOL = b"\x8cX\x80"
NUMBERS = {
    INT1: struct.Struct("<B"),
    INT2: struct.Struct("<H"),
    INT4: struct.Struct("<i"),
    FLOAT: struct.Struct(">d"),
}
CONSTANTS = {NONE: None, TRUE: True, FALSE: False, EMPTY: ()}
TUPLES = {TUPLE1: 1, TUPLE2: 2, TUPLE3: 3}
RELEASED = 1 << 25  # bytes of a file that is mapped, after which those before are given back


class PickleReader:
    """The consumer of a pickle's content; this base keeps everything as it is. See ``RowReader``."""

    wanted: frozenset[str] = frozenset()
    sequences: frozenset[str] = frozenset()

    def complete(self, found: dict[Any, Any]) -> object:
        """The value that stands for a dictionary."""
        return found

    def is_row(self, keys: Sequence[str]) -> bool:
        return False

    def coded(self, key: str, value: Any) -> int:
        raise NotImplementedError

    def take(self, columns: Mapping[str, array[int]], places: Sequence[int]) -> None:
        raise NotImplementedError


def load(data: bytes | mmap, where: str, reader: PickleReader) -> object:
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
            what, where=where, hint="name what torch.cuda.memory._dump_snapshot wrote"
        ) from error


class ForeignError(ValueError):
    """An opcode that plain data has no need of."""


class Machine:
    """Pickle's stack machine, for plain data.

    Attributes:
        at: the byte that is read.
        memo: what the pickle refers to again, by number.
    """

    def __init__(self, data: bytes | mmap, reader: PickleReader) -> None:
        self.data, self.reader, self.at = data, reader, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.memoized = 0
        self.rows: Rows | None = None
        self.frame_end, self.released = 0, 0
        self.latest: dict[Any, Any] | None = None  # of the dictionaries that were begun, …
        self.opened, self.number = 0, -1  # … where it begins, and its number in the memo

    def run(self) -> object:
        """Everything up to the end; raises what Python does where the pickle makes no sense."""
        while (code := self.data[self.at]) != STOP:
            if code == DICT:
                if self.rows is not None and self._read_rows(self.rows):
                    continue
                self.latest, self.opened, self.number = {}, self.at, -1
                self.stack.append(self.latest)
                self.at += 1
            else:
                self._step(code)
        return self.stack[-1]

    def _recalled(self, number: int) -> Any:
        """The memo's entry of a number; lists of rows stand by the reader's number for them."""
        if number in self.memo:
            return self.memo[number]
        if self.rows is None or number >= self.memoized:
            raise KeyError(number)
        listed = self.rows.recall(number)
        return "" if listed is None else listed  # a text of a row, of which nothing is kept

    def _read_rows(self, rows: Rows) -> bool:
        found = rows.read(self.data, self.at, self.frame_end, self.memoized)
        if found is None:
            return False
        count, self.at, self.frame_end, self.memoized = found
        self.stack += [None] * count
        self._release()
        return True

    def _release(self) -> None:
        """Give back the memory of what is read of a mapped file."""
        forget: int | None = getattr(mapping, "MADV_DONTNEED", None)  # not everywhere
        if forget is not None and isinstance(self.data, mmap) and self.at - self.released > RELEASED:
            end = self.at // PAGESIZE * PAGESIZE
            self.data.madvise(forget, self.released, end - self.released)
            self.released = end

    def _learn(self, row: dict[Any, Any]) -> None:
        """Have the next dictionaries that begin like one that is complete be read as rows."""
        opening = OPENING.match(self.data, self.opened)
        if self.rows is None and opening is not None and self.reader.is_row([*row]):
            self.rows = Rows(opening[0], self.reader, self._recalled)

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
        elif code == PROTOCOL:
            at += 1
        elif code == FRAME:
            at += FRAME_HEAD - 1
            self.frame_end = at + int.from_bytes(data[at - 8 : at], "little")
        else:
            at = self._gather(code, at)
        self.at = at

    def _gather(self, code: int, at: int) -> int:
        """Opcodes that take values off the stack or name them; returns where to go on."""
        stack = self.stack
        if code == SETITEMS:
            items = self._since_mark()
            if any(type(key) is not str for key in items[::2]):  # numbers can be chosen to have one hash
                raise TypeError
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
            self._complete()
        elif code == SETITEM:
            value, key = stack.pop(), stack.pop()
            if type(key) is not str:
                raise TypeError
            stack[-1][key] = value
            self._complete()
        elif code == APPENDS:
            items = self._since_mark()
            cast(list[Any], stack[-1]).extend(items)
        elif code == APPEND:
            item = stack.pop()
            cast(list[Any], stack[-1]).append(item)
        elif code in TUPLES or code == TUPLE:
            if code != TUPLE:
                self.marks.append(len(stack) - TUPLES[code])
            items = tuple(self._since_mark())
            stack.append(items)
        elif code in (PUT, LONG_PUT):
            width = 1 if code == PUT else 4
            self._memoize(int.from_bytes(self.data[at : at + width], "little"))
            return at + width
        else:
            raise ForeignError(repr(bytes([code])))
        return at

    def _complete(self) -> None:
        found = self.stack[-1]
        if type(found) is not dict:
            raise TypeError
        stands = self.reader.complete(cast(dict[Any, Any], found))
        if stands is not found and found is self.latest:
            self.stack[-1] = self.memo[self.number] = stands
            if stands is None:
                self._learn(cast(dict[Any, Any], found))

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
