"""The kinds of events that nearly every event is, distinguished while they are decoded.

They have the attributes of ``Event`` that their table packs, and nothing else is looked for. What is no such
event (another category or phase, a time that is no number) does not decode as one.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Literal

import msgspec

from kinetoscope.trace.decoding.events import ABSENT, COLLECTIVE, LAYOUTS, RENAMED, Args, Label

_CATEGORIES = {
    "ops": ("cpu_op", "user_annotation", "overhead"),
    "calls": ("cuda_runtime", "cuda_driver"),
    "python": ("python_function",),
    "device": ("kernel", "gpu_memcpy", "gpu_memset"),
    "notes": ("gpu_user_annotation",),
    "flows": ("ac2g", "fwdbwd"),
    "instants": ("cpu_instant_event",),
}
_PHASES = {"flows": Literal["s", "f", "t"], "instants": Literal["i"]}
_NAMED: list[Any] = [(name, Label, None) for name in ("name", "pid", "tid")]


def _args_of(table: str) -> Any:
    """``Args`` with those of its fields that the table's layout names."""
    layout = LAYOUTS[table]
    kept = {*layout.integers, *layout.numbers, *layout.texts, *layout.json}
    kept |= {RENAMED[name] for name in kept & RENAMED.keys()} | (
        COLLECTIVE.keys() if layout.collective else set()
    )
    fields = [field for field in msgspec.structs.fields(Args) if field.name in kept]
    return msgspec.defstruct(
        f"{table}_args",
        [(f.name, f.type, msgspec.field(default=f.default, name=f.encode_name)) for f in fields],
        frozen=True,
        gc=False,
    )


def _event_of(table: str, category: str, args: Any) -> Any:
    phase: Any = ("ph", _PHASES.get(table, Literal["X"]))
    time: Any = ("ts", int | float)
    rest: list[Any]
    if table == "flows":
        rest = [("id", Label, ABSENT)]
    else:
        rest = [("dur", int | float | None, None), ("args", args | None, None)]
    return msgspec.defstruct(
        f"{table}_{category}",
        [phase, time, *_NAMED, *rest],
        namespace={"cat": category},  # of the class: the tag itself is no attribute
        tag_field="cat",
        tag=category,
        gc=False,
    )


def _events_of(table: str) -> list[Any]:
    args = _args_of(table)
    return [_event_of(table, category, args) for category in _CATEGORIES[table]]


TABLE_OF = {kind: table for table in _CATEGORIES for kind in _events_of(table)}
USUAL_EVENTS: Any = list[reduce(or_, TABLE_OF)]
