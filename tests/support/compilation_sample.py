"""Rows of a compilation made by hand, to render: what is not named is empty, zero or unknown."""

from __future__ import annotations

import types
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from kinetoscope.document.compilation import Compilation, Frame

Row = TypeVar("Row", bound=msgspec.Struct)


def sample(kind: type[Row], **fields: Any) -> Row:
    """A row of that kind; the fields that it must have and that are not given hold nothing."""
    needed = {field.name: _nothing(field.type) for field in msgspec.structs.fields(kind) if field.required}
    return kind(**needed | fields)


def compilation(*frames: Frame, **fields: Any) -> Compilation:
    return sample(Compilation, frames=frames, **fields)


def _nothing(of: Any) -> Any:
    if get_origin(of) in (types.UnionType, tuple, dict):
        return None if type(None) in get_args(of) else get_origin(of)()
    return sample(of) if issubclass(of, msgspec.Struct) else of()
