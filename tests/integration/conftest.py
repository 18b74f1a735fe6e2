"""Fixtures of the tests that run whole programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from programs import Programs


@pytest.fixture
def whole() -> None:
    """Asked for by what is about how programs end, or about all that they import."""


@pytest.fixture
def programs(request: pytest.FixtureRequest, tmp_path: Path) -> Programs:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return Programs(tmp_path, quick_ends="whole" not in request.fixturenames)
