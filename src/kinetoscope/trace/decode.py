"""Bytes of events to packed columns: arrays of numbers, and codes into lists of the texts seen.

A chunk of a file decodes by itself, so chunks decode in parallel; this module runs in those processes and imports
msgspec and the standard library only. Slices of half a megabyte keep what is decoded inside the cache of the core,
which is worth a factor of two.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from kinetoscope.trace.events import ABSENT, Args, Event, ExactEvent, Label, room_of

DOUBLE_HOLDS_NS = float(1 << 43)  # below so many microseconds a double is within half a nanosecond
LARGEST_US = 9 * 10**15  # nanoseconds of more than these microseconds are no 64-bit integer
_EMPTY = Args()


class Layout(NamedTuple):
    """Which attributes of an event's ``args`` a packed table keeps, by how they are packed."""

    integers: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    json: tuple[str, ...] = ()
    collective: bool = False


_INPUTS = ("input_dims", "input_types", "input_strides", "concrete_inputs")
_LIMITS = ("registers", "shared_memory_bytes", "bytes", "graph_node", "graph")
_OCCUPANCY = ("blocks_per_sm", "warps_per_sm", "occupancy_percent")
_PYTHON = ("python_id", "python_parent_id", "python_module_id")
_MEMORY = ("device_type", "device_id", "memory_bytes", "total_allocated", "total_reserved")
LAYOUTS = {
    "ops": Layout(
        ("external_id", "sequence", "forward_thread", "kernel_flops"),
        ("kernel_gigabytes",),
        ("call_stack", "kernel_file"),
        _INPUTS,
        collective=True,
    ),
    "calls": Layout(("external_id", "correlation")),
    "python": Layout(_PYTHON),
    "device": Layout(
        ("external_id", "correlation", "device", "stream", "context", *_LIMITS),
        _OCCUPANCY,
        json=("grid", "block"),
        collective=True,
    ),
    "notes": Layout(("external_id", "device", "stream")),
    "flows": Layout(),
    "instants": Layout(_MEMORY, texts=("address",)),
    "labels": Layout(texts=("label",)),
}
_OTHER_NAMES = {"external_id": "external_id_2021", "input_dims": "input_dims_2022"}
COLLECTIVE = {
    "collective_name": "Collective name",
    "dtype": "dtype",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "group_size": "Group size",
    "group_name": "Process Group Name",
    "group_description": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "split_in": "In split size",
    "split_out": "Out split size",
    "collective_sequence": "Seq",
    "collective_rank": "Rank",
}


class Codes(dict[Any, int]):
    """A number for every distinct value, in the order they come."""

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code

    def of(self, values: Iterable[Any]) -> list[int]:
        return list(map(self.__getitem__, values))


class Batch(NamedTuple):
    """What one chunk of a file packs into.

    Args:
        events: elements of ``traceEvents`` in it, lost ones included, so that positions stay those of the file.
        tables: room → column → (array type code, bytes). ``texts`` columns hold codes.
        names: what codes of ``name`` and ``category`` mean.
        texts: what codes of every other text column mean.
        lanes: what codes of ``lane`` mean: (pid, tid) as written.
        unused: events that no table holds, by ``ph cat``.
        damages: code → (text, count).
    """

    events: int
    tables: dict[str, dict[str, tuple[str, bytes]]]
    names: list[Any]
    texts: list[bytes | str]
    lanes: list[tuple[Label, Label]]
    unused: dict[str, int]
    damages: dict[str, int]


class _Table:
    """The growing columns of one packed table."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.columns: dict[str, array[Any]] = {}

    def extend(self, name: str, typecode: str, values: list[Any], mend: Callable[[Any], Any] | None) -> None:
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = array(typecode)
        try:
            column.fromlist(values)
        except (TypeError, OverflowError):
            if mend is None:
                raise
            column.fromlist([mend(value) for value in values])


class Packer:
    """Packs decoded events, slice by slice, into one Batch."""

    def __init__(self) -> None:
        self._count = 0
        self._rooms = _Rooms()
        self._tables = {room: _Table(layout) for room, layout in LAYOUTS.items()}
        self._names, self._texts, self._lanes = Codes(), Codes(), Codes()
        self._unused: dict[str, int] = {}
        self.exact = False
        self.damages: dict[str, int] = {}

    def add_slice(self, data: bytes) -> None:
        """Pack the events of one JSON list.

        Raises:
            msgspec.DecodeError: it is not a list of events; nothing was packed.
        """
        if not self.exact:
            events = _EVENTS.decode(data)
            if doubles_hold(events):
                self.add(events)
                return
            self.keep_exact()
        self.add(_EXACT_EVENTS.decode(data))

    def add(self, events: Sequence[Event | ExactEvent]) -> None:
        """Pack decoded events in the order of the file."""
        rooms = self._rooms
        members: dict[str, list[Event | ExactEvent]] = {room: [] for room in LAYOUTS}
        positions: dict[str, list[int]] = {room: [] for room in LAYOUTS}
        for position, event in enumerate(events, self._count):
            room = rooms[event.ph, event.cat]
            if room == "unused":
                kind = f"{event.ph} {event.cat or ''}".strip()
                self._unused[kind] = self._unused.get(kind, 0) + 1
            else:
                members[room].append(event)
                positions[room].append(position)
        self._count += len(events)
        for room, chosen in members.items():
            if chosen:
                self._pack(room, chosen, positions[room])

    def add_salvaged(self, events: Sequence[Event | ExactEvent | None], damages: dict[str, int]) -> None:
        """Pack what was salvaged; a lost event (None) keeps its position."""
        for lost, group in groupby(events, lambda event: event is None):
            members = list(group)
            if lost:
                self._count += len(members)
            else:
                self.add([event for event in members if event is not None])
        for code, count in damages.items():
            self.damages[code] = self.damages.get(code, 0) + count

    def batch(self) -> Batch:
        tables = {
            room: {name: (column.typecode, column.tobytes()) for name, column in table.columns.items()}
            for room, table in self._tables.items()
            if table.columns
        }
        return Batch(
            self._count,
            tables,
            list(self._names),
            list(self._texts),
            list(self._lanes),
            self._unused,
            self.damages,
        )

    def keep_exact(self) -> None:
        """From here on times come as they are written; those packed so far were exact."""
        self.exact = True
        for table in self._tables.values():
            for name in ("start", "duration"):
                if name in table.columns:
                    table.columns[name] = array("q", map(_double_ns, table.columns[name]))

    def _pack(self, room: str, events: list[Any], positions: list[int]) -> None:
        table = self._tables[room]
        extend = table.extend
        extend("event", "I", positions, None)
        if room == "labels":  # they name lanes; they are on none
            extend("pid", "I", self._texts.of(str(event.pid) for event in events), None)
            extend("tid", "I", self._texts.of(str(event.tid) for event in events), None)
            extend("name", "I", self._names.of(map(_NAME, events)), None)
            self._arguments(table, [event.args or _EMPTY for event in events])
            return
        extend("lane", "I", self._lanes.of(map(_LANE, events)), None)
        extend("category", "I", self._names.of(map(_CATEGORY, events)), None)
        self._times(table, "start", list(map(_TS, events)))
        if room == "flows":
            extend("flow", "q", [ABSENT if e.id is None else e.id for e in events], self._integer)
            extend("is_start", "B", [e.ph == "s" for e in events], None)
            return
        extend("name", "I", self._names.of(map(_NAME, events)), None)
        if room in ("ops", "calls", "python", "device", "notes"):
            self._times(table, "duration", list(map(_DUR, events)))
        self._arguments(table, [event.args or _EMPTY for event in events])

    def _times(self, table: _Table, name: str, values: list[Any]) -> None:
        if self.exact:
            table.extend(name, "q", [_exact_ns(value) for value in values], None)
        else:
            table.extend(name, "d", values, self._number)

    def _arguments(self, table: _Table, arguments: list[Args]) -> None:
        layout, extend, texts = table.layout, table.extend, self._texts
        for name in layout.integers:
            values = list(map(_ATTRIBUTE[name], arguments))
            if name in _OTHER_NAMES and ABSENT in values:
                values = [
                    a if a != ABSENT else b
                    for a, b in zip(values, map(_ATTRIBUTE[_OTHER_NAMES[name]], arguments), strict=True)
                ]
            extend(name, "q", values, self._integer)
        for name in layout.numbers:
            extend(name, "d", list(map(_ATTRIBUTE[name], arguments)), self._number)
        for name in layout.json:
            values = list(map(bytes, map(_ATTRIBUTE[name], arguments)))
            if name in _OTHER_NAMES and b"" in values:
                values = [
                    a or bytes(b)
                    for a, b in zip(values, map(_ATTRIBUTE[_OTHER_NAMES[name]], arguments), strict=True)
                ]
            extend(name, "I", texts.of(values), None)
        for name in layout.texts:
            values = list(map(_ATTRIBUTE[name], arguments))
            try:
                codes = texts.of(values)
            except TypeError:  # a list or an object
                codes = texts.of(map(_as_text, values))
            extend(name, "I", codes, None)
        if layout.collective:
            extend("collective", "I", texts.of(_collectives(arguments)), None)

    def _integer(self, value: Any) -> int:
        if value is None or value is ABSENT:
            return ABSENT
        try:
            number = int(value, 16) if isinstance(value, str) and value[:2] == "0x" else int(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or not -(1 << 63) < number < 1 << 63:
            self.damages["bad-field"] = self.damages.get("bad-field", 0) + 1
            return ABSENT
        return number

    def _number(self, value: Any) -> float:
        if value is None:
            return float("nan")
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            self.damages["bad-field"] = self.damages.get("bad-field", 0) + 1
            return float("nan")


class _Rooms(dict[tuple[Label, Label], str]):
    def __missing__(self, key: tuple[Label, Label]) -> str:
        self[key] = room = room_of(*key)
        return room


def doubles_hold(events: Sequence[Event | ExactEvent]) -> bool:
    """Whether every time survives being read as a double to the nanosecond."""
    times = list(map(_TS, events))
    try:
        if max(times, default=0) < DOUBLE_HOLDS_NS:
            return True
    except TypeError:  # one of them is no number
        pass
    return not any(
        type(time) is str or (type(time) is float and DOUBLE_HOLDS_NS <= time < LARGEST_US) for time in times
    )


def _double_ns(microseconds: float) -> int:
    return _decimal_ns(Decimal(microseconds)) if microseconds == microseconds else ABSENT


def _exact_ns(raw: msgspec.Raw) -> int:
    text = bytes(raw).strip(b'"').decode("ascii", "replace")
    whole, _, fraction = text.partition(".")
    if (
        len(whole) <= 16
        and whole.isdecimal()
        and len(fraction) <= 3
        and (not fraction or fraction.isdecimal())
    ):
        ns = int(whole) * 1000 + int((fraction + "000")[:3])
        return ns if ns <= LARGEST_US * 1000 else ABSENT
    try:
        return _decimal_ns(Decimal(text))
    except InvalidOperation:
        return ABSENT


def _decimal_ns(microseconds: Decimal) -> int:
    if not microseconds.is_finite() or abs(microseconds) > LARGEST_US:
        return ABSENT
    return round(microseconds * 1000)


def _as_text(value: Any) -> str | bytes:
    return value if isinstance(value, bytes) else str(value)


def _collectives(arguments: list[Args]) -> list[str | bytes]:
    names = list(map(_ATTRIBUTE["collective_name"], arguments))
    if names.count(None) == len(names):
        return [b""] * len(names)
    return [b"" if a.collective_name is None else _collective(a) for a in arguments]


def _collective(arguments: Args) -> str:
    values = {key: getattr(arguments, name) for name, key in COLLECTIVE.items()}
    return msgspec.json.encode({key: value for key, value in values.items() if value is not None}).decode()


_EVENTS = msgspec.json.Decoder(list[Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
_LANE = attrgetter("pid", "tid")
_CATEGORY, _NAME, _TS, _DUR = (attrgetter(name) for name in ("cat", "name", "ts", "dur"))
_ATTRIBUTE = {name: attrgetter(name) for name in Args.__struct_fields__}
