"""Fixtures every test may use."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import shared_runs
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read
from programs import QUICK_ENDS

# Workers share two cores: what a test starts takes one. Inductor's check of what vector instructions the
# compiler knows costs ten seconds a cache, and what its code computes is the same without them.
for switch in ("OMP_NUM_THREADS=1", "POLARS_MAX_THREADS=1", "TORCHINDUCTOR_VEC_ISA_OK=0"):
    os.environ.setdefault(*switch.split("="))
# Hundreds of interpreters are started, and modules rewritten for their assertions: that is compiled once.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.pop("COLUMNS", None)  # xdist's: what goes to a pipe has a width of its own
os.environ.setdefault("KINETOSCOPE_CACHE", "0")  # tests read files, not what an earlier run kept of them
os.environ["XDG_CONFIG_HOME"] = os.path.join(tempfile.gettempdir(), "kinetoscope-tests")  # a key to sign with
os.environ["PYTHONPATH"] = os.pathsep.join((str(QUICK_ENDS), *filter(None, [os.environ.get("PYTHONPATH")])))
# Workers of pytest-xdist are started with it as well, and tests in them ask torch for results without data.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "LoadsMetas"]

# A shared machine may take any time for anything; property tests share eight minutes. The suite tries the
# same examples each time, so that what is red was made so by a change; ``HYPOTHESIS_PROFILE=explore`` others.
settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = Path(__file__).parent / "fixtures"


SHARED = Path(os.environ.get("KINETOSCOPE_SHARED_DATA") or ROOT.parent / "shared" / "data")
shared_runs.share(FIXTURES, SHARED, ROOT / "examples", ROOT / "tests" / "cases")
NOT_HERE = "a recording that is not committed is not here (set KINETOSCOPE_SHARED_DATA)"


class Recordings(type(Path())):
    """The folder of real recordings: the shared one, else those in tests/fixtures. What is in neither skips
    the test that asks for it."""

    def __truediv__(self, name: str) -> Path:
        for folder in (Path(self), FIXTURES):
            if (folder / name).is_file():
                return folder / name
            if (folder / name).is_dir():
                return Recordings(folder / name)
        pytest.skip(NOT_HERE)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    return Recordings(SHARED if (SHARED / "oracle.jsonl").is_file() else FIXTURES)


@pytest.fixture(scope="session")
def recorded(shared_data: Path) -> Callable[[str], Path]:
    """Finds a file of the real recordings ("h200/mm_64_warm_eager.json.gz"): in tests/fixtures, else in the
    shared folder; the test is skipped where it is in neither."""

    def find(name: str) -> Path:
        own = FIXTURES / name
        return own if own.is_file() else shared_data / name

    return find


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a plain clone a test of very many recordings is one of those that are here."""
    if (SHARED / "oracle.jsonl").is_file():
        return
    absent = [item for item in items if _names_what_is_not_here(item)]
    items[:] = [item for item in items if item not in absent]
    config.hook.pytest_deselected(items=absent)


def _names_what_is_not_here(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    words = [word for word in given.params.values() if isinstance(word, str)] if given is not None else []
    names = [word for word in words if word.startswith(("public/", "h200/", "h200-dist/"))]
    logs = [f"compile-logs/{word}" for word in words if re.search(r"\.log(\.gz)?$", word)]
    ends = ("", ".json.gz", "0.json.gz")
    return any(
        not any((FIXTURES / f"{name.removesuffix('0+1')}{end}").is_file() for end in ends)
        for name in (*names, *logs)
    )


@pytest.fixture
def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """pytest's; what changed code computes is kept for no other test, nor is it given what was kept."""
    change = monkeypatch.setattr

    def changing(*args: Any, **options: Any) -> None:
        shared_runs.shared.off = True
        change(*args, **options)

    monkeypatch.setattr = changing  # type: ignore[method-assign]
    yield monkeypatch
    shared_runs.shared.off = False


@pytest.fixture
def trace_of(tmp_path: Path) -> Callable[..., Trace]:
    """A trace read back from a file of the given Chrome events: ``trace_of(event, …, rank=0,
    **file_keys)``."""

    def make(*events: dict[str, Any], rank: int = 0, **keys: Any) -> Trace:
        path = tmp_path / f"rank{rank}_{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps({"traceEvents": list(events), **keys}))
        return read(path, rank=rank)

    return make
