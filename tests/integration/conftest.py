"""Fixtures of the tests that run whole programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from programs import Programs

# Files that are about how programs end, or about all that they import.
WHOLE = ("test_run_behaviour", "test_run_faults", "test_run_kinds", "test_run_process")


@pytest.fixture
def programs(request: pytest.FixtureRequest, tmp_path: Path) -> Programs:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return Programs(tmp_path, quick_ends=request.path.stem not in WHOLE)
