"""Fixtures of the tests that run whole programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from programs import Programs


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return Programs(tmp_path)
