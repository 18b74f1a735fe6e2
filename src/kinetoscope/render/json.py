"""Rows of the document as JSON: the contract, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec


def indented(document: object) -> str:
    """One JSON document that a person can read; numbers are not rounded, and what is no text in the name of a
    file is replaced."""
    try:
        encoded = msgspec.json.encode(document)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_as_text(msgspec.to_builtins(document)))
    return msgspec.json.format(encoded, indent=2).decode()


def _as_text(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_as_text(key): _as_text(one) for key, one in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [_as_text(one) for one in cast(Sequence[Any], value)]
    return value
