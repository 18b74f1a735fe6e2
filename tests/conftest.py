"""Fixtures every test may use."""

from __future__ import annotations

import os
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
