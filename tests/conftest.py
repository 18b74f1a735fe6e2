"""Fixtures every test may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real recordings; tests that need it are skipped where it is not there."""
    folder = Path(os.environ.get("KINETOSCOPE_SHARED_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / "oracle.jsonl").is_file():
        pytest.skip("the shared recordings are not here (set KINETOSCOPE_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session")
def recorded(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Finds a file of the real recordings ("h200/mm_64_warm_eager.json.gz"): in tests/fixtures, else in the shared
    folder; the test is skipped where it is in neither."""

    def find(name: str) -> Path:
        own = FIXTURES / name
        return own if own.is_file() else request.getfixturevalue("shared_data") / name

    return find
