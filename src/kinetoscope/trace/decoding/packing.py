"""Events to packed columns: arrays of numbers, and codes into lists of the texts seen.

A chunk of a file packs by itself, so chunks decode in parallel. Slices of half a megabyte keep what is
decoded inside the cache of the core, which is worth a factor of two.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import compress, groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from kinetoscope.trace.decoding.decode import double_ns, exact_ns
from kinetoscope.trace.decoding.events import (
    ABSENT,
    COLLECTIVE,
    LAYOUTS,
    NO_NUMBER,
    RENAMED,
    TABLES,
    Args,
    Event,
    ExactEvent,
    Label,
    Layout,
    table_of,
)
from kinetoscope.trace.decoding.salvage import Lost
from kinetoscope.trace.decoding.usual import TABLE_OF

NOWHERE = len(TABLES)  # stands for the table of an event that none holds
SEPARATOR = b"\0"  # no JSON text has it
_ONLY = [bytes(place == other for other in range(256)) for place in range(NOWHERE + 1)]
_EMPTY = Args()
_NOTHING = {"I": 0, "B": 0, "q": ABSENT, "d": NO_NUMBER}
_TIMED = frozenset(["ops", "calls", "python", "device", "notes"])


class Codes(dict[Any, int]):
    """A number for every distinct value, in the order they come."""

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code

    def of(self, values: Iterable[Any]) -> list[int]:
        return list(map(self.__getitem__, values))


class Batch(NamedTuple):
    """The packed columns of one chunk of a file."""

    # of every element of ``traceEvents`` in it, the place of its table in ``TABLES``, or ``NOWHERE``: it
    # gives the rows of the tables their positions in the file
    table_of: bytes
    # table → column → (array type code, bytes). ``texts`` columns hold codes. A column that says nothing in
    # the whole chunk is not there
    tables: dict[str, dict[str, tuple[str, bytes]]]
    names: list[Label]  # what codes of ``name`` and ``category`` mean
    texts: list[bytes | str]  # what codes of every other text column mean; 0 is none
    # what codes of ``json`` columns mean: the layout's texts with ``SEPARATOR`` between them; 0 is none
    joined: list[bytes]
    lanes: list[tuple[Label, Label]]  # what codes of ``lane`` mean: (pid, tid) as written
    unused: dict[str, int]  # events that no table holds, by ``ph cat``
    damages: dict[str, int]  # code → count
    # of each part that could not be read, its place in ``table_of`` and its bytes
    lost: list[tuple[int, int]]


class _Columns:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.arrays: dict[str, array[Any]] = {}
        self.rows = 0

    def says(self, name: str, values: list[Any], nothing: Any) -> bool:
        """Whether the column has begun, or begins here: one of nothing but absent values is left out."""
        return name in self.arrays or values.count(nothing) < len(values)

    def extend(
        self, name: str, typecode: str, values: list[Any], repair: Callable[[Any], Any] | None = None
    ) -> None:
        column = self.arrays.get(name)
        if column is None:
            column = self.arrays[name] = array(typecode, [_NOTHING[typecode]]) * self.rows
        try:
            column.fromlist(values)
        except (TypeError, OverflowError):
            if repair is None:
                raise
            column.fromlist([repair(value) for value in values])


class Packer:
    """Packs decoded events, slice by slice, into one Batch."""

    def __init__(self) -> None:
        self.damages: Counter[str] = Counter()
        self._exact = False
        self._table_of = _TableOf()
        self._order = bytearray()
        self._tables = {table: _Columns(layout) for table, layout in LAYOUTS.items()}
        self._names, self._lanes = Codes(), Codes()
        self._texts, self._joined = Codes({b"": 0}), Codes({b"": 0})
        self._unused: Counter[str] = Counter()
        self._lost: list[tuple[int, int]] = []

    def add(self, events: Sequence[Any]) -> None:
        """Pack decoded events, in the order of the file: all are exact from the first exact one on."""
        if not events:
            return
        if not self._exact and isinstance(events[0], ExactEvent):
            self._keep_exact()
        order = self._tables_of(events)
        self._order += order
        for place in set(order):
            chosen = list(compress(events, order.translate(_ONLY[place])))
            if place == NOWHERE:
                self._unused.update(f"{event.ph} {event.cat or ''}".strip() for event in chosen)
            else:
                self._pack(TABLES[place], chosen)

    def add_salvaged(self, events: Sequence[Any | Lost], damages: dict[str, int]) -> None:
        """Pack what was salvaged; what was lost keeps the position of one event."""
        for lost, group in groupby(events, lambda event: isinstance(event, Lost)):
            members = list(group)
            if lost:
                self._lost.append((len(self._order), sum(gap.bytes for gap in members)))
                self._order += bytes([NOWHERE]) * len(members)
            else:
                self.add(members)
        self.damages.update(damages)

    def batch(self) -> Batch:
        tables = {
            table: {name: (packed.typecode, packed.tobytes()) for name, packed in columns.arrays.items()}
            for table, columns in self._tables.items()
            if columns.rows
        }
        return Batch(
            bytes(self._order),
            tables,
            list(self._names),
            list(self._texts),
            list(self._joined),
            list(self._lanes),
            dict(self._unused),
            dict(self.damages),
            self._lost,
        )

    def _keep_exact(self) -> None:
        """From here on times come as they are written; those packed so far were exact."""
        self._exact = True
        for columns in self._tables.values():
            for name in ("start", "duration"):
                if name in columns.arrays:
                    columns.arrays[name] = array("q", map(double_ns, columns.arrays[name]))

    def _tables_of(self, events: Sequence[Any]) -> bytes:
        if isinstance(events[0], Event):
            return bytes(map(self._table_of.__getitem__, map(_KIND, events)))
        return bytes(map(_PLACE_OF_USUAL.__getitem__, map(type, events)))

    def _pack(self, table: str, events: list[Any]) -> None:
        columns = self._tables[table]
        extend = columns.extend
        if table == "labels":  # they name lanes; they are on none
            extend("pid", "I", self._texts.of(str(event.pid) for event in events))
            extend("tid", "I", self._texts.of(str(event.tid) for event in events))
        else:
            extend("lane", "I", self._lanes.of(map(_LANE, events)))
            extend("category", "I", self._names.of(map(_CATEGORY, events)))
            self._times(columns, "start", list(map(_TS, events)))
        if table == "flows":
            extend("flow", "q", list(map(_ID, events)), self._integer)
            extend("is_start", "B", [event.ph == "s" for event in events])
        else:
            extend("name", "I", self._names.of(map(_NAME, events)))
            if table in _TIMED:
                self._times(columns, "duration", list(map(_DUR, events)))
            self._arguments(columns, [event.args or _EMPTY for event in events])
        columns.rows += len(events)

    def _times(self, columns: _Columns, name: str, values: list[Any]) -> None:
        if self._exact:
            columns.extend(name, "q", list(map(exact_ns, values)))
        else:
            columns.extend(name, "d", values, self._number)

    def _arguments(self, columns: _Columns, arguments: list[Any]) -> None:
        layout, extend, says, texts = columns.layout, columns.extend, columns.says, self._texts
        for name in layout.integers:
            values = list(map(_ATTRIBUTE[name], arguments))
            if name in RENAMED and ABSENT in values:
                others = map(_ATTRIBUTE[RENAMED[name]], arguments)
                values = [b if a is ABSENT else a for a, b in zip(values, others, strict=True)]
            if says(name, values, ABSENT):
                extend(name, "q", values, self._integer)
        for name in layout.numbers:
            values = list(map(_ATTRIBUTE[name], arguments))
            if says(name, values, NO_NUMBER):
                extend(name, "d", values, self._number)
        for name in layout.texts:
            values = list(map(_ATTRIBUTE[name], arguments))
            if says(name, values, b""):
                extend(name, "I", self._coded(values))
        if layout.json:
            values = list(map(SEPARATOR.join, map(_JSON[layout.json], arguments)))
            if says("json", values, SEPARATOR * (len(layout.json) - 1)):
                extend("json", "I", self._joined.of(values))
        if layout.collective:
            values = list(map(_COLLECTIVE_NAME, arguments))
            if says("collective", values, None):
                extend("collective", "I", texts.of(map(_collective, arguments)))

    def _coded(self, values: list[Any]) -> list[int]:
        try:
            return self._texts.of(values)
        except TypeError:  # a list or an object
            return self._texts.of(value if isinstance(value, bytes) else str(value) for value in values)

    def _integer(self, value: Any) -> int:
        if value is None or value is ABSENT:
            return ABSENT
        try:
            number = int(value, 16) if isinstance(value, str) and value[:2] == "0x" else int(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or not -(1 << 63) < number < 1 << 63:
            self.damages["bad-field"] += 1
            return ABSENT
        return number

    def _number(self, value: Any) -> float:
        if value is None:
            return NO_NUMBER
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            self.damages["bad-field"] += 1
            return NO_NUMBER


class _TableOf(dict[tuple[Label, Label], int]):
    """The place in ``TABLES`` of the table that (phase, category) belongs to."""

    def __missing__(self, key: tuple[Label, Label]) -> int:
        table = table_of(*key)
        self[key] = place = NOWHERE if table is None else TABLES.index(table)
        return place


def _collective(arguments: Any) -> str | bytes:
    if arguments.collective_name is None:
        return b""
    values = _COLLECTIVE(arguments)
    try:
        return _encoded(*values)
    except TypeError:  # a list or an object
        return _encoded.__wrapped__(*values)


@lru_cache(maxsize=1024, typed=True)
def _encoded(*values: Any) -> str:
    """The JSON of what is said of a collective; a step repeats few of them."""
    said = zip(COLLECTIVE.values(), values, strict=True)
    return msgspec.json.encode({key: value for key, value in said if value is not None}).decode()


_PLACE_OF_USUAL = {kind: TABLES.index(table) for kind, table in TABLE_OF.items()}
_KIND, _LANE = attrgetter("ph", "cat"), attrgetter("pid", "tid")
_CATEGORY, _NAME, _TS, _DUR, _ID = (attrgetter(name) for name in ("cat", "name", "ts", "dur", "id"))
_ATTRIBUTE = {name: attrgetter(name) for name in Args.__struct_fields__}
_COLLECTIVE = attrgetter(*COLLECTIVE)
_COLLECTIVE_NAME = _ATTRIBUTE["collective_name"]
_JSON = {layout.json: attrgetter(*layout.json) for layout in LAYOUTS.values() if layout.json}
