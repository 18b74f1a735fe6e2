"""Parameters of which a few are tried each time, and all by hand (``pytest -m ""``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def broad(values: Iterable[Any], always: Collection[Any]) -> list[Any]:
    """The values as parameters; those that are not always tried are slow."""
    return [
        value
        if value in always
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]
