"""Fixtures every test may use."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read

os.environ.setdefault("KINETOSCOPE_CACHE", "0")  # tests read files, not what an earlier run kept of them
os.environ["XDG_CONFIG_HOME"] = os.path.join(tempfile.gettempdir(), "kinetoscope-tests")  # a key to sign with

# A shared machine may take any time for anything; property tests share eight minutes.
settings.register_profile("suite", deadline=None, max_examples=25)
settings.load_profile("suite")

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
    """Finds a file of the real recordings ("h200/mm_64_warm_eager.json.gz"): in tests/fixtures, else in the
    shared folder; the test is skipped where it is in neither."""

    def find(name: str) -> Path:
        own = FIXTURES / name
        return own if own.is_file() else request.getfixturevalue("shared_data") / name

    return find


@pytest.fixture
def trace_of(tmp_path: Path) -> Callable[..., Trace]:
    """A trace read back from a file of the given Chrome events: ``trace_of(event, …, rank=0,
    **file_keys)``."""

    def make(*events: dict[str, Any], rank: int = 0, **keys: Any) -> Trace:
        path = tmp_path / f"rank{rank}_{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps({"traceEvents": list(events), **keys}))
        return read(path, rank=rank)

    return make
